/* -- running ----------------------------------------------------------------------------------- */

/* Dtype, device, rank and layout of a tensor that somebody gave. */
static int weft_check(const char *what, const weft_type *type, const weft_tensor *given,
                      weft_error *error) {
    int64_t row = 1;
    int32_t axis;
    if (given->device_type != 1)
        return weft_fail(error, WEFT_WRONG_TENSOR,
                         "the %s %s is on device type %d; the model takes memory of the CPU, 1",
                         what, type->name, (int)given->device_type);
    if (given->code != type->code || given->bits != type->bits || given->lanes != 1)
        return weft_fail(error, WEFT_WRONG_TENSOR,
                         "the %s %s has DLPack's type code %d with %d bits and %d lanes; the model "
                         "has %s: code %d with %d bits and 1 lane",
                         what, type->name, given->code, given->bits, given->lanes, type->dtype,
                         type->code, type->bits);
    if (given->ndim != type->ndim)
        return weft_fail(error, WEFT_WRONG_TENSOR, "the %s %s has %d axes, not %d", what,
                         type->name, (int)given->ndim, (int)type->ndim);
    if (type->ndim > 0 && given->shape == NULL)
        return weft_fail(error, WEFT_WRONG_TENSOR, "the %s %s has no shape", what, type->name);
    for (axis = 0; axis < type->ndim; axis++)
        if (given->shape[axis] < 0)
            return weft_fail(error, WEFT_WRONG_TENSOR, "axis %d of the %s %s has size %" PRId64,
                             (int)axis, what, type->name, given->shape[axis]);
    for (axis = type->ndim - 1; given->strides != NULL && axis >= 0; axis--) {
        if (given->shape[axis] > 1 && given->strides[axis] != row)
            return weft_fail(error, WEFT_WRONG_TENSOR,
                             "the %s %s does not lie row-major; copy it first", what, type->name);
        row *= given->shape[axis];
    }
    if (((uintptr_t)given->data + given->byte_offset) %
            (type->element_bytes > 8 ? 8 : type->element_bytes) !=
        0)
        return weft_fail(error, WEFT_WRONG_TENSOR,
                         "the memory of the %s %s is not aligned to its elements", what,
                         type->name);
    return WEFT_OK;
}

/* The sizes that the inputs have, each the same wherever it stands, and inside its range. */
static int weft_bind(const weft_model *model, const weft_tensor *inputs, int64_t *sizes,
                     weft_error *error) {
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
                    return weft_fail(error, WEFT_WRONG_TENSOR,
                                     "axis %d of the input %s has size %" PRId64
                                     "; %s is from %" PRId64 " to %" PRId64,
                                     (int)axis, type->name, given, size->name, size->least,
                                     size->most);
                if (sizes[-1 - wanted] < 0) sizes[-1 - wanted] = given;
                wanted = sizes[-1 - wanted];
            }
            if (given != wanted)
                return weft_fail(error, WEFT_WRONG_TENSOR,
                                 "axis %d of the input %s has size %" PRId64 ", not %s%s%" PRId64,
                                 (int)axis, type->name, given, size != NULL ? size->name : "",
                                 size != NULL ? " = " : "", wanted);
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

static int weft_check_results(const weft_model *model, const int64_t *sizes,
                              const weft_tensor *results, weft_error *error) {
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
                return weft_fail(error, WEFT_WRONG_TENSOR,
                                 "axis %d of the result %s has size %" PRId64 ", not %" PRId64,
                                 (int)axis, type->name, results[n].shape[axis], wanted);
        }
    }
    return WEFT_OK;
}

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
    int32_t n, axis;
    /* From the last: a result may be what an earlier one is, and lie in its memory. */
    for (n = signature->results - 1; n >= 0; n--) {
        const weft_type *type = &signature->result[n];
        uint8_t *made = weft_end(context, version, tables, n);
        uint8_t *wanted =
            results[n].data != NULL ? (uint8_t *)results[n].data + results[n].byte_offset : NULL;
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
            for (axis = 0; axis < type->ndim; axis++)
                context->shapes[n][axis] = weft_axis(type, axis, context->sizes);
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
            used += (size_t)snprintf(text + used, 32, "%" PRIu64,
                                     report & (((uint64_t)1 << WEFT_ELEMENT_BITS) - 1));
            told += 9;
        } else {
            text[used++] = *told++;
        }
    }
    text[used] = 0;
    return weft_fail(error, WEFT_VIOLATION, "%s", text);
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
    char text[128];
    if ((inputs == NULL && signature->inputs) || (results == NULL && signature->results))
        return weft_fail(error, WEFT_MISUSE, "%s takes %d inputs and gives %d results",
                         signature->name, (int)signature->inputs, (int)signature->results);
    failed = weft_bind(model, inputs, context->sizes, error);
    if (failed) return failed;
    failed = weft_check_results(model, context->sizes, results, error);
    if (failed) return failed;
    version = weft_pick(model, context->sizes);
    if (version < 0)
        return weft_fail(error, WEFT_WRONG_TENSOR, "the bundle has no program for the sizes %s",
                         weft_shown(text, sizeof text, signature->sizes, context->sizes));
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

/* The shapes of the results for inputs of these shapes, into shapes of the caller. */
static int weft_results(const weft_model *model, const weft_tensor *inputs, weft_tensor *results,
                        weft_error *error) {
    int64_t sizes[WEFT_MOST_SIZES];
    int32_t n, axis;
    int failed;
    if ((inputs == NULL && model->signature->inputs) ||
        (results == NULL && model->signature->results))
        return weft_fail(error, WEFT_MISUSE, "%s takes %d inputs and gives %d results",
                         model->signature->name, (int)model->signature->inputs,
                         (int)model->signature->results);
    failed = weft_bind(model, inputs, sizes, error);
    for (n = 0; !failed && n < model->signature->results; n++) {
        const weft_type *type = &model->signature->result[n];
        if (results[n].shape == NULL && type->ndim > 0)
            return weft_fail(error, WEFT_MISUSE,
                             "there is no room for the shape of the result %s: %d numbers",
                             type->name, (int)type->ndim);
        results[n].ndim = type->ndim;
        results[n].code = type->code;
        results[n].bits = type->bits;
        results[n].lanes = 1;
        results[n].device_type = 1;
        for (axis = 0; axis < type->ndim; axis++)
            results[n].shape[axis] = weft_axis(type, axis, sizes);
    }
    return failed ? failed : weft_fine(error);
}

/* The memory of a state, which runs read and write. */
static int weft_state(weft_context *context, int32_t number, weft_tensor *state,
                      weft_error *error) {
    const weft_signature *signature;
    const weft_type *type;
    if (context == NULL || state == NULL)
        return weft_fail(error, WEFT_MISUSE, "there is no context, or no place for its state");
    signature = context->program->model->signature;
    if (number < 0 || number >= signature->states)
        return weft_fail(error, WEFT_MISUSE, "there is no state %d; %s has %d", (int)number,
                         signature->name, (int)signature->states);
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
