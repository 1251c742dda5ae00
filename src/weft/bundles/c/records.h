/* What a compiled program is made of, as tables. */

enum {
    WEFT_LAUNCH,
    WEFT_COPY,
    WEFT_ENTER,
    WEFT_JUMP,
    WEFT_UNLESS,
    WEFT_RESET,
    WEFT_LEAVE,
    WEFT_AGAIN
};
enum {
    weft_in_data,
    weft_in_state,
    weft_in_weight,
    weft_in_told,
    weft_in_output,
    weft_in_arena,
    weft_in_run
};

/* Where a buffer is: input, state, weight, size or output number n, a range of the arena, or what
   the random numbers of body n depend on. */
typedef struct weft_slot {
    int32_t space, number;
    int64_t offset;
} weft_slot;

typedef struct weft_kernel weft_kernel;

/* A step, and what it is called where it fails: a sentence for each check of a kernel, or the loop.
 */
typedef struct weft_step {
    int32_t kind;
    int32_t of;    /* kernel, buffer, body or counter */
    int32_t other; /* first argument, or source */
    int64_t numbers[4];
    const char *const *told;
} weft_step;

/* A size that follows from others: the sum of its terms, over a number. */
typedef struct weft_term {
    int64_t times;
    uint64_t sizes; /* bit n: times size n */
} weft_term;

typedef struct weft_follower {
    const weft_term *terms;
    int32_t count;
    int64_t over;
} weft_follower;

/* A program for sizes up to those it was compiled for, or for exactly them. */
typedef struct weft_version {
    const int64_t *sizes;
    const uint8_t *filled; /* whether a size may be less than that */
    const int32_t *told;   /* the sizes that the program is told */
    int32_t told_count;
    const weft_slot *slots;
    int32_t slot_count;
    const weft_kernel *kernels;
    int32_t kernel_count;
    const weft_step *steps;
    int64_t step_count;
    const int32_t *arguments;
    int64_t argument_count;
    const int32_t *results; /* slots of the results, then of the new states */
    int64_t arena_bytes;
    int32_t bodies, counters;
    const int32_t *sections; /* where those end that begin at a step, 0 elsewhere; of a GPU */
} weft_version;

/* A file of the bundle; null: there is none. The table is its first part. */
typedef struct weft_file {
    const char *name;
    int64_t bytes, table_bytes;
    uint8_t table_digest[32], digest[32];
} weft_file;

/* A model compiled for a target. A library has one or several, those that ask for most first. */
typedef struct weft_model {
    const weft_signature *signature;
    const char *target;
    const char *(*missing)(void); /* what this processor lacks of the target, or null */
    int32_t capability[3]; /* of a GPU: generation, the least of it, whether it must be just that */
    weft_file weights;
    weft_file code; /* of a GPU */
    const int64_t *weight_offsets;
    const int64_t *weight_bytes;
    int32_t weight_count;
    const int64_t *first_states; /* offsets of what states begin with; -1: zeros */
    const weft_follower *followers;
    int32_t follower_count;
    const weft_version *versions;
    int32_t version_count;
    int64_t loop_steps;
} weft_model;
