/* A kernel of a processor: a function, the pieces that threads take of its work, and about how many
   nanoseconds that work is for one thread. */
struct weft_kernel {
    void (*code)(void *, void *, int64_t, int64_t);
    int64_t pieces;
    int64_t work;
};
