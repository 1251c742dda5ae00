/* Runs the perceptron of `benchmarks.aot` by ONNX Runtime's C API, on one thread, with its input and
   its result in memory of the caller, and says what `aot_measure.h` says.

   cc -IHEADERS aot_onnxruntime.c libonnxruntime.so; ./a.out mlp.onnx SECONDS */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>

#include "aot_measure.h"
#include "onnxruntime_c_api.h"

static const OrtApi *api;

static void check(OrtStatus *status) {
    if (!status) return;
    fprintf(stderr, "%s\n", api->GetErrorMessage(status));
    exit(1);
}

static OrtValue *tensor(float *data, int64_t columns) {
    int64_t shape[] = {1, columns};
    OrtMemoryInfo *memory;
    OrtValue *made;
    check(api->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &memory));
    check(api->CreateTensorWithDataAsOrtValue(memory, data, sizeof(float) * (size_t)columns, shape, 2,
                                              ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &made));
    api->ReleaseMemoryInfo(memory);
    return made;
}

typedef struct run {
    OrtSession *session;
    OrtValue *input, *result;
} run;

static void call(void *given) {
    static const char *const inputs[] = {"x"}, *const results[] = {"y"};
    run *all = given;
    check(api->Run(all->session, NULL, inputs, (const OrtValue *const *)&all->input, 1, results, 1,
                   &all->result));
}

int main(int count, char **given) {
    static float x[256], y[64];
    double began = now();
    OrtEnv *environment;
    OrtSessionOptions *options;
    run all;
    if (count < 3) return 2;
    api = OrtGetApiBase()->GetApi(ORT_API_VERSION);
    if (!api) {
        fprintf(stderr, "the library is older than its header\n");
        return 1;
    }
    check(api->CreateEnv(ORT_LOGGING_LEVEL_WARNING, "mlp", &environment));
    check(api->CreateSessionOptions(&options));
    check(api->SetIntraOpNumThreads(options, 1));
    check(api->CreateSession(environment, given[1], options, &all.session));
    all.input = tensor(x, 256);
    all.result = tensor(y, 64);
    call(&all);
    measure(now() - began, atof(given[2]), call, &all);
    api->ReleaseValue(all.input);
    api->ReleaseValue(all.result);
    api->ReleaseSession(all.session);
    api->ReleaseSessionOptions(options);
    api->ReleaseEnv(environment);
    return 0;
}
