/* The runtime of a bundle: it maps the weights, checks what it is given, and plays the steps of a
   compiled program. There is no global state. A program is read by any number of threads; a context
   has the memory of one run at a time. */

#define WEFT_ALIGNMENT 128
#define WEFT_MOST_SIZES 64
#define WEFT_MOST_RANK 64
#define WEFT_STEP_WORDS 8
#define WEFT_NOTHING UINT64_MAX /* what an error word holds while nothing was reported */
#define WEFT_ELEMENT_BITS 48

typedef struct weft_program {
    const weft_model *model;
    weft_options options;
    const uint8_t *weights;
} weft_program;

/* A word that points into an input or a result, and is filled in by every run. */
typedef struct weft_patch {
    uint64_t *word;
    int32_t number; /* of an input, or the number of inputs + that of a result */
    int64_t offset;
} weft_patch;

/* The tables of one version, as its executor reads them. */
typedef struct weft_tables {
    uint64_t *steps, *arguments, *errors, *runs, *counters;
    weft_patch *patches;
    int64_t patch_count;
} weft_tables;

typedef struct weft_context {
    const weft_program *program;
    void *pool;
    int32_t busy;
    int64_t sizes[WEFT_MOST_SIZES];
    int64_t state[4]; /* failed, bodies entered, bodies that may be, stop */
    weft_tables *tables;
    uint8_t *arena;
    uint8_t **states;
    uint8_t **filled;  /* room for inputs that are filled up; null: never */
    uint8_t **results; /* room for results, then for new states */
    uint8_t **pointers; /* of this run's inputs and results */
    int64_t *told;
    int64_t **shapes; /* of results in our own memory */
} weft_context;

/* -- errors ------------------------------------------------------------------------------------ */

static int weft_fail(weft_error *error, int code, const char *format, ...) {
    if (error != NULL) {
        va_list list;
        error->code = code;
        va_start(list, format);
        vsnprintf(error->text, sizeof error->text, format, list);
        va_end(list);
    }
    return code;
}

static int weft_fine(weft_error *error) {
    if (error != NULL) {
        error->code = WEFT_OK;
        error->text[0] = 0;
    }
    return WEFT_OK;
}

/* A shape as text: [2, 3]. */
static const char *weft_shown(char *text, size_t room, int32_t ndim, const int64_t *shape) {
    size_t used = 0;
    int32_t axis;
    for (axis = 0; axis < ndim && used + 24 < room; axis++)
        used += (size_t)snprintf(text + used, room - used, "%s%" PRId64, axis ? ", " : "[", shape[axis]);
    snprintf(text + used, room - used, "%s%s", ndim > 0 ? "" : "[", axis < ndim ? ", ...]" : "]");
    return text;
}

/* -- SHA-256 ----------------------------------------------------------------------------------- */

static uint32_t weft_turned(uint32_t x, int by) {
    return (x >> by) | (x << (32 - by));
}

static void weft_digest_block(uint32_t *state, const uint8_t *block) {
    static const uint32_t constants[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
        0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
        0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
        0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
        0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
        0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
        0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
    uint32_t words[64], v[8];
    int i;
    for (i = 0; i < 16; i++)
        words[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 |
                   (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
    for (i = 16; i < 64; i++) {
        uint32_t a = words[i - 15], b = words[i - 2];
        words[i] = words[i - 16] + words[i - 7] + (weft_turned(a, 7) ^ weft_turned(a, 18) ^ (a >> 3)) +
                   (weft_turned(b, 17) ^ weft_turned(b, 19) ^ (b >> 10));
    }
    memcpy(v, state, sizeof v);
    for (i = 0; i < 64; i++) {
        uint32_t one = weft_turned(v[4], 6) ^ weft_turned(v[4], 11) ^ weft_turned(v[4], 25);
        uint32_t first = v[7] + one + ((v[4] & v[5]) ^ (~v[4] & v[6])) + constants[i] + words[i];
        uint32_t zero = weft_turned(v[0], 2) ^ weft_turned(v[0], 13) ^ weft_turned(v[0], 22);
        uint32_t second = zero + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof v[0]);
        v[4] += first;
        v[0] = first + second;
    }
    for (i = 0; i < 8; i++) state[i] += v[i];
}

static int weft_has_digest(const uint8_t *data, int64_t count, const uint8_t *wanted) {
    uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    uint8_t last[128] = {0};
    int64_t whole = count / 64, rest = count % 64, i;
    int blocks = rest < 56 ? 1 : 2;
    for (i = 0; i < whole; i++) weft_digest_block(state, data + 64 * i);
    if (rest != 0) memcpy(last, data + 64 * whole, (size_t)rest);
    last[rest] = 0x80;
    for (i = 0; i < 8; i++) last[64 * blocks - 1 - i] = (uint8_t)((uint64_t)count * 8 >> (8 * i));
    for (i = 0; i < blocks; i++) weft_digest_block(state, last + 64 * i);
    for (i = 0; i < 32; i++)
        if (wanted[i] != (uint8_t)(state[i / 4] >> (24 - 8 * (i % 4)))) return 0;
    return 1;
}

/* -- programs ---------------------------------------------------------------------------------- */

static int weft_read_options(const weft_options *given, weft_options *found, weft_error *error) {
    memset(found, 0, sizeof *found);
    if (given != NULL) {
        if (given->bytes < 16 || given->bytes > 4096)
            return weft_fail(error, WEFT_MISUSE, "options.bytes is %u; set it to sizeof(weft_options)",
                             (unsigned)given->bytes);
        memcpy(found, given, given->bytes < sizeof *found ? given->bytes : sizeof *found);
    }
    if ((found->allocate == NULL) != (found->release == NULL))
        return weft_fail(error, WEFT_MISUSE, "options have one of allocate and release; give both or none");
    if (found->threads < 0 || found->threads > 4096)
        return weft_fail(error, WEFT_MISUSE, "options.threads is %d; it is a number from 0 to 4096",
                         (int)found->threads);
    return WEFT_OK;
}

static void *weft_allocate(const weft_options *options, size_t bytes) {
    return options->allocate != NULL ? options->allocate(options->user, bytes) : malloc(bytes);
}

static void weft_release(const weft_options *options, void *memory) {
    if (memory == NULL) return;
    if (options->release != NULL)
        options->release(options->user, memory);
    else
        free(memory);
}

/* Map the weights, and see that they are those that the library was built with. */
static int weft_map(weft_program *program, const char *folder, weft_error *error) {
    const weft_model *model = program->model;
    size_t length = folder != NULL ? strlen(folder) : 0;
    char *path;
    struct stat found;
    void *mapped = MAP_FAILED;
    int file, failed;
    if (model->weights == NULL) return WEFT_OK;
    if (folder == NULL) return weft_fail(error, WEFT_MISUSE, "the folder of the weights is not given");
    path = weft_allocate(&program->options, length + strlen(model->weights) + 2);
    if (path == NULL) return weft_fail(error, WEFT_NO_MEMORY, "there is no memory for a path");
    memcpy(path, folder, length);
    path[length] = '/';
    strcpy(path + length + 1, model->weights);
    file = open(path, O_RDONLY | O_CLOEXEC);
    failed = file < 0 || fstat(file, &found) != 0 ? errno : 0;
    if (!failed && found.st_size == model->weights_bytes) {
        mapped = mmap(NULL, (size_t)model->weights_bytes, PROT_READ, MAP_PRIVATE, file, 0);
        failed = mapped == MAP_FAILED ? errno : 0;
    }
    if (file >= 0) close(file);
    weft_release(&program->options, path);
    if (failed)
        return weft_fail(error, WEFT_NO_FILE, "cannot read %s in %s: %s", model->weights, folder, strerror(failed));
    if (mapped == MAP_FAILED)
        return weft_fail(error, WEFT_DAMAGED, "%s has %" PRId64 " bytes, not %" PRId64 ": it belongs to another model, or is cut off",
                         model->weights, (int64_t)found.st_size, model->weights_bytes);
    program->weights = mapped;
    if (!weft_has_digest(program->weights, model->table_bytes, model->table_digest) ||
        (program->options.verify && !weft_has_digest(program->weights, model->weights_bytes, model->weights_digest)))
        return weft_fail(error, WEFT_DAMAGED, "%s is not the file that this library was built with", model->weights);
    return WEFT_OK;
}

static void weft_close(weft_program *program) {
    if (program == NULL) return;
    if (program->weights != NULL) munmap((void *)(uintptr_t)program->weights, (size_t)program->model->weights_bytes);
    weft_release(&program->options, program);
}

static int weft_open(const weft_model *model, const char *folder, const weft_options *given,
                     weft_program **made, weft_error *error) {
    weft_options options;
    weft_program *program;
    const char *missing = weft_missing();
    int failed;
    if (made == NULL) return weft_fail(error, WEFT_MISUSE, "there is no place for the program");
    *made = NULL;
    if (missing != NULL)
        return weft_fail(error, WEFT_WRONG_CPU, "%s was built for %s, and this processor has no %s",
                         model->signature->name, model->signature->target, missing);
    failed = weft_read_options(given, &options, error);
    if (failed) return failed;
    program = weft_allocate(&options, sizeof *program);
    if (program == NULL) return weft_fail(error, WEFT_NO_MEMORY, "there is no memory for a program");
    program->model = model;
    program->options = options;
    program->weights = NULL;
    failed = weft_map(program, folder, error);
    if (failed) {
        weft_close(program);
        return failed;
    }
    *made = program;
    return weft_fine(error);
}

/* -- sizes ------------------------------------------------------------------------------------- */

/* The sizes that follow from the first ones. */
static void weft_follow(const weft_model *model, int64_t *sizes) {
    int32_t n, t, own = model->signature->sizes;
    for (n = 0; n < model->follower_count; n++) {
        const weft_follower *follower = &model->followers[n];
        int64_t sum = 0;
        for (t = 0; t < follower->count; t++) {
            int64_t product = follower->terms[t].times;
            int32_t bit;
            for (bit = 0; bit < own; bit++)
                if (follower->terms[t].sizes >> bit & 1) product *= sizes[bit];
            sum += product;
        }
        sizes[own + n] = sum / follower->over;
    }
}

static int64_t weft_axis(const weft_type *type, int32_t axis, const int64_t *sizes) {
    int64_t size = type->shape[axis];
    return size < 0 ? sizes[-1 - size] : size;
}

static int64_t weft_bytes(const weft_type *type, const int64_t *sizes) {
    int64_t bytes = type->element_bytes;
    int32_t axis;
    for (axis = 0; axis < type->ndim; axis++) bytes *= weft_axis(type, axis, sizes);
    return bytes;
}

static int weft_same_shape(const weft_type *type, const int64_t *sizes, const int64_t *others) {
    int32_t axis;
    for (axis = 0; axis < type->ndim; axis++)
        if (weft_axis(type, axis, sizes) != weft_axis(type, axis, others)) return 0;
    return 1;
}

/* Copy a tensor of some sizes between memory that is laid out for others. Within one memory, towards
   its front, each row comes onto places that were read already. */
static void weft_box(const weft_type *type, const int64_t *sizes, uint8_t *target, const int64_t *target_sizes,
                     const uint8_t *source, const int64_t *source_sizes, int32_t axis) {
    int64_t target_row = type->element_bytes, source_row = type->element_bytes, i, count;
    int32_t inner, same = 1;
    for (inner = axis + 1; inner < type->ndim; inner++) {
        int64_t here = weft_axis(type, inner, target_sizes), there = weft_axis(type, inner, source_sizes);
        same = same && here == there && here == weft_axis(type, inner, sizes);
        target_row *= here;
        source_row *= there;
    }
    count = axis < type->ndim ? weft_axis(type, axis, sizes) : 1;
    if (same) {
        if (count > 0 && target_row > 0) memmove(target, source, (size_t)(count * target_row));
        return;
    }
    for (i = 0; i < count; i++)
        weft_box(type, sizes, target + i * target_row, target_sizes, source + i * source_row, source_sizes, axis + 1);
}

/* -- contexts ---------------------------------------------------------------------------------- */

/* Hands out parts of a block, or counts the bytes of one that is not there yet. */
typedef struct weft_carver {
    uint8_t *base;
    size_t used;
} weft_carver;

static void *weft_carve(weft_carver *carver, int64_t bytes) {
    size_t at = (carver->used + WEFT_ALIGNMENT - 1) / WEFT_ALIGNMENT * WEFT_ALIGNMENT;
    carver->used = at + (size_t)(bytes > 0 ? bytes : 1);
    return carver->base != NULL ? carver->base + at : NULL;
}

static uint8_t *weft_address(const weft_context *context, weft_tables *tables, const weft_slot *slot) {
    const weft_program *program = context->program;
    switch (slot->space) {
    case WEFT_STATE: return context->states[slot->number] + slot->offset;
    case WEFT_WEIGHT: return (uint8_t *)(uintptr_t)program->weights + program->model->weight_offsets[slot->number] + slot->offset;
    case WEFT_TOLD: return (uint8_t *)(context->told + slot->number);
    case WEFT_ARENA: return context->arena + slot->offset;
    case WEFT_RUN: return (uint8_t *)(tables->runs + 3 * slot->number);
    default: return NULL;
    }
}

/* Make a word point to a buffer: now where its address stays, else in every run. */
static void weft_point(const weft_context *context, weft_tables *tables, uint64_t *word, const weft_slot *slot) {
    const weft_signature *signature = context->program->model->signature;
    if (slot->space == WEFT_DATA || slot->space == WEFT_OUTPUT) {
        weft_patch *patch = &tables->patches[tables->patch_count++];
        patch->word = word;
        patch->number = slot->number + (slot->space == WEFT_OUTPUT ? signature->inputs : 0);
        patch->offset = slot->offset;
    } else {
        *word = (uint64_t)(uintptr_t)weft_address(context, tables, slot);
    }
}

static uint64_t weft_word(const void *pointer) {
    return (uint64_t)(uintptr_t)pointer;
}

static void weft_launch(weft_context *context, const weft_version *version, weft_tables *tables, int64_t number) {
    const weft_step *step = &version->steps[number];
    const weft_kernel *kernel = &version->kernels[step->of];
    uint64_t *words = tables->steps + WEFT_STEP_WORDS * number, *error = tables->errors + 4 * number;
    int64_t threads = context->program->options.threads > 1 ? context->program->options.threads : 1;
    int64_t share = kernel->pieces / (4 * threads), i;
    union { void (*code)(void *, void *, int64_t, int64_t); uint64_t word; } address;
    address.word = 0;
    address.code = kernel->code;
    words[1] = address.word;
    words[2] = weft_word(tables->arguments + step->other);
    words[3] = weft_word(error);
    words[4] = (uint64_t)kernel->pieces;
    words[5] = (uint64_t)(kernel->small ? kernel->pieces : share);
    if (words[5] == 0) words[5] = 1;
    error[0] = WEFT_NOTHING;
    error[1] = weft_word(context->state);
    error[2] = error[3] = 0;
    for (i = 0; i < step->numbers[0]; i++)
        weft_point(context, tables, tables->arguments + step->other + i,
                   &version->slots[version->arguments[step->other + i]]);
}

/* The words of one step, as the executor reads them. */
static void weft_write_step(weft_context *context, const weft_version *version, weft_tables *tables, int64_t number) {
    const weft_step *step = &version->steps[number];
    uint64_t *words = tables->steps + WEFT_STEP_WORDS * number;
    memset(words, 0, WEFT_STEP_WORDS * sizeof *words);
    words[0] = (uint64_t)step->kind;
    switch (step->kind) {
    case WEFT_LAUNCH: weft_launch(context, version, tables, number); break;
    case WEFT_COPY:
        weft_point(context, tables, words + 1, &version->slots[step->of]);
        weft_point(context, tables, words + 2, &version->slots[step->other]);
        words[3] = (uint64_t)step->numbers[0];
        words[4] = weft_word(tables->counters + step->numbers[1]);
        words[5] = (uint64_t)step->numbers[2];
        words[6] = (uint64_t)step->numbers[3];
        break;
    case WEFT_ENTER: words[1] = weft_word(tables->runs + 3 * step->of); break;
    case WEFT_JUMP: words[1] = (uint64_t)step->numbers[0]; break;
    case WEFT_UNLESS:
        weft_point(context, tables, words + 1, &version->slots[step->of]);
        words[2] = (uint64_t)step->numbers[0];
        break;
    default:
        words[1] = weft_word(tables->counters + step->of);
        words[2] = (uint64_t)step->numbers[0];
        words[3] = (uint64_t)step->numbers[1];
    }
}

/* The most bytes that a tensor takes in any version; 0 where `only_filled` and it is never filled. */
static int64_t weft_room(const weft_model *model, const weft_type *type, int only_filled) {
    int64_t sizes[WEFT_MOST_SIZES], most = 0, bytes;
    int32_t v, own = model->signature->sizes, axis, filled = !only_filled;
    for (axis = 0; axis < type->ndim; axis++) filled = filled || type->shape[axis] < 0;
    for (v = 0; filled && v < model->version_count; v++) {
        memcpy(sizes, model->versions[v].sizes, (size_t)own * sizeof *sizes);
        weft_follow(model, sizes);
        bytes = weft_bytes(type, sizes);
        if (bytes > most) most = bytes;
    }
    return most;
}

/* All memory of a context. Where the carver has no block, it is only measured. */
static void weft_lay_out(weft_context *context, weft_carver *carver, const weft_model *model) {
    const weft_signature *signature = model->signature;
    int32_t n, ends = signature->results + signature->states;
    int64_t arena = 0, told = 1;
    weft_context none;
    if (context == NULL) context = &none;
    context->tables = weft_carve(carver, model->version_count * (int64_t)sizeof(weft_tables));
    context->states = weft_carve(carver, signature->states * (int64_t)sizeof(void *));
    context->filled = weft_carve(carver, signature->inputs * (int64_t)sizeof(void *));
    context->results = weft_carve(carver, ends * (int64_t)sizeof(void *));
    context->pointers = weft_carve(carver, (signature->inputs + ends) * (int64_t)sizeof(void *));
    context->shapes = weft_carve(carver, signature->results * (int64_t)sizeof(void *));
    for (n = 0; n < model->version_count; n++) {
        const weft_version *version = &model->versions[n];
        weft_tables own;
        own.steps = weft_carve(carver, version->step_count * WEFT_STEP_WORDS * 8);
        own.arguments = weft_carve(carver, version->argument_count * 8);
        own.errors = weft_carve(carver, version->step_count * 32);
        own.runs = weft_carve(carver, version->bodies * 24);
        own.counters = weft_carve(carver, (version->counters + 1) * 8);
        own.patches = weft_carve(carver, (version->argument_count + 2 * version->step_count) * (int64_t)sizeof(weft_patch));
        own.patch_count = 0;
        if (carver->base != NULL) context->tables[n] = own;
        if (version->arena_bytes > arena) arena = version->arena_bytes;
        if (version->told_count > told) told = version->told_count;
    }
    context->told = weft_carve(carver, told * 8);
    for (n = 0; n < signature->states; n++) {
        void *room = weft_carve(carver, weft_bytes(&signature->state[n], NULL));
        if (carver->base != NULL) context->states[n] = room;
    }
    for (n = 0; n < signature->inputs; n++) {
        int64_t bytes = weft_room(model, &signature->input[n], 1);
        void *room = bytes ? weft_carve(carver, bytes) : NULL;
        if (carver->base != NULL) context->filled[n] = room;
    }
    for (n = 0; n < ends; n++) {
        const weft_type *type = n < signature->results ? &signature->result[n] : &signature->state[n - signature->results];
        void *room = weft_carve(carver, weft_room(model, type, 0));
        void *shape = weft_carve(carver, type->ndim * 8);
        if (carver->base != NULL) context->results[n] = room;
        if (carver->base != NULL && n < signature->results) context->shapes[n] = shape;
    }
    context->arena = weft_carve(carver, arena);
}

/* States as they begin. */
static void weft_reset(weft_context *context) {
    const weft_model *model = context->program->model;
    int32_t n;
    for (n = 0; n < model->signature->states; n++) {
        size_t bytes = (size_t)weft_bytes(&model->signature->state[n], NULL);
        if (model->first_states[n] < 0)
            memset(context->states[n], 0, bytes);
        else
            memcpy(context->states[n], context->program->weights + model->first_states[n], bytes);
    }
}

static int64_t weft_context_bytes(const weft_model *model) {
    weft_carver carver = {NULL, 0};
    weft_carve(&carver, sizeof(weft_context));
    weft_lay_out(NULL, &carver, model);
    return (int64_t)(carver.used + WEFT_ALIGNMENT);
}

static void weft_context_free(weft_context *context) {
    if (context == NULL) return;
    if (context->pool != NULL) weft_pool_free(context->pool);
    weft_release(&context->program->options, ((void **)(void *)context)[-1]);
}

static int weft_context_new(const weft_program *program, weft_context **made, weft_error *error) {
    weft_carver carver = {NULL, 0};
    weft_context *context;
    const weft_model *model;
    int64_t bytes, step;
    int32_t n;
    uint8_t *block;
    if (program == NULL || made == NULL) return weft_fail(error, WEFT_MISUSE, "there is no program, or no place for its context");
    *made = NULL;
    model = program->model;
    bytes = weft_context_bytes(model) + (int64_t)sizeof(void *);
    if (program->options.memory_limit && (uint64_t)bytes > program->options.memory_limit)
        return weft_fail(error, WEFT_NO_MEMORY, "a context takes %" PRId64 " bytes, over the limit of %" PRIu64,
                         bytes, program->options.memory_limit);
    block = weft_allocate(&program->options, (size_t)bytes);
    if (block == NULL) return weft_fail(error, WEFT_NO_MEMORY, "there is no memory for a context of %" PRId64 " bytes", bytes);
    /* In front of the context stands where its memory begins. */
    carver.base = block + sizeof(void *);
    carver.base += (WEFT_ALIGNMENT - (uintptr_t)carver.base % WEFT_ALIGNMENT) % WEFT_ALIGNMENT;
    context = weft_carve(&carver, sizeof *context);
    ((void **)(void *)context)[-1] = block;
    memset(context, 0, sizeof *context);
    context->program = program;
    weft_lay_out(context, &carver, model);
    context->state[2] = model->loop_steps;
    for (n = 0; n < model->version_count; n++) {
        memset(context->tables[n].counters, 0, (size_t)(model->versions[n].counters + 1) * 8);
        for (step = 0; step < model->versions[n].step_count; step++)
            weft_write_step(context, &model->versions[n], &context->tables[n], step);
    }
    weft_reset(context);
    if (program->options.threads > 1) {
        context->pool = weft_pool_new(program->options.threads - 1);
        if (context->pool == NULL) {
            weft_context_free(context);
            return weft_fail(error, WEFT_NO_MEMORY, "there is no memory for threads");
        }
    }
    *made = context;
    return weft_fine(error);
}

/* -- running ----------------------------------------------------------------------------------- */

/* Dtype, device, rank and layout of a tensor that somebody gave. */
static int weft_check(const char *what, const weft_type *type, const weft_tensor *given, weft_error *error) {
    int64_t row = 1;
    int32_t axis;
    if (given->device_type != 1)
        return weft_fail(error, WEFT_WRONG_TENSOR, "the %s %s is on device type %d; the model takes memory of the CPU, 1",
                         what, type->name, (int)given->device_type);
    if (given->code != type->code || given->bits != type->bits || given->lanes != 1)
        return weft_fail(error, WEFT_WRONG_TENSOR, "the %s %s has DLPack's type code %d with %d bits and %d lanes; the model has %s: code %d with %d bits and 1 lane",
                         what, type->name, given->code, given->bits, given->lanes, type->dtype, type->code, type->bits);
    if (given->ndim != type->ndim)
        return weft_fail(error, WEFT_WRONG_TENSOR, "the %s %s has %d axes, not %d", what, type->name, (int)given->ndim, (int)type->ndim);
    if (type->ndim > 0 && given->shape == NULL)
        return weft_fail(error, WEFT_WRONG_TENSOR, "the %s %s has no shape", what, type->name);
    for (axis = 0; axis < type->ndim; axis++)
        if (given->shape[axis] < 0)
            return weft_fail(error, WEFT_WRONG_TENSOR, "axis %d of the %s %s has size %" PRId64, (int)axis, what, type->name, given->shape[axis]);
    for (axis = type->ndim - 1; given->strides != NULL && axis >= 0; axis--) {
        if (given->shape[axis] > 1 && given->strides[axis] != row)
            return weft_fail(error, WEFT_WRONG_TENSOR, "the %s %s does not lie row-major; copy it first", what, type->name);
        row *= given->shape[axis];
    }
    if (((uintptr_t)given->data + given->byte_offset) % (type->element_bytes > 8 ? 8 : type->element_bytes) != 0)
        return weft_fail(error, WEFT_WRONG_TENSOR, "the memory of the %s %s is not aligned to its elements", what, type->name);
    return WEFT_OK;
}

/* The sizes that the inputs have, each the same wherever it stands, and inside its range. */
static int weft_bind(const weft_model *model, const weft_tensor *inputs, int64_t *sizes, weft_error *error) {
    const weft_signature *signature = model->signature;
    int32_t n, axis;
    for (n = 0; n < signature->sizes; n++) sizes[n] = -1;
    for (n = 0; n < signature->inputs; n++) {
        const weft_type *type = &signature->input[n];
        int failed = weft_check("input", type, &inputs[n], error);
        if (failed) return failed;
        for (axis = 0; axis < type->ndim; axis++) {
            int64_t given = inputs[n].shape[axis], wanted = type->shape[axis];
            const weft_size *size = wanted < 0 ? &signature->size[-1 - wanted] : NULL;
            if (size != NULL) {
                if (given < size->least || given > size->most)
                    return weft_fail(error, WEFT_WRONG_TENSOR, "axis %d of the input %s has size %" PRId64 "; %s is from %" PRId64 " to %" PRId64,
                                     (int)axis, type->name, given, size->name, size->least, size->most);
                if (sizes[-1 - wanted] < 0) sizes[-1 - wanted] = given;
                wanted = sizes[-1 - wanted];
            }
            if (given != wanted)
                return weft_fail(error, WEFT_WRONG_TENSOR, "axis %d of the input %s has size %" PRId64 ", not %s%s%" PRId64, (int)axis,
                                 type->name, given, size != NULL ? size->name : "", size != NULL ? " = " : "", wanted);
        }
        if (inputs[n].data == NULL && weft_bytes(type, sizes) > 0)
            return weft_fail(error, WEFT_WRONG_TENSOR, "the input %s has no memory", type->name);
    }
    weft_follow(model, sizes);
    return WEFT_OK;
}

/* The first version that these sizes fit into; the versions stand from small to large. */
static int32_t weft_pick(const weft_model *model, const int64_t *sizes) {
    int32_t v, n;
    for (v = 0; v < model->version_count; v++) {
        const weft_version *version = &model->versions[v];
        for (n = 0; n < model->signature->sizes; n++) {
            int smaller = version->filled[n] && sizes[n] > 0 && sizes[n] < version->sizes[n];
            if (!smaller && sizes[n] != version->sizes[n]) break;
        }
        if (n == model->signature->sizes) return v;
    }
    return -1;
}

static int weft_check_results(const weft_model *model, const int64_t *sizes, const weft_tensor *results, weft_error *error) {
    int32_t n, axis;
    for (n = 0; n < model->signature->results; n++) {
        const weft_type *type = &model->signature->result[n];
        int failed;
        if (results[n].data == NULL) continue;
        failed = weft_check("result", type, &results[n], error);
        if (failed) return failed;
        for (axis = 0; axis < type->ndim; axis++) {
            int64_t wanted = weft_axis(type, axis, sizes);
            if (results[n].shape[axis] != wanted)
                return weft_fail(error, WEFT_WRONG_TENSOR, "axis %d of the result %s has size %" PRId64 ", not %" PRId64,
                                 (int)axis, type->name, results[n].shape[axis], wanted);
        }
    }
    return WEFT_OK;
}

/* Where this run's inputs and results are: the caller's memory wherever that has the right layout. */
static void weft_place(weft_context *context, const weft_tensor *inputs, const weft_tensor *results, const int64_t *wide) {
    const weft_signature *signature = context->program->model->signature;
    int32_t n, ends = signature->results + signature->states;
    for (n = 0; n < signature->inputs; n++) {
        const weft_type *type = &signature->input[n];
        const uint8_t *given = (const uint8_t *)inputs[n].data + inputs[n].byte_offset;
        if (context->filled[n] == NULL || weft_same_shape(type, context->sizes, wide)) {
            context->pointers[n] = (uint8_t *)(uintptr_t)given;
        } else {
            memset(context->filled[n], 0, (size_t)weft_bytes(type, wide));
            weft_box(type, context->sizes, context->filled[n], wide, given, context->sizes, 0);
            context->pointers[n] = context->filled[n];
        }
    }
    for (n = 0; n < ends; n++) {
        int theirs = n < signature->results && results[n].data != NULL &&
                     weft_same_shape(&signature->result[n], context->sizes, wide);
        context->pointers[signature->inputs + n] =
            theirs ? (uint8_t *)results[n].data + results[n].byte_offset : context->results[n];
    }
}

static uint8_t *weft_end(weft_context *context, const weft_version *version, weft_tables *tables, int32_t number) {
    const weft_signature *signature = context->program->model->signature;
    const weft_slot *slot = &version->slots[version->results[number]];
    if (slot->space == WEFT_DATA) return context->pointers[slot->number] + slot->offset;
    if (slot->space == WEFT_OUTPUT) return context->pointers[signature->inputs + slot->number] + slot->offset;
    return weft_address(context, tables, slot);
}

/* Results to where they are wanted, and new states to where states are. */
static void weft_deliver(weft_context *context, const weft_version *version, weft_tables *tables,
                         weft_tensor *results, const int64_t *wide) {
    const weft_signature *signature = context->program->model->signature;
    int32_t n, axis;
    /* From the last: a result may be what an earlier one is, and lie in its memory. */
    for (n = signature->results - 1; n >= 0; n--) {
        const weft_type *type = &signature->result[n];
        uint8_t *made = weft_end(context, version, tables, n);
        uint8_t *wanted = results[n].data != NULL ? (uint8_t *)results[n].data + results[n].byte_offset : NULL;
        if (wanted == NULL) {
            wanted = context->results[n];
            results[n].data = wanted;
            results[n].device_type = 1;
            results[n].device_id = 0;
            results[n].ndim = type->ndim;
            results[n].code = type->code;
            results[n].bits = type->bits;
            results[n].lanes = 1;
            results[n].shape = context->shapes[n];
            results[n].strides = NULL;
            results[n].byte_offset = 0;
            for (axis = 0; axis < type->ndim; axis++) context->shapes[n][axis] = weft_axis(type, axis, context->sizes);
        }
        if (made != wanted || !weft_same_shape(type, context->sizes, wide))
            weft_box(type, context->sizes, wanted, context->sizes, made, wide, 0);
    }
    for (n = 0; n < signature->states; n++) {
        uint8_t *made = weft_end(context, version, tables, signature->results + n);
        uint8_t *own = context->results[signature->results + n];
        if (made != context->states[n] && made != own)
            memcpy(own, made, (size_t)weft_bytes(&signature->state[n], NULL));
    }
    for (n = 0; n < signature->states; n++) {
        uint8_t *made = weft_end(context, version, tables, signature->results + n);
        if (made != context->states[n])
            memcpy(context->states[n], context->results[signature->results + n], (size_t)weft_bytes(&signature->state[n], NULL));
    }
}

/* What the first step that reported a violation has to say. */
static int weft_violation(const weft_version *version, weft_tables *tables, weft_error *error) {
    const char *told = "a violation that no step has reported";
    uint64_t report = 0;
    int64_t value = 0, step;
    char text[400];
    size_t used = 0;
    for (step = version->step_count - 1; step >= 0; step--) {
        uint64_t *words = tables->errors + 4 * step;
        if (version->steps[step].kind != WEFT_LAUNCH || words[0] == WEFT_NOTHING) continue;
        report = words[0];
        value = (int64_t)words[3];
        told = version->steps[step].told[report >> WEFT_ELEMENT_BITS];
        words[0] = WEFT_NOTHING;
    }
    while (*told != 0 && used + 32 < sizeof text) {
        if (strncmp(told, "{value}", 7) == 0) {
            used += (size_t)snprintf(text + used, 32, " %" PRId64, value);
            told += 7;
        } else if (strncmp(told, "{element}", 9) == 0) {
            used += (size_t)snprintf(text + used, 32, "%" PRIu64, report & (((uint64_t)1 << WEFT_ELEMENT_BITS) - 1));
            told += 9;
        } else {
            text[used++] = *told++;
        }
    }
    text[used] = 0;
    return weft_fail(error, WEFT_VIOLATION, "%s", text);
}

static int weft_play(weft_context *context, const weft_version *version, weft_tables *tables, uint64_t seed, weft_error *error) {
    int64_t i, end;
    for (i = 0; i < tables->patch_count; i++) {
        const weft_patch *patch = &tables->patches[i];
        *patch->word = weft_word(context->pointers[patch->number] + patch->offset);
    }
    for (i = 0; i < version->bodies; i++) {
        tables->runs[3 * i] = seed;
        tables->runs[3 * i + 1] = tables->runs[3 * i + 2] = 0;
    }
    for (i = 0; i < version->told_count; i++) context->told[i] = context->sizes[version->told[i]];
    context->state[0] = context->state[1] = context->state[3] = 0;
    end = weft_execute(tables->steps, 0, version->step_count, -1, context->state, context->pool, 0);
    if (context->state[0]) return weft_violation(version, tables, error);
    if (end < -1) {
        const char *const *told = version->steps[-2 - end].told;
        return weft_fail(error, WEFT_ENDLESS, "%s ran %" PRId64 " times without ending", told != NULL ? told[0] : "a loop", context->state[2]);
    }
    return WEFT_OK;
}

static int weft_run_once(weft_context *context, const weft_tensor *inputs, weft_tensor *results, uint64_t seed, weft_error *error) {
    const weft_model *model = context->program->model;
    const weft_signature *signature = model->signature;
    int64_t wide[WEFT_MOST_SIZES];
    int32_t version;
    int failed;
    char text[128];
    if ((inputs == NULL && signature->inputs) || (results == NULL && signature->results))
        return weft_fail(error, WEFT_MISUSE, "%s takes %d inputs and gives %d results", signature->name, (int)signature->inputs, (int)signature->results);
    failed = weft_bind(model, inputs, context->sizes, error);
    if (failed) return failed;
    failed = weft_check_results(model, context->sizes, results, error);
    if (failed) return failed;
    version = weft_pick(model, context->sizes);
    if (version < 0)
        return weft_fail(error, WEFT_WRONG_TENSOR, "the bundle has no program for the sizes %s", weft_shown(text, sizeof text, signature->sizes, context->sizes));
    memcpy(wide, model->versions[version].sizes, (size_t)signature->sizes * sizeof *wide);
    weft_follow(model, wide);
    weft_place(context, inputs, results, wide);
    failed = weft_play(context, &model->versions[version], &context->tables[version], seed, error);
    if (failed) return failed;
    weft_deliver(context, &model->versions[version], &context->tables[version], results, wide);
    return weft_fine(error);
}

static int weft_run(weft_context *context, const weft_tensor *inputs, weft_tensor *results, uint64_t seed, weft_error *error) {
    int32_t idle = 0;
    int failed;
    if (context == NULL) return weft_fail(error, WEFT_MISUSE, "there is no context");
    if (!__atomic_compare_exchange_n(&context->busy, &idle, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
        return weft_fail(error, WEFT_BUSY, "another thread is running this context; make one for each thread");
    failed = weft_run_once(context, inputs, results, seed, error);
    __atomic_store_n(&context->busy, 0, __ATOMIC_RELEASE);
    return failed;
}

/* The shapes of the results for inputs of these shapes, into shapes of the caller. */
static int weft_results(const weft_model *model, const weft_tensor *inputs, weft_tensor *results, weft_error *error) {
    int64_t sizes[WEFT_MOST_SIZES];
    int32_t n, axis;
    int failed;
    if ((inputs == NULL && model->signature->inputs) || (results == NULL && model->signature->results))
        return weft_fail(error, WEFT_MISUSE, "%s takes %d inputs and gives %d results", model->signature->name,
                         (int)model->signature->inputs, (int)model->signature->results);
    failed = weft_bind(model, inputs, sizes, error);
    for (n = 0; !failed && n < model->signature->results; n++) {
        const weft_type *type = &model->signature->result[n];
        if (results[n].shape == NULL && type->ndim > 0)
            return weft_fail(error, WEFT_MISUSE, "there is no room for the shape of the result %s: %d numbers", type->name, (int)type->ndim);
        results[n].ndim = type->ndim;
        results[n].code = type->code;
        results[n].bits = type->bits;
        results[n].lanes = 1;
        results[n].device_type = 1;
        for (axis = 0; axis < type->ndim; axis++) results[n].shape[axis] = weft_axis(type, axis, sizes);
    }
    return failed ? failed : weft_fine(error);
}

/* The memory of a state, which runs read and write. */
static int weft_state(weft_context *context, int32_t number, weft_tensor *state, weft_error *error) {
    const weft_signature *signature;
    const weft_type *type;
    if (context == NULL || state == NULL) return weft_fail(error, WEFT_MISUSE, "there is no context, or no place for its state");
    signature = context->program->model->signature;
    if (number < 0 || number >= signature->states)
        return weft_fail(error, WEFT_MISUSE, "there is no state %d; %s has %d", (int)number, signature->name, (int)signature->states);
    type = &signature->state[number];
    memset(state, 0, sizeof *state);
    state->data = context->states[number];
    state->device_type = 1;
    state->ndim = type->ndim;
    state->code = type->code;
    state->bits = type->bits;
    state->lanes = 1;
    state->shape = (int64_t *)(uintptr_t)type->shape;
    return weft_fine(error);
}
