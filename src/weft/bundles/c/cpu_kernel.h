/* A kernel of a processor: a function, and the pieces that threads take of its work. */
struct weft_kernel {
    void (*code)(void *, void *, int64_t, int64_t);
    int64_t pieces;
    int32_t small;
};
