/* -- launches ---------------------------------------------------------------------------------- */

static uint8_t *weft_address(const weft_context *context, const weft_tables *tables,
                             const weft_slot *slot) {
    switch (slot->space) {
    case weft_in_data: return context->inputs[slot->number] + slot->offset;
    case weft_in_state: return context->states[slot->number] + slot->offset;
    case weft_in_weight: return context->program->weight_places[slot->number] + slot->offset;
    case weft_in_told: return context->told + 8 * slot->number + slot->offset;
    case weft_in_output: return context->results[slot->number] + slot->offset;
    case weft_in_run: return tables->runs + WEFT_RUN_BYTES * slot->number + slot->offset;
    default: return context->arena + slot->offset;
    }
}

/* A tensor map as the bytes that a kernel takes. */
static int weft_encode(const weft_driver *driver, const weft_map_of *map, uint8_t *buffer,
                       void *made, weft_error *error) {
    uint8_t *start = buffer + map->offset;
    uint64_t bits = weft_word(start);
    int32_t axis, promotion, status;
    if (bits % 16)
        return weft_fail(error, WEFT_DRIVER, "a buffer lies at no multiple of 16 bytes");
    /* As much of memory is fetched at a time as begins where rows do. */
    for (axis = 0; axis < map->rank - 1; axis++) bits |= map->strides[axis];
    promotion = bits % 256 == 0 ? 3 : bits % 128 == 0 ? 2 : 0;
    if (map->image)
        status = driver->cuTensorMapEncodeIm2col(
            made, map->dtype, (uint32_t)map->rank, start, map->sizes, map->strides, map->lower,
            map->upper, map->box[0], map->box[1], map->steps, 0, map->swizzle, promotion, 0);
    else
        status = driver->cuTensorMapEncodeTiled(made, map->dtype, (uint32_t)map->rank, start,
                                                map->sizes, map->strides, map->box, map->steps, 0,
                                                map->swizzle, promotion, 0);
    return weft_said(driver, status, "a tensor map", error);
}

/* The parameters of a launch: pointers to its maps, and to the addresses that it works on. */
static int weft_prepare(weft_context *context, const weft_version *version, weft_tables *tables,
                        int64_t number, void ***made, weft_error *error) {
    const weft_step *step = &version->steps[number];
    const weft_kernel *kernel = &version->kernels[step->of];
    int64_t words = step->numbers[0], i;
    uint64_t *word = (uint64_t *)(void *)(context->scratch + WEFT_MAP_BYTES * kernel->map_count);
    void **pointers = (void **)(void *)(word + words + 2);
    int failed = WEFT_OK;
    for (i = 0; i < words; i++) {
        const weft_slot *slot = &version->slots[version->arguments[step->other + i]];
        word[i] = weft_word(weft_address(context, tables, slot));
    }
    for (i = 0; !failed && i < kernel->map_count; i++) {
        const weft_map_of *map = &kernel->maps[i];
        uint8_t *bytes = context->scratch + WEFT_MAP_BYTES * i;
        pointers[i] = bytes;
        failed = weft_encode(&context->program->driver, map,
                             (uint8_t *)(uintptr_t)word[map->buffer], bytes, error);
    }
    if (kernel->reports) word[words++] = weft_word(tables->errors + 8 * number);
    if (kernel->workspace_bytes > 0) word[words++] = weft_word(tables->workspaces[step->of]);
    if (kernel->sets > 1) words = 1;
    for (i = 0; i < words; i++) pointers[kernel->map_count + i] = &word[i];
    *made = pointers;
    return failed;
}

/* A launch into the context's stream; one that follows another may start while that one ends. */
static int weft_put_launch(weft_context *context, int32_t v, int64_t number, int follows,
                           weft_error *error) {
    const weft_program *program = context->program;
    const weft_driver *driver = &program->driver;
    const weft_version *version = &program->model->versions[v];
    int32_t of = version->steps[number].of;
    const weft_kernel *kernel = &version->kernels[of];
    void *function = program->functions[weft_first_kernel(program->model, v) + of];
    const uint32_t *grid = kernel->grid, *block = kernel->block;
    unsigned shared = (unsigned)kernel->shared_bytes;
    void **parameters;
    int status, failed = weft_prepare(context, version, &context->tables[v], number, &parameters,
                                      error);
    if (failed) return failed;
    if (follows && kernel->waits) {
        weft_attribute early;
        weft_config config;
        memset(&early, 0, sizeof early);
        early.id = WEFT_EARLY;
        early.value.allowed = 1;
        memset(&config, 0, sizeof config);
        memcpy(config.grid, grid, sizeof config.grid);
        memcpy(config.block, block, sizeof config.block);
        config.shared_bytes = shared;
        config.stream = context->stream;
        config.attributes = &early;
        config.count = 1;
        status = driver->cuLaunchKernelEx(&config, function, parameters, NULL);
    } else {
        status = driver->cuLaunchKernel(function, grid[0], grid[1], grid[2], block[0], block[1],
                                        block[2], shared, context->stream, parameters, NULL);
    }
    return weft_said(driver, status, kernel->symbol, error);
}

static int weft_put_copy(weft_context *context, int32_t v, int64_t number, void *stream,
                         weft_error *error) {
    const weft_version *version = &context->program->model->versions[v];
    const weft_tables *tables = &context->tables[v];
    const weft_step *step = &version->steps[number];
    int64_t turn = tables->counters[step->numbers[1]];
    weft_place to = {weft_address(context, tables, &version->slots[step->of]), 0};
    weft_place from = {weft_address(context, tables, &version->slots[step->other]), 0};
    to.data += turn * step->numbers[2];
    from.data += turn * step->numbers[3];
    return weft_move(context, to, from, step->numbers[0], stream, error);
}

static int weft_put_steps(weft_context *context, int32_t v, int64_t first, int64_t last,
                          weft_error *error) {
    const weft_version *version = &context->program->model->versions[v];
    int64_t n;
    int follows = 0, failed = WEFT_OK;
    for (n = first; !failed && n < last; n++) {
        const weft_step *step = &version->steps[n];
        if (step->kind == WEFT_COPY) {
            failed = weft_put_copy(context, v, n, context->stream, error);
            follows = follows && step->numbers[0] == 0;
        } else if (version->kernels[step->of].grid[0] > 0) {
            failed = weft_put_launch(context, v, n, follows, error);
            follows = 1;
        }
    }
    return failed;
}

/* The graph of a section. All memory that it touches stays where it is, so it is recorded once. */
static int weft_record(weft_context *context, int32_t v, int64_t first, int64_t last,
                       weft_error *error) {
    const weft_driver *driver = &context->program->driver;
    void *graph = NULL;
    int status, failed = weft_said(driver, driver->cuStreamBeginCapture(context->stream,
                                                                        WEFT_RELAXED),
                                   "cuStreamBeginCapture", error);
    if (failed) return failed;
    failed = weft_put_steps(context, v, first, last, error);
    status = driver->cuStreamEndCapture(context->stream, &graph);
    if (!failed) failed = weft_said(driver, status, "cuStreamEndCapture", error);
    if (!failed)
        failed = weft_said(driver,
                           driver->cuGraphInstantiate(&context->tables[v].graphs[first], graph, 0),
                           "cuGraphInstantiate", error);
    if (graph != NULL) driver->cuGraphDestroy(graph);
    return failed;
}

/* -- running ----------------------------------------------------------------------------------- */

/* What the first step of a version that reported a violation has to say; it is forgotten then. */
static int weft_violation(weft_context *context, int32_t v, void *stream, weft_error *error) {
    const weft_driver *driver = &context->program->driver;
    const weft_version *version = &context->program->model->versions[v];
    weft_tables *tables = &context->tables[v];
    weft_place host = {(uint8_t *)context->words, 1}, device = {tables->errors, 0};
    uint64_t report;
    int64_t step;
    int failed;
    if (!tables->reports || !tables->ran) return WEFT_OK;
    failed = weft_move(context, host, device, 8 * version->step_count, stream, error);
    if (!failed)
        failed = weft_said(driver, driver->cuStreamSynchronize(stream), "the run", error);
    if (failed) return failed;
    for (step = 0; step < version->step_count && context->words[step] == 0; step++) continue;
    if (step == version->step_count) return WEFT_OK;
    /* The complement of check and element. */
    report = ~context->words[step];
    driver->cuMemsetD8Async(weft_word(tables->errors), 0, 8 * (size_t)version->step_count, stream);
    driver->cuStreamSynchronize(stream);
    return weft_broken(version->steps[step].told[report >> WEFT_ELEMENT_BITS],
                       report & (((uint64_t)1 << WEFT_ELEMENT_BITS) - 1), NULL, error);
}

/* Wait for all runs, and tell what went wrong in them. */
static int weft_finish(weft_context *context, weft_error *error) {
    const weft_driver *driver = &context->program->driver;
    int32_t v;
    int failed;
    if (context->pending == NULL) return WEFT_OK;
    failed = weft_said(driver, driver->cuStreamSynchronize(context->pending), "the run", error);
    for (v = 0; v < context->program->model->version_count; v++) {
        if (!failed) failed = weft_violation(context, v, context->pending, error);
        context->tables[v].ran = 0;
    }
    context->pending = NULL;
    return failed;
}

/* The sizes that a program is told, what its random numbers depend on, and its inputs. */
static int weft_send(weft_context *context, int32_t v, const weft_tensor *inputs,
                     const int64_t *wide, uint64_t seed, void *stream, weft_error *error) {
    const weft_driver *driver = &context->program->driver;
    const weft_signature *signature = context->program->model->signature;
    const weft_version *version = &context->program->model->versions[v];
    weft_tables *tables = &context->tables[v];
    weft_place told = {context->told, 0}, host_told = {(uint8_t *)context->host_told, 1};
    weft_place runs = {tables->runs, 0}, words = {(uint8_t *)context->words, 1};
    int32_t n;
    int failed;
    for (n = 0; n < version->told_count; n++)
        context->host_told[n] = context->sizes[version->told[n]];
    failed = weft_move(context, told, host_told, 8 * version->told_count, stream, error);
    for (n = 0; n < version->bodies; n++) {
        context->words[2 * n] = seed;
        context->words[2 * n + 1] = 0;
        tables->entered[n] = 0;
    }
    if (!failed && tables->draws)
        failed = weft_move(context, runs, words, WEFT_RUN_BYTES * version->bodies, stream, error);
    for (n = 0; !failed && n < signature->inputs; n++) {
        const weft_type *type = &signature->input[n];
        weft_place to = {context->inputs[n], 0}, from;
        from.data = (uint8_t *)inputs[n].data + inputs[n].byte_offset;
        from.host = inputs[n].device_type == 1 || inputs[n].device_type == 3;
        if (!weft_same_shape(type, context->sizes, wide))
            failed = weft_said(driver,
                               driver->cuMemsetD8Async(weft_word(to.data), 0,
                                                       (size_t)weft_bytes(type, wide), stream),
                               "cuMemsetD8Async", error);
        if (!failed)
            failed = weft_move_box(context, type, context->sizes, to, wide, from, context->sizes,
                                   0, stream, error);
    }
    return failed;
}

/* Whether the flag in a buffer holds. What went wrong before it was made comes first. */
static int weft_holds(weft_context *context, int32_t v, int32_t buffer, void *stream, int *holds,
                      weft_error *error) {
    const weft_driver *driver = &context->program->driver;
    const weft_version *version = &context->program->model->versions[v];
    uint8_t flag = 0;
    weft_place to = {&flag, 1}, from;
    int failed;
    from.data = weft_address(context, &context->tables[v], &version->slots[buffer]);
    from.host = 0;
    failed = weft_move(context, to, from, 1, stream, error);
    if (!failed)
        failed = weft_said(driver, driver->cuStreamSynchronize(stream), "the run", error);
    if (!failed) failed = weft_violation(context, v, stream, error);
    *holds = flag != 0;
    return failed;
}

static int weft_enter_body(weft_context *context, int32_t v, int64_t number, int64_t before,
                           void *stream, weft_error *error) {
    const weft_model *model = context->program->model;
    const weft_step *step = &model->versions[v].steps[number];
    weft_tables *tables = &context->tables[v];
    /* The upper half of the second number. */
    uint64_t word = weft_word(tables->runs) + WEFT_RUN_BYTES * (uint64_t)step->of + 12;
    int status = 0;
    if (before >= model->loop_steps)
        return weft_fail(error, WEFT_ENDLESS, "%s ran %" PRId64 " times without ending",
                         step->told != NULL ? step->told[0] : "a loop", before);
    if (tables->draws)
        status = context->program->driver.cuMemsetD32Async(
            word, (unsigned)tables->entered[step->of], 1, stream);
    tables->entered[step->of]++;
    return weft_said(&context->program->driver, status, "cuMemsetD32Async", error);
}

/* All steps: sections of them are graphs, and the rest is where to go on. */
static int weft_walk(weft_context *context, int32_t v, void *stream, weft_error *error) {
    const weft_driver *driver = &context->program->driver;
    const weft_version *version = &context->program->model->versions[v];
    weft_tables *tables = &context->tables[v];
    int64_t at = 0, bodies = 0;
    int failed = WEFT_OK, holds = 0;
    while (!failed && at < version->step_count) {
        const weft_step *step = &version->steps[at];
        int64_t next = at + 1;
        if (version->sections[at]) {
            next = version->sections[at];
            if (tables->graphs[at] == NULL) failed = weft_record(context, v, at, next, error);
            if (!failed)
                failed = weft_said(driver, driver->cuGraphLaunch(tables->graphs[at], stream),
                                   "cuGraphLaunch", error);
            at = next;
            continue;
        }
        switch (step->kind) {
        case WEFT_COPY: failed = weft_put_copy(context, v, at, stream, error); break;
        case WEFT_ENTER:
            failed = weft_enter_body(context, v, at, bodies++, stream, error);
            break;
        case WEFT_JUMP: next = step->numbers[0]; break;
        case WEFT_UNLESS:
            failed = weft_holds(context, v, step->of, stream, &holds, error);
            if (!holds) next = step->numbers[0];
            break;
        case WEFT_RESET: tables->counters[step->of] = 0; break;
        case WEFT_LEAVE:
            if (tables->counters[step->of] >= step->numbers[0]) next = step->numbers[1];
            break;
        default:
            tables->counters[step->of]++;
            next = step->numbers[0];
        }
        at = next;
    }
    return failed;
}

static uint8_t *weft_end(weft_context *context, int32_t v, int32_t number) {
    const weft_version *version = &context->program->model->versions[v];
    return weft_address(context, &context->tables[v], &version->slots[version->results[number]]);
}

/* New states to where states are. One may be what another was, so all are set aside first. */
static int weft_keep(weft_context *context, int32_t v, void *stream, weft_error *error) {
    const weft_signature *signature = context->program->model->signature;
    int32_t n, turn;
    int failed = WEFT_OK;
    for (turn = 0; turn < 2; turn++)
        for (n = 0; !failed && n < signature->states; n++) {
            uint8_t *made = weft_end(context, v, signature->results + n);
            weft_place own = {context->results[signature->results + n], 0};
            weft_place from = {made, 0}, state = {context->states[n], 0};
            int64_t bytes = weft_bytes(&signature->state[n], NULL);
            if (made == state.data) continue;
            if (turn == 0 && made != own.data)
                failed = weft_move(context, own, from, bytes, stream, error);
            if (turn == 1) failed = weft_move(context, state, own, bytes, stream, error);
        }
    return failed;
}

/* Results to where they are wanted: memory of the caller, or ours on the host or the device. */
static int weft_deliver(weft_context *context, int32_t v, weft_tensor *results,
                        const int64_t *wide, void *stream, weft_error *error) {
    const weft_signature *signature = context->program->model->signature;
    int32_t n;
    int failed = WEFT_OK;
    /* From the last: a result may be what an earlier one is, and lie in its memory. */
    for (n = signature->results - 1; !failed && n >= 0; n--) {
        const weft_type *type = &signature->result[n];
        weft_place from = {weft_end(context, v, n), 0}, to;
        int32_t device = results[n].device_type;
        if (results[n].data == NULL) {
            uint8_t *own = context->cut[n] != NULL ? context->cut[n] : context->results[n];
            device = device == 2 ? 2 : 1;
            weft_describe(&results[n], type, context->sizes, context->shapes[n],
                          device == 2 ? own : context->host_results[n], device);
            results[n].device_id = device == 2 ? context->program->device : 0;
        }
        to.data = (uint8_t *)results[n].data + results[n].byte_offset;
        to.host = device == 1 || device == 3;
        if (to.data != from.data)
            failed = weft_move_box(context, type, context->sizes, to, context->sizes, from, wide,
                                   0, stream, error);
    }
    return failed ? failed : weft_keep(context, v, stream, error);
}

static int weft_start(weft_context *context, const weft_tensor *inputs, weft_tensor *results,
                      uint64_t seed, void *stream, weft_error *error) {
    const weft_model *model = context->program->model;
    const weft_driver *driver = &context->program->driver;
    int64_t wide[WEFT_MOST_SIZES];
    int32_t v;
    int failed = weft_choose(model, inputs, results, context->sizes, &v, error);
    if (failed) return failed;
    memcpy(wide, model->versions[v].sizes, (size_t)model->signature->sizes * sizeof *wide);
    weft_follow(model, wide);
    /* Its memory serves one run after the other. */
    if (context->pending != NULL && context->pending != stream)
        failed = weft_said(driver, driver->cuStreamSynchronize(context->pending), "the run", error);
    if (failed) return failed;
    context->pending = stream;
    context->tables[v].ran = 1;
    failed = weft_send(context, v, inputs, wide, seed, stream, error);
    if (!failed) failed = weft_walk(context, v, stream, error);
    if (!failed) failed = weft_deliver(context, v, results, wide, stream, error);
    if (failed) driver->cuStreamSynchronize(stream);
    return failed;
}

/* One call at a time, with the device's context current. */
static int weft_claim(weft_context *context, weft_error *error) {
    int32_t idle = 0;
    int failed;
    if (context == NULL) return weft_fail(error, WEFT_MISUSE, "there is no context");
    if (!__atomic_compare_exchange_n(&context->busy, &idle, 1, 0, __ATOMIC_ACQUIRE,
                                     __ATOMIC_RELAXED))
        return weft_fail(error, WEFT_BUSY,
                         "another thread is running this context; make one for each thread");
    failed = weft_enter(context, error);
    if (failed) __atomic_store_n(&context->busy, 0, __ATOMIC_RELEASE);
    return failed;
}

static int weft_done(weft_context *context, int failed, weft_error *error) {
    weft_leave(context);
    __atomic_store_n(&context->busy, 0, __ATOMIC_RELEASE);
    return failed ? failed : weft_fine(error);
}

static int weft_run(weft_context *context, const weft_tensor *inputs, weft_tensor *results,
                    uint64_t seed, weft_error *error) {
    int failed = weft_claim(context, error);
    if (failed) return failed;
    failed = weft_start(context, inputs, results, seed, context->stream, error);
    if (!failed) failed = weft_finish(context, error);
    return weft_done(context, failed, error);
}

static int weft_run_async(weft_context *context, const weft_tensor *inputs, weft_tensor *results,
                          uint64_t seed, void *stream, weft_error *error) {
    int failed = weft_claim(context, error);
    if (failed) return failed;
    failed = weft_start(context, inputs, results, seed, stream != NULL ? stream : context->stream,
                        error);
    return weft_done(context, failed, error);
}

static int weft_wait(weft_context *context, weft_error *error) {
    int failed = weft_claim(context, error);
    if (failed) return failed;
    return weft_done(context, weft_finish(context, error), error);
}

/* The memory of a state, which runs read and write. */
static int weft_state(weft_context *context, int32_t number, weft_tensor *state,
                      weft_error *error) {
    const weft_signature *signature = context != NULL ? context->program->model->signature : NULL;
    int failed = weft_check_state(signature, number, state, error);
    if (failed) return failed;
    weft_describe(state, &signature->state[number], NULL, NULL, context->states[number], 2);
    state->device_id = context->program->device;
    return weft_fine(error);
}

/* The elements of a state to memory of the host, or from there. */
static int weft_copy_state(weft_context *context, int32_t number, void *host, int into,
                           weft_error *error) {
    weft_tensor state;
    weft_place memory = {host, 1}, device;
    int failed = weft_claim(context, error);
    if (failed) return failed;
    failed = weft_state(context, number, &state, error);
    if (!failed && host == NULL)
        failed = weft_fail(error, WEFT_MISUSE, "there is no memory to copy the state from or to");
    if (!failed) failed = weft_finish(context, error);
    if (!failed) {
        const weft_driver *driver = &context->program->driver;
        const weft_type *type = &context->program->model->signature->state[number];
        device.data = state.data;
        device.host = 0;
        failed = weft_move(context, into ? device : memory, into ? memory : device,
                           weft_bytes(type, NULL), context->stream, error);
        if (!failed)
            failed = weft_said(driver, driver->cuStreamSynchronize(context->stream), "a copy",
                               error);
    }
    return weft_done(context, failed, error);
}
