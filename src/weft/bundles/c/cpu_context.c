/* -- contexts ---------------------------------------------------------------------------------- */

/* Copy a tensor of some sizes between memory that is laid out for others. Within one memory,
   towards its front, each row comes onto places that were read already. */
static void weft_box(const weft_type *type, const int64_t *sizes, uint8_t *target,
                     const int64_t *target_sizes, const uint8_t *source,
                     const int64_t *source_sizes, int32_t axis) {
    int64_t target_row = type->element_bytes, source_row = type->element_bytes, i, count;
    int32_t inner, same = 1;
    for (inner = axis + 1; inner < type->ndim; inner++) {
        int64_t here = weft_axis(type, inner, target_sizes),
                there = weft_axis(type, inner, source_sizes);
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
        weft_box(type, sizes, target + i * target_row, target_sizes, source + i * source_row,
                 source_sizes, axis + 1);
}

static uint8_t *weft_address(const weft_context *context, weft_tables *tables,
                             const weft_slot *slot) {
    const weft_program *program = context->program;
    switch (slot->space) {
    case weft_in_state: return context->states[slot->number] + slot->offset;
    case weft_in_weight:
        return (uint8_t *)(uintptr_t)program->weights +
               program->model->weight_offsets[slot->number] + slot->offset;
    case weft_in_told: return (uint8_t *)(context->told + slot->number);
    case weft_in_arena: return context->arena + slot->offset;
    case weft_in_run: return (uint8_t *)(tables->runs + 3 * slot->number);
    default: return NULL;
    }
}

/* Make a word point to a buffer: now where its address stays, else in every run. */
static void weft_point(const weft_context *context, weft_tables *tables, uint64_t *word,
                       const weft_slot *slot) {
    const weft_signature *signature = context->program->model->signature;
    if (slot->space == weft_in_data || slot->space == weft_in_output) {
        weft_patch *patch = &tables->patches[tables->patch_count++];
        patch->word = word;
        patch->number = slot->number + (slot->space == weft_in_output ? signature->inputs : 0);
        patch->offset = slot->offset;
    } else {
        *word = (uint64_t)(uintptr_t)weft_address(context, tables, slot);
    }
}

static uint64_t weft_word(const void *pointer) { return (uint64_t)(uintptr_t)pointer; }

/* How many pieces a thread takes at a time, how many threads come, and whether those that sleep are
   woken, by the rules of `weft.runtime.threads`; woken for each that is shared. */
static void weft_share_out(const weft_kernel *kernel, int64_t threads, uint64_t *words) {
    int64_t pieces = kernel->pieces, wanted = 0, grabs;
    while (wanted < threads && (wanted + 1) * (wanted + 1) <= kernel->work / WEFT_OF_A_THREAD)
        wanted++;
    if (wanted > pieces) wanted = pieces;
    if (kernel->work < WEFT_WORTH_SHARING || wanted < 2) {
        words[0] = (uint64_t)pieces;
        words[1] = 1;
        return;
    }
    grabs = kernel->work / WEFT_OF_A_GRAB;
    if (grabs < wanted) grabs = wanted;
    if (grabs > WEFT_GRABS * wanted) grabs = WEFT_GRABS * wanted;
    words[0] = (uint64_t)(pieces > grabs ? pieces / grabs : 1);
    words[1] = (uint64_t)wanted;
    words[2] = 1;
}

static void weft_launch(weft_context *context, const weft_version *version, weft_tables *tables,
                        int64_t number) {
    const weft_step *step = &version->steps[number];
    const weft_kernel *kernel = &version->kernels[step->of];
    uint64_t *words = tables->steps + WEFT_STEP_WORDS * number,
             *error = tables->errors + 4 * number;
    int64_t threads = context->program->options.threads > 1 ? context->program->options.threads : 1;
    int64_t i;
    union {
        void (*code)(void *, void *, int64_t, int64_t);
        uint64_t word;
    } address;
    address.word = 0;
    address.code = kernel->code;
    words[1] = address.word;
    words[2] = weft_word(tables->arguments + step->other);
    words[3] = weft_word(error);
    words[4] = (uint64_t)kernel->pieces;
    weft_share_out(kernel, threads, words + 5);
    error[0] = WEFT_NOTHING;
    error[1] = weft_word(context->state);
    error[2] = error[3] = 0;
    for (i = 0; i < step->numbers[0]; i++)
        weft_point(context, tables, tables->arguments + step->other + i,
                   &version->slots[version->arguments[step->other + i]]);
}

/* The words of one step, as the executor reads them. */
static void weft_write_step(weft_context *context, const weft_version *version, weft_tables *tables,
                            int64_t number) {
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
        own.patches = weft_carve(carver, (version->argument_count + 2 * version->step_count) *
                                             (int64_t)sizeof(weft_patch));
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
        const weft_type *type = n < signature->results ? &signature->result[n]
                                                       : &signature->state[n - signature->results];
        void *room = weft_carve(carver, weft_room(model, type, 0));
        void *shape = weft_carve(carver, type->ndim * 8);
        if (carver->base != NULL) context->results[n] = room;
        if (carver->base != NULL && n < signature->results) context->shapes[n] = shape;
    }
    context->arena = weft_carve(carver, arena);
}

/* States as they begin; where their memory is zeros, those that are zeros are left as they are. */
static void weft_begin(weft_context *context, int zeros) {
    const weft_model *model = context->program->model;
    int32_t n;
    for (n = 0; n < model->signature->states; n++) {
        size_t bytes = (size_t)weft_bytes(&model->signature->state[n], NULL);
        if (model->first_states[n] >= 0)
            memcpy(context->states[n], context->program->weights + model->first_states[n], bytes);
        else if (!zeros)
            memset(context->states[n], 0, bytes);
    }
}

static void weft_reset(weft_context *context) { weft_begin(context, 0); }

static int64_t weft_context_bytes(const weft_model *model) {
    weft_carver carver = {NULL, 0};
    weft_carve(&carver, sizeof(weft_context));
    weft_lay_out(NULL, &carver, model);
    /* In front of the context stands where its memory begins. */
    return (int64_t)(carver.used + WEFT_ALIGNMENT + sizeof(void *));
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
    int own;
    uint8_t *block;
    if (program == NULL || made == NULL)
        return weft_fail(error, WEFT_MISUSE, "there is no program, or no place for its context");
    *made = NULL;
    model = program->model;
    bytes = weft_context_bytes(model);
    if (program->options.memory_limit && (uint64_t)bytes > program->options.memory_limit)
        return weft_fail(error, WEFT_NO_MEMORY,
                         "a context takes %" PRId64 " bytes, over the limit of %" PRIu64, bytes,
                         program->options.memory_limit);
    /* A large block of the C library is zeros that take no memory before they are written. */
    own = program->options.allocate == NULL;
    block = own ? calloc(1, (size_t)bytes) : weft_allocate(&program->options, (size_t)bytes);
    if (block == NULL)
        return weft_fail(error, WEFT_NO_MEMORY,
                         "there is no memory for a context of %" PRId64 " bytes", bytes);
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
    weft_begin(context, own);
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
