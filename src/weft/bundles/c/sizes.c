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

/* The most bytes that a tensor takes in any version; 0 where `only_filled` and it is never filled.
 */
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

