/* -- running ----------------------------------------------------------------------------------- */

/* Where this run's inputs and results are: the caller's memory where that has the right layout. */
static void weft_place(weft_context *context, const weft_tensor *inputs, const weft_tensor *results,
                       const int64_t *wide) {
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

static uint8_t *weft_end(weft_context *context, const weft_version *version, weft_tables *tables,
                         int32_t number) {
    const weft_signature *signature = context->program->model->signature;
    const weft_slot *slot = &version->slots[version->results[number]];
    if (slot->space == weft_in_data) return context->pointers[slot->number] + slot->offset;
    if (slot->space == weft_in_output)
        return context->pointers[signature->inputs + slot->number] + slot->offset;
    return weft_address(context, tables, slot);
}

/* Results to where they are wanted, and new states to where states are. */
static void weft_deliver(weft_context *context, const weft_version *version, weft_tables *tables,
                         weft_tensor *results, const int64_t *wide) {
    const weft_signature *signature = context->program->model->signature;
    int32_t n;
    /* From the last: a result may be what an earlier one is, and lie in its memory. */
    for (n = signature->results - 1; n >= 0; n--) {
        const weft_type *type = &signature->result[n];
        uint8_t *made = weft_end(context, version, tables, n);
        uint8_t *wanted =
            results[n].data != NULL ? (uint8_t *)results[n].data + results[n].byte_offset : NULL;
        if (wanted == NULL) {
            wanted = context->results[n];
            weft_describe(&results[n], type, context->sizes, context->shapes[n], wanted, 1);
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
            memcpy(context->states[n], context->results[signature->results + n],
                   (size_t)weft_bytes(&signature->state[n], NULL));
    }
}

/* What the first step that reported a violation has to say. */
static int weft_violation(const weft_version *version, weft_tables *tables, weft_error *error) {
    const char *told = "a violation that no step has reported";
    uint64_t report = 0;
    int64_t value = 0, step;
    for (step = version->step_count - 1; step >= 0; step--) {
        uint64_t *words = tables->errors + 4 * step;
        if (version->steps[step].kind != WEFT_LAUNCH || words[0] == WEFT_NOTHING) continue;
        report = words[0];
        value = (int64_t)words[3];
        told = version->steps[step].told[report >> WEFT_ELEMENT_BITS];
        words[0] = WEFT_NOTHING;
    }
    return weft_broken(told, report & (((uint64_t)1 << WEFT_ELEMENT_BITS) - 1), &value, error);
}

static int weft_play(weft_context *context, const weft_version *version, weft_tables *tables,
                     uint64_t seed, weft_error *error) {
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
        return weft_fail(error, WEFT_ENDLESS, "%s ran %" PRId64 " times without ending",
                         told != NULL ? told[0] : "a loop", context->state[2]);
    }
    return WEFT_OK;
}

static int weft_run_once(weft_context *context, const weft_tensor *inputs, weft_tensor *results,
                         uint64_t seed, weft_error *error) {
    const weft_model *model = context->program->model;
    const weft_signature *signature = model->signature;
    int64_t wide[WEFT_MOST_SIZES];
    int32_t version;
    int failed;
    failed = weft_choose(model, inputs, results, context->sizes, &version, error);
    if (failed) return failed;
    memcpy(wide, model->versions[version].sizes, (size_t)signature->sizes * sizeof *wide);
    weft_follow(model, wide);
    weft_place(context, inputs, results, wide);
    failed = weft_play(context, &model->versions[version], &context->tables[version], seed, error);
    if (failed) return failed;
    weft_deliver(context, &model->versions[version], &context->tables[version], results, wide);
    return weft_fine(error);
}

static int weft_run(weft_context *context, const weft_tensor *inputs, weft_tensor *results,
                    uint64_t seed, weft_error *error) {
    int32_t idle = 0;
    int failed;
    if (context == NULL) return weft_fail(error, WEFT_MISUSE, "there is no context");
    if (!__atomic_compare_exchange_n(&context->busy, &idle, 1, 0, __ATOMIC_ACQUIRE,
                                     __ATOMIC_RELAXED))
        return weft_fail(error, WEFT_BUSY,
                         "another thread is running this context; make one for each thread");
    failed = weft_run_once(context, inputs, results, seed, error);
    __atomic_store_n(&context->busy, 0, __ATOMIC_RELEASE);
    return failed;
}

/* The memory of a state, which runs read and write. */
static int weft_state(weft_context *context, int32_t number, weft_tensor *state,
                      weft_error *error) {
    const weft_signature *signature = context != NULL ? context->program->model->signature : NULL;
    int failed = weft_check_state(signature, number, state, error);
    if (failed) return failed;
    weft_describe(state, &signature->state[number], NULL, NULL, context->states[number], 1);
    return weft_fine(error);
}
