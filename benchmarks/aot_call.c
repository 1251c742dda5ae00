/* Runs a bundle many times and says, in one line of JSON: seconds from the start of main to the
   first result, seconds of a call, and the most memory that was resident.

   cc -DMODEL=name -DHEADER='"name.h"' aot_call.c libname.a -lpthread; ./a.out FOLDER THREADS
   SECONDS */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include HEADER

#define JOIN(a, b) a##b
#define NAMED(a, b) JOIN(a, b)
#define F(what) NAMED(MODEL, what)

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* The most bytes of this process that were resident. */
static long resident(void) {
    char line[256];
    long found = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file)) sscanf(line, "VmHWM: %ld kB", &found);
    if (file) fclose(file);
    return found * 1024;
}

int main(int count, char **given) {
    const weft_signature *signature = F(_signature)();
    weft_tensor *inputs = calloc((size_t)signature->inputs + 1, sizeof *inputs);
    weft_tensor *results = calloc((size_t)signature->results + 1, sizeof *results);
    weft_options options = {
        sizeof(weft_options), count > 2 ? atoi(given[2]) : 1, 0, NULL, NULL, NULL, 0, 0, NULL};
    double began = now(), first, fastest = 1e9, wanted = count > 3 ? atof(given[3]) : 1, end,
           started;
    F(_program) * program;
    F(_context) * context;
    weft_error error;
    long calls = 0, batch = 1, i;
    int n, axis;
    for (n = 0; n < signature->inputs; n++) {
        const weft_type *type = &signature->input[n];
        int64_t *shape = calloc((size_t)type->ndim + 1, sizeof *shape), bytes = type->element_bytes;
        for (axis = 0; axis < type->ndim; axis++) {
            shape[axis] = type->shape[axis] < 0 ? signature->size[-1 - type->shape[axis]].least
                                                : type->shape[axis];
            bytes *= shape[axis];
        }
        inputs[n].data = calloc(1, (size_t)bytes + 1);
        inputs[n].device_type = inputs[n].lanes = 1;
        inputs[n].ndim = type->ndim;
        inputs[n].code = type->code;
        inputs[n].bits = type->bits;
        inputs[n].shape = shape;
    }
    if (F(_open)(count > 1 ? given[1] : ".", &options, &program, &error) ||
        F(_context_new)(program, &context, &error) ||
        F(_run)(context, inputs, results, 0, &error)) {
        fprintf(stderr, "%s\n", error.text);
        return 1;
    }
    first = now() - began;
    end = now() + wanted;
    while (now() < end) {
        started = now();
        for (i = 0; i < batch; i++) F(_run)(context, inputs, results, 0, NULL);
        started = now() - started;
        calls += batch;
        if (started / (double)batch < fastest) fastest = started / (double)batch;
        if (started < 0.005 && batch < 1000000) batch *= 2;
    }
    printf("{\"first\": %.6f, \"call\": %.9f, \"calls\": %ld, \"resident\": %ld}\n", first, fastest,
           calls, resident());
    F(_context_free)(context);
    F(_close)(program);
    return 0;
}
