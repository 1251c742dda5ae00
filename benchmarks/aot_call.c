/* Runs a bundle many times and says what `aot_measure.h` says.

   cc -DMODEL=name -DHEADER='"name.h"' aot_call.c libname.a -lpthread; ./a.out FOLDER THREADS
   SECONDS */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>

#include "aot_measure.h"
#include HEADER

#define JOIN(a, b) a##b
#define NAMED(a, b) JOIN(a, b)
#define F(what) NAMED(MODEL, what)

typedef struct run {
    F(_context) * context;
    weft_tensor *inputs, *results;
} run;

static void call(void *given) {
    run *all = given;
    F(_run)(all->context, all->inputs, all->results, 0, NULL);
}

int main(int count, char **given) {
    const weft_signature *signature = F(_signature)();
    weft_tensor *inputs = calloc((size_t)signature->inputs + 1, sizeof *inputs);
    weft_tensor *results = calloc((size_t)signature->results + 1, sizeof *results);
    weft_options options = {
        sizeof(weft_options), count > 2 ? atoi(given[2]) : 1, 0, NULL, NULL, NULL, 0, 0, NULL};
    double began = now();
    F(_program) * program;
    run all = {NULL, inputs, results};
    weft_error error;
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
        F(_context_new)(program, &all.context, &error) ||
        F(_run)(all.context, inputs, results, 0, &error)) {
        fprintf(stderr, "%s\n", error.text);
        return 1;
    }
    measure(now() - began, count > 3 ? atof(given[3]) : 1, call, &all);
    F(_context_free)(all.context);
    F(_close)(program);
    return 0;
}
