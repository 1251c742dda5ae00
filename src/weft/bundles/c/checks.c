/* -- what is given ----------------------------------------------------------------------------- */

/* Dtype, device, rank and layout of a tensor that somebody gave. */
static int weft_check(const char *what, const weft_type *type, const weft_tensor *given,
                      weft_error *error) {
    int64_t row = 1;
    int32_t axis;
    if (!weft_reaches(given->device_type))
        return weft_fail(error, WEFT_WRONG_TENSOR,
                         "the %s %s is on device type %d; the model takes memory of " WEFT_DEVICES,
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

/* A tensor at an address; the shape of one with open sizes goes to memory of its own. */
static void weft_describe(weft_tensor *tensor, const weft_type *type, const int64_t *sizes,
                          int64_t *shape, void *data, int32_t device) {
    int32_t axis;
    tensor->data = data;
    tensor->device_type = device;
    tensor->device_id = 0;
    tensor->ndim = type->ndim;
    tensor->code = type->code;
    tensor->bits = type->bits;
    tensor->lanes = 1;
    tensor->shape = shape != NULL ? shape : (int64_t *)(uintptr_t)type->shape;
    tensor->strides = NULL;
    tensor->byte_offset = 0;
    for (axis = 0; shape != NULL && axis < type->ndim; axis++)
        shape[axis] = weft_axis(type, axis, sizes);
}

static int weft_check_given(const weft_signature *signature, const weft_tensor *inputs,
                            const weft_tensor *results, weft_error *error) {
    if ((inputs == NULL && signature->inputs) || (results == NULL && signature->results))
        return weft_fail(error, WEFT_MISUSE, "%s takes %d inputs and gives %d results",
                         signature->name, (int)signature->inputs, (int)signature->results);
    return WEFT_OK;
}

/* Check what a run is given, and find the version for its sizes. */
static int weft_choose(const weft_model *model, const weft_tensor *inputs,
                       const weft_tensor *results, int64_t *sizes, int32_t *version,
                       weft_error *error) {
    char text[128];
    int failed = weft_check_given(model->signature, inputs, results, error);
    if (!failed) failed = weft_bind(model, inputs, sizes, error);
    if (!failed) failed = weft_check_results(model, sizes, results, error);
    if (failed) return failed;
    *version = weft_pick(model, sizes);
    if (*version < 0)
        return weft_fail(error, WEFT_WRONG_TENSOR, "the bundle has no program for the sizes %s",
                         weft_shown(text, sizeof text, model->signature->sizes, sizes));
    return WEFT_OK;
}

static int weft_check_state(const weft_signature *signature, int32_t number,
                            const weft_tensor *state, weft_error *error) {
    if (signature == NULL || state == NULL)
        return weft_fail(error, WEFT_MISUSE, "there is no context, or no place for its state");
    if (number < 0 || number >= signature->states)
        return weft_fail(error, WEFT_MISUSE, "there is no state %d; %s has %d", (int)number,
                         signature->name, (int)signature->states);
    return WEFT_OK;
}

/* The shapes of the results for inputs of these shapes, into shapes of the caller. */
static int weft_results(const weft_model *model, const weft_tensor *inputs, weft_tensor *results,
                        weft_error *error) {
    int64_t sizes[WEFT_MOST_SIZES];
    int32_t n, axis;
    int failed;
    failed = weft_check_given(model->signature, inputs, results, error);
    if (!failed) failed = weft_bind(model, inputs, sizes, error);
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

