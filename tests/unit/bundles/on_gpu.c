/* The model `added` on a GPU: runs that are waited for later, memory of the device, and threads. It
   gives x + y. The argument is the folder of the bundle. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "added.h"

#define CHECK(what)                                                                                \
    if (!(what)) {                                                                                 \
        fprintf(stderr, "line %d: %s: %s\n", __LINE__, #what, error.text);                         \
        exit(1);                                                                                   \
    }

static int64_t shape[] = {3};

static weft_tensor tensor(void *data, int32_t device_type) {
    weft_tensor made = {data, device_type, 0, 1, 2, 32, 1, shape, NULL, 0};
    return made;
}

static void *run_often(void *given) {
    added_context *context = given;
    weft_error error;
    int turn, n;
    for (turn = 0; turn < 50; turn++) {
        float x[3] = {(float)turn, 2, 3}, y[3] = {10, 20, 30}, z[3];
        weft_tensor inputs[2], results[1];
        inputs[0] = tensor(x, 1);
        inputs[1] = tensor(y, 1);
        results[0] = tensor(z, 1);
        CHECK(!added_run(context, inputs, results, 0, &error));
        for (n = 0; n < 3; n++) CHECK(z[n] == x[n] + y[n]);
    }
    return NULL;
}

int main(int count, char **arguments) {
    weft_options options = {sizeof(weft_options), 0, 0, NULL, NULL, NULL, 1, 0, NULL};
    weft_error error = {0, ""};
    added_program *program = NULL;
    added_context *contexts[2] = {NULL, NULL};
    pthread_t threads[2];
    float x[3] = {1, 2, 3}, y[3] = {10, 20, 30};
    weft_tensor inputs[2], results[1], others[1];
    int n;
    CHECK(count == 2 && !added_open(arguments[1], &options, &program, &error));
    for (n = 0; n < 2; n++) CHECK(!added_context_new(program, &contexts[n], &error));

    /* What one run leaves on the device is the input of another. */
    memset(results, 0, sizeof results);
    memset(others, 0, sizeof others);
    inputs[0] = tensor(x, 1);
    inputs[1] = tensor(y, 1);
    results[0].device_type = 2;
    CHECK(!added_run_async(contexts[0], inputs, results, 0, NULL, &error));
    CHECK(!added_wait(contexts[0], &error));
    CHECK(results[0].device_type == 2 && results[0].ndim == 1 && results[0].shape[0] == 3);
    inputs[0] = results[0];
    CHECK(!added_run(contexts[1], inputs, others, 0, &error));
    for (n = 0; n < 3; n++) CHECK(((float *)others[0].data)[n] == x[n] + 2 * y[n]);

    inputs[0] = tensor(x, 7);
    CHECK(added_run(contexts[0], inputs, results, 0, &error) == WEFT_WRONG_TENSOR);
    CHECK(strstr(error.text, "on device type 7; the model takes memory of the CPU, 1, or of CUDA"));
    inputs[0] = tensor(NULL, 1);
    CHECK(added_run(contexts[0], inputs, results, 0, &error) == WEFT_WRONG_TENSOR);
    CHECK(added_read_state(contexts[0], 0, x, &error) == WEFT_MISUSE);

    for (n = 0; n < 2; n++) pthread_create(&threads[n], NULL, run_often, contexts[n]);
    for (n = 0; n < 2; n++) pthread_join(threads[n], NULL);
    for (n = 0; n < 2; n++) added_context_free(contexts[n]);
    added_close(program);
    puts("all is well");
    return 0;
}
