/* Two models in one program, run by several threads; every mistake gets its code. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "division.h"
#include "growing.h"

#define CHECK(what)                                                                                \
    do {                                                                                           \
        if (!(what)) {                                                                             \
            printf("line %d: %s (%s)\n", __LINE__, #what, error.text);                             \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static weft_tensor tensor(void *data, int32_t ndim, uint8_t code, int64_t *shape) {
    weft_tensor made = {data, 1, 0, ndim, code, 32, 1, shape, NULL, 0};
    return made;
}

/* -- memory of our own ----------------------------------------------------------------------------
 */

typedef struct counted {
    int blocks, calls;
} counted;

static void *take(void *user, size_t bytes) {
    ((counted *)user)->blocks++;
    ((counted *)user)->calls++;
    return malloc(bytes);
}

static void give(void *user, void *memory) {
    ((counted *)user)->blocks--;
    free(memory);
}

static void *take_nothing(void *user, size_t bytes) {
    (void)user;
    (void)bytes;
    return NULL;
}

/* -- division: a model without weights ------------------------------------------------------------
 */

static void divide(void) {
    weft_error error;
    counted memory = {0, 0};
    weft_options options = {sizeof(weft_options), 2, 0, take, give, &memory, 0, 0, NULL};
    division_program *program;
    division_context *context;
    int32_t x[3] = {6, 7, 8}, y[3] = {1, 7, 2}, z[3] = {0, 0, 0};
    int64_t three[1] = {3}, four[1] = {4}, room[1];
    weft_tensor inputs[2], results[1];
    int calls;
    inputs[0] = tensor(x, 1, 0, three);
    inputs[1] = tensor(y, 1, 0, three);
    results[0] = tensor(z, 1, 0, three);
    CHECK(division_signature()->abi == 1 && division_signature()->inputs == 2);
    CHECK(strcmp(division_signature()->name, "division") == 0);
    CHECK(division_open(NULL, &options, &program, &error) == WEFT_OK);
    CHECK(division_context_new(program, &context, &error) == WEFT_OK);
    calls = memory.calls;
    CHECK(division_run(context, inputs, results, 0, &error) == WEFT_OK);
    CHECK(z[0] == 6 && z[1] == 1 && z[2] == 4);

    y[1] = 0;
    CHECK(division_run(context, inputs, results, 0, &error) == WEFT_VIOLATION);
    CHECK(strstr(error.text, "the divisor is zero at element 1") != NULL);
    CHECK(division_run(context, inputs, results, 0, NULL) == WEFT_VIOLATION);
    y[1] = 7;
    CHECK(division_run(context, inputs, results, 0, &error) == WEFT_OK && error.text[0] == 0);

    results[0].data = NULL; /* in the context's memory */
    CHECK(division_run(context, inputs, results, 0, &error) == WEFT_OK);
    CHECK(((int32_t *)results[0].data)[2] == 4 && results[0].ndim == 1 && results[0].shape[0] == 3);

    inputs[1].shape = four;
    CHECK(division_run(context, inputs, results, 0, &error) == WEFT_WRONG_TENSOR);
    CHECK(strcmp(error.text, "axis 0 of the input in1 has size 4, not 3") == 0);
    inputs[1].shape = three;
    inputs[1].code = 2;
    CHECK(division_run(context, inputs, results, 0, &error) == WEFT_WRONG_TENSOR);
    CHECK(strstr(error.text, "the input in1 has DLPack's type code 2") != NULL);
    inputs[1].code = 0;
    inputs[1].device_type = 2;
    CHECK(division_run(context, inputs, results, 0, &error) == WEFT_WRONG_TENSOR);
    inputs[1].device_type = 1;
    inputs[1].data = NULL;
    CHECK(division_run(context, inputs, results, 0, &error) == WEFT_WRONG_TENSOR);
    inputs[1].data = (char *)y + 1;
    CHECK(division_run(context, inputs, results, 0, &error) == WEFT_WRONG_TENSOR);
    inputs[1].data = y;
    results[0].shape = room;
    CHECK(division_results(inputs, results, &error) == WEFT_OK && room[0] == 3);
    CHECK(division_run(NULL, inputs, results, 0, &error) == WEFT_MISUSE);
    CHECK(division_run(context, NULL, results, 0, &error) == WEFT_MISUSE);
    CHECK(memory.calls == calls); /* a run takes no memory */
    division_context_free(context);
    division_close(program);
    CHECK(memory.blocks == 0);

    options.memory_limit = (uint64_t)division_context_bytes(); /* is just enough */
    CHECK(division_open(NULL, &options, &program, &error) == WEFT_OK);
    CHECK(division_context_new(program, &context, &error) == WEFT_OK);
    division_context_free(context);
    division_close(program);
    options.memory_limit--;
    CHECK(division_open(NULL, &options, &program, &error) == WEFT_OK);
    CHECK(division_context_new(program, &context, &error) == WEFT_NO_MEMORY && context == NULL);
    division_close(program);
    options.allocate = take_nothing;
    CHECK(division_open(NULL, &options, &program, &error) == WEFT_NO_MEMORY && program == NULL);
    options.release = NULL;
    CHECK(division_open(NULL, &options, &program, &error) == WEFT_MISUSE);
    options.bytes = 0;
    CHECK(division_open(NULL, &options, &program, &error) == WEFT_MISUSE);
}

/* -- growing: open sizes and state ----------------------------------------------------------------
 */

typedef struct worker {
    const growing_program *program;
    int number;
} worker;

static void *grow(void *given) {
    worker *own = (worker *)given;
    weft_error error;
    growing_context *context;
    float x[12], want = 0;
    int64_t shape[2] = {0, 2};
    weft_tensor input, result, state;
    int turn, i;
    CHECK(growing_context_new(own->program, &context, &error) == WEFT_OK);
    for (turn = 0; turn < 40; turn++) {
        int rows = 1 + (turn + own->number) % 6;
        for (i = 0; i < 2 * rows; i++) x[i] = (float)own->number;
        want += (float)(rows * own->number);
        shape[0] = rows;
        input = tensor(x, 2, 2, shape);
        memset(&result, 0, sizeof result);
        CHECK(growing_run(context, &input, &result, 0, &error) == WEFT_OK);
        CHECK(result.shape[0] == rows && result.shape[1] == 2);
        for (i = 0; i < 2 * rows; i++)
            CHECK(((float *)result.data)[i] == want + (float)own->number);
        CHECK(growing_state(context, 0, &state, &error) == WEFT_OK);
        CHECK(((float *)state.data)[1] == want);
    }
    shape[0] = 7;
    CHECK(growing_run(context, &input, &result, 0, &error) == WEFT_WRONG_TENSOR);
    CHECK(strcmp(error.text, "axis 0 of the input x has size 7; B is from 1 to 6") == 0);
    growing_reset(context);
    CHECK(growing_state(context, 0, &state, &error) == WEFT_OK && ((float *)state.data)[0] == 0);
    CHECK(growing_state(context, 1, &state, &error) == WEFT_MISUSE);
    growing_context_free(context);
    return NULL;
}

int main(int count, char **folders) {
    weft_error error = {0, ""};
    weft_options options = {sizeof(weft_options), 1, 0, NULL, NULL, NULL, 1, 0, NULL};
    growing_program *program;
    pthread_t threads[4];
    worker workers[4];
    int i;
    CHECK(count == 3);
    divide();
    CHECK(growing_context_bytes() > 0);
    CHECK(growing_open(folders[2], &options, &program, &error) == WEFT_OK);
    for (i = 0; i < 4; i++) {
        workers[i].program = program;
        workers[i].number = i + 1;
        CHECK(pthread_create(&threads[i], NULL, grow, &workers[i]) == 0);
    }
    for (i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    growing_close(program);
    printf("all is well\n");
    return 0;
}
