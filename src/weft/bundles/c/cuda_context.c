/* -- contexts on a GPU ------------------------------------------------------------------------- */

/* What one version has in a context. */
typedef struct weft_tables {
    void **graphs;   /* by the step that a section begins with */
    uint8_t *errors; /* on the device: a word for each step */
    uint8_t *runs;   /* on the device: what random numbers depend on */
    uint8_t **workspaces;
    int64_t *counters, *entered;
    int32_t ran; /* whether it may have something to report */
    int32_t reports, draws;
} weft_tables;

typedef struct weft_context {
    const weft_program *program;
    void *stream;  /* its own */
    void *pending; /* the one that its last run is in */
    int32_t busy;
    int64_t sizes[WEFT_MOST_SIZES];
    weft_tables *tables;
    uint64_t block;              /* all its memory on the device */
    uint8_t **inputs;            /* on the device, as all but the shapes and `host_results` */
    uint8_t **states, **results; /* room for results, then for new states */
    uint8_t **cut;               /* room for results without what was filled up; null: needs none */
    uint8_t **host_results;
    int64_t **shapes; /* of results in our own memory */
    uint8_t *arena, *told;
    int64_t *host_told;
    uint64_t *words; /* of the host: error words, or what random numbers depend on */
    uint8_t *scratch;
} weft_context;

/* Whether cutting a tensor moves its rows. */
static int weft_moves(const weft_type *type) {
    int32_t axis;
    for (axis = 1; axis < type->ndim; axis++)
        if (type->shape[axis] < 0) return 1;
    return 0;
}

/* All memory of a context on the device. */
static void weft_lay_out_device(weft_context *context, weft_carver *carver,
                                const weft_model *model) {
    const weft_signature *signature = model->signature;
    int32_t n, k, ends = signature->results + signature->states;
    int64_t arena = 0, told = 1;
    int real = carver->base != NULL;
    void *room;
    for (n = 0; n < signature->inputs; n++) {
        room = weft_carve(carver, weft_room(model, &signature->input[n], 0));
        if (real) context->inputs[n] = room;
    }
    for (n = 0; n < signature->states; n++) {
        room = weft_carve(carver, weft_bytes(&signature->state[n], NULL));
        if (real) context->states[n] = room;
    }
    for (n = 0; n < ends; n++) {
        const weft_type *type = n < signature->results ? &signature->result[n]
                                                       : &signature->state[n - signature->results];
        room = weft_carve(carver, weft_room(model, type, 0));
        if (real) context->results[n] = room;
        if (n >= signature->results || !weft_moves(type)) continue;
        room = weft_carve(carver, weft_room(model, type, 0));
        if (real) context->cut[n] = room;
    }
    for (n = 0; n < model->version_count; n++) {
        const weft_version *version = &model->versions[n];
        uint8_t *errors = weft_carve(carver, 8 * version->step_count);
        uint8_t *runs = weft_carve(carver, WEFT_RUN_BYTES * version->bodies);
        if (real) context->tables[n].errors = errors;
        if (real) context->tables[n].runs = runs;
        for (k = 0; k < version->kernel_count; k++) {
            int64_t bytes = version->kernels[k].workspace_bytes;
            room = bytes > 0 ? weft_carve(carver, bytes) : NULL;
            if (real) context->tables[n].workspaces[k] = room;
        }
        if (version->arena_bytes > arena) arena = version->arena_bytes;
        if (version->told_count > told) told = version->told_count;
    }
    room = weft_carve(carver, told * 8);
    if (real) context->told = room;
    room = weft_carve(carver, arena);
    if (real) context->arena = room;
}

/* What a launch is prepared in: its maps, its words, and pointers to them. */
static int64_t weft_scratch_bytes(const weft_version *version) {
    int64_t step, most = 0;
    for (step = 0; step < version->step_count; step++) {
        const weft_step *at = &version->steps[step];
        int64_t bytes;
        if (at->kind != WEFT_LAUNCH) continue;
        bytes = version->kernels[at->of].map_count * (int64_t)(WEFT_MAP_BYTES + sizeof(void *)) +
                (at->numbers[0] + 2) * (int64_t)(8 + sizeof(void *));
        if (bytes > most) most = bytes;
    }
    return most;
}

/* All memory of a context on the host. Where the carver has no block, it is only measured. */
static void weft_lay_out(weft_context *context, weft_carver *carver, const weft_model *model) {
    const weft_signature *signature = model->signature;
    int32_t n, ends = signature->results + signature->states, real = carver->base != NULL;
    int64_t told = 1, words = 1, scratch = 0;
    weft_context none;
    if (context == NULL) context = &none;
    context->tables = weft_carve(carver, model->version_count * (int64_t)sizeof(weft_tables));
    context->inputs = weft_carve(carver, signature->inputs * (int64_t)sizeof(void *));
    context->states = weft_carve(carver, signature->states * (int64_t)sizeof(void *));
    context->results = weft_carve(carver, ends * (int64_t)sizeof(void *));
    context->cut = weft_carve(carver, ends * (int64_t)sizeof(void *));
    context->host_results = weft_carve(carver, ends * (int64_t)sizeof(void *));
    context->shapes = weft_carve(carver, signature->results * (int64_t)sizeof(void *));
    for (n = 0; n < model->version_count; n++) {
        const weft_version *version = &model->versions[n];
        weft_tables own;
        memset(&own, 0, sizeof own);
        own.graphs = weft_carve(carver, version->step_count * (int64_t)sizeof(void *));
        own.workspaces = weft_carve(carver, version->kernel_count * (int64_t)sizeof(void *));
        own.counters = weft_carve(carver, (version->counters + 1) * 8);
        own.entered = weft_carve(carver, version->bodies * 8);
        if (real) context->tables[n] = own;
        if (version->told_count > told) told = version->told_count;
        if (version->step_count > words) words = version->step_count;
        if (2 * version->bodies > words) words = 2 * version->bodies;
        if (weft_scratch_bytes(version) > scratch) scratch = weft_scratch_bytes(version);
    }
    context->host_told = weft_carve(carver, told * 8);
    context->words = weft_carve(carver, words * 8);
    context->scratch = weft_carve(carver, scratch);
    for (n = 0; n < signature->results; n++) {
        void *room = weft_carve(carver, weft_room(model, &signature->result[n], 0));
        void *shape = weft_carve(carver, signature->result[n].ndim * 8);
        if (real) context->host_results[n] = room;
        if (real) context->shapes[n] = shape;
    }
}

static int64_t weft_host_bytes(const weft_model *model) {
    weft_carver carver = {NULL, 0};
    weft_carve(&carver, sizeof(weft_context));
    weft_lay_out(NULL, &carver, model);
    return (int64_t)(carver.used + WEFT_ALIGNMENT + sizeof(void *));
}

static int64_t weft_device_bytes(const weft_model *model) {
    weft_carver carver = {NULL, 0};
    weft_lay_out_device(NULL, &carver, model);
    return (int64_t)carver.used;
}

static int64_t weft_context_bytes(const weft_model *model) {
    return weft_host_bytes(model) + weft_device_bytes(model);
}

/* -- work for the device ----------------------------------------------------------------------- */

static uint64_t weft_word(const void *pointer) { return (uint64_t)(uintptr_t)pointer; }

static int weft_enter(const weft_context *context, weft_error *error) {
    const weft_program *program = context->program;
    return weft_said(&program->driver, program->driver.cuCtxPushCurrent(program->context),
                     "cuCtxPushCurrent", error);
}

static void weft_leave(const weft_context *context) {
    void *popped;
    context->program->driver.cuCtxPopCurrent(&popped);
}

/* One end of a copy. */
typedef struct weft_place {
    uint8_t *data;
    int host; /* whether it is memory of the host */
} weft_place;

static int weft_move(const weft_context *context, weft_place to, weft_place from, int64_t bytes,
                     void *stream, weft_error *error) {
    const weft_driver *driver = &context->program->driver;
    uint64_t target = weft_word(to.data), source = weft_word(from.data);
    int status;
    if (bytes <= 0) return WEFT_OK;
    if (to.host)
        status = driver->cuMemcpyDtoHAsync(to.data, source, (size_t)bytes, stream);
    else if (from.host)
        status = driver->cuMemcpyHtoDAsync(target, from.data, (size_t)bytes, stream);
    else
        status = driver->cuMemcpyDtoDAsync(target, source, (size_t)bytes, stream);
    return weft_said(driver, status, "a copy", error);
}

/* The bytes from one place of an axis to the next. */
static int64_t weft_row(const weft_type *type, int32_t axis, const int64_t *sizes) {
    int64_t bytes = type->element_bytes;
    for (axis++; axis < type->ndim; axis++) bytes *= weft_axis(type, axis, sizes);
    return bytes;
}

/* Whether the axes behind one are whole in both memories. */
static int weft_whole(const weft_type *type, int32_t axis, const int64_t *sizes,
                      const int64_t *one, const int64_t *other) {
    for (axis++; axis < type->ndim; axis++)
        if (weft_axis(type, axis, one) != weft_axis(type, axis, sizes) ||
            weft_axis(type, axis, other) != weft_axis(type, axis, sizes))
            return 0;
    return 1;
}

static int weft_move_rows(const weft_context *context, weft_place to, int64_t to_row,
                          weft_place from, int64_t from_row, int64_t width, int64_t height,
                          void *stream, weft_error *error) {
    const weft_driver *driver = &context->program->driver;
    weft_plane plane;
    if (width <= 0 || height <= 0) return WEFT_OK;
    memset(&plane, 0, sizeof plane);
    plane.source_type = from.host ? 1 : 2;
    plane.source_host = from.host ? from.data : NULL;
    plane.source_device = from.host ? 0 : weft_word(from.data);
    plane.source_pitch = (size_t)from_row;
    plane.target_type = to.host ? 1 : 2;
    plane.target_host = to.host ? to.data : NULL;
    plane.target_device = to.host ? 0 : weft_word(to.data);
    plane.target_pitch = (size_t)to_row;
    plane.width = (size_t)width;
    plane.height = (size_t)height;
    return weft_said(driver, driver->cuMemcpy2DAsync(&plane, stream), "a copy of rows", error);
}

/* Copy a tensor of some sizes between memory that is laid out for others. */
static int weft_move_box(const weft_context *context, const weft_type *type, const int64_t *sizes,
                         weft_place to, const int64_t *to_sizes, weft_place from,
                         const int64_t *from_sizes, int32_t axis, void *stream,
                         weft_error *error) {
    int64_t count = axis < type->ndim ? weft_axis(type, axis, sizes) : 1, i;
    int64_t to_row = weft_row(type, axis, to_sizes), from_row = weft_row(type, axis, from_sizes);
    int failed = WEFT_OK;
    if (weft_whole(type, axis, sizes, to_sizes, from_sizes))
        return weft_move(context, to, from, count * to_row, stream, error);
    if (weft_whole(type, axis + 1, sizes, to_sizes, from_sizes)) {
        int64_t width = weft_axis(type, axis + 1, sizes) * weft_row(type, axis + 1, sizes);
        return weft_move_rows(context, to, to_row, from, from_row, width, count, stream, error);
    }
    for (i = 0; !failed && i < count; i++) {
        failed = weft_move_box(context, type, sizes, to, to_sizes, from, from_sizes, axis + 1,
                               stream, error);
        to.data += to_row;
        from.data += from_row;
    }
    return failed;
}

/* States as they begin. */
static int weft_reset_states(weft_context *context, weft_error *error) {
    const weft_model *model = context->program->model;
    const weft_driver *driver = &context->program->driver;
    int32_t n;
    int failed = WEFT_OK;
    for (n = 0; !failed && n < model->signature->states; n++) {
        int64_t bytes = weft_bytes(&model->signature->state[n], NULL);
        uint64_t at = weft_word(context->states[n]);
        if (bytes == 0) continue;
        if (model->first_states[n] < 0) {
            failed = weft_said(driver,
                               driver->cuMemsetD8Async(at, 0, (size_t)bytes, context->stream),
                               "cuMemsetD8Async", error);
        } else {
            const uint8_t *first = context->program->weights + model->first_states[n];
            weft_place to = {context->states[n], 0}, from = {(uint8_t *)(uintptr_t)first, 1};
            failed = weft_move(context, to, from, bytes, context->stream, error);
        }
    }
    if (!failed)
        failed = weft_said(driver, driver->cuStreamSynchronize(context->stream),
                           "cuStreamSynchronize", error);
    return failed;
}

static void weft_reset(weft_context *context) {
    if (context == NULL || weft_enter(context, NULL)) return;
    if (context->pending != NULL) context->program->driver.cuStreamSynchronize(context->pending);
    weft_reset_states(context, NULL);
    weft_leave(context);
}

static void weft_context_free(weft_context *context) {
    const weft_driver *driver;
    const weft_model *model;
    int32_t v;
    int64_t step;
    if (context == NULL) return;
    driver = &context->program->driver;
    model = context->program->model;
    if (!weft_enter(context, NULL)) {
        if (context->pending != NULL) driver->cuStreamSynchronize(context->pending);
        for (v = 0; v < model->version_count; v++)
            for (step = 0; step < model->versions[v].step_count; step++)
                if (context->tables[v].graphs[step] != NULL)
                    driver->cuGraphExecDestroy(context->tables[v].graphs[step]);
        if (context->stream != NULL) driver->cuStreamSynchronize(context->stream);
        if (context->block) driver->cuMemFree(context->block);
        if (context->stream != NULL) driver->cuStreamDestroy(context->stream);
        weft_leave(context);
    }
    weft_release(&context->program->options, ((void **)(void *)context)[-1]);
}

/* A stream, and memory on the device, which begins with zeros. */
static int weft_furnish(weft_context *context, int64_t bytes, weft_error *error) {
    const weft_program *program = context->program;
    const weft_driver *driver = &program->driver;
    weft_carver carver = {NULL, 0};
    int failed = weft_enter(context, error);
    int status;
    if (failed) return failed;
    status = driver->cuMemAlloc(&context->block, (size_t)bytes);
    if (status == WEFT_OUT_OF_MEMORY)
        failed = weft_fail(error, WEFT_NO_MEMORY,
                           "%s has no memory for a context of %" PRId64 " bytes",
                           program->device_name, bytes);
    else
        failed = weft_said(driver, status, "cuMemAlloc", error);
    if (!failed)
        failed = weft_said(driver, driver->cuStreamCreate(&context->stream, WEFT_APART),
                           "cuStreamCreate", error);
    if (!failed)
        failed = weft_said(
            driver, driver->cuMemsetD8Async(context->block, 0, (size_t)bytes, context->stream),
            "cuMemsetD8Async", error);
    if (!failed) {
        carver.base = (uint8_t *)(uintptr_t)context->block;
        weft_lay_out_device(context, &carver, program->model);
        failed = weft_reset_states(context, error);
    }
    weft_leave(context);
    return failed;
}

static void weft_look(weft_tables *tables, const weft_version *version) {
    int64_t n;
    for (n = 0; n < version->kernel_count; n++)
        tables->reports = tables->reports || version->kernels[n].reports;
    for (n = 0; n < version->slot_count; n++)
        tables->draws = tables->draws || version->slots[n].space == weft_in_run;
}

static int weft_context_new(const weft_program *program, weft_context **made, weft_error *error) {
    weft_carver carver = {NULL, 0};
    weft_context *context;
    int64_t host, device;
    int32_t n;
    int failed;
    uint8_t *block;
    if (program == NULL || made == NULL)
        return weft_fail(error, WEFT_MISUSE, "there is no program, or no place for its context");
    *made = NULL;
    host = weft_host_bytes(program->model);
    device = weft_device_bytes(program->model);
    if (program->options.memory_limit && (uint64_t)(host + device) > program->options.memory_limit)
        return weft_fail(error, WEFT_NO_MEMORY,
                         "a context takes %" PRId64 " bytes, over the limit of %" PRIu64,
                         host + device, program->options.memory_limit);
    block = weft_allocate(&program->options, (size_t)host);
    if (block == NULL)
        return weft_fail(error, WEFT_NO_MEMORY,
                         "there is no memory for a context of %" PRId64 " bytes", host);
    memset(block, 0, (size_t)host);
    /* In front of the context stands where its memory begins. */
    carver.base = block + sizeof(void *);
    carver.base += (WEFT_ALIGNMENT - (uintptr_t)carver.base % WEFT_ALIGNMENT) % WEFT_ALIGNMENT;
    context = weft_carve(&carver, sizeof *context);
    ((void **)(void *)context)[-1] = block;
    context->program = program;
    weft_lay_out(context, &carver, program->model);
    for (n = 0; n < program->model->version_count; n++)
        weft_look(&context->tables[n], &program->model->versions[n]);
    failed = weft_furnish(context, device, error);
    if (failed) {
        weft_context_free(context);
        return failed;
    }
    *made = context;
    return weft_fine(error);
}
