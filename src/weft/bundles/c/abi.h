#ifndef WEFT_BUNDLE_ABI
#define WEFT_BUNDLE_ABI 1
/* What every bundle of this ABI shares. A program may include the headers of several. */

/* Tensors have the layout of DLPack's DLTensor, so one may be cast to the other. They lie row-major,
   in memory of the CPU, or of the GPU where a model runs on one. */
typedef struct weft_tensor {
    void *data;
    int32_t device_type; /* 1: the CPU; 2: CUDA, 3: pinned by CUDA, 13: managed by CUDA */
    int32_t device_id;
    int32_t ndim;
    uint8_t code;   /* 0 signed, 1 unsigned, 2 float, 4 bfloat, 5 complex, 6 bool, 10 and 12 fp8 */
    uint8_t bits;   /* 4-bit integers take a byte each */
    uint16_t lanes; /* 1 */
    int64_t *shape;
    int64_t *strides; /* null, or those of a row-major tensor */
    uint64_t byte_offset;
} weft_tensor;

typedef struct weft_error {
    int32_t code;
    char text[508];
} weft_error;

enum {
    WEFT_OK = 0,
    WEFT_MISUSE = -1,       /* an argument that cannot be */
    WEFT_NO_MEMORY = -2,    /* there is none, or the limit does not allow it */
    WEFT_NO_FILE = -3,      /* the weights cannot be read */
    WEFT_DAMAGED = -4,      /* the weights are not those of this library */
    WEFT_WRONG_CPU = -5,    /* the processor lacks what the code uses */
    WEFT_WRONG_TENSOR = -6, /* a dtype, shape or size that the model does not take */
    WEFT_VIOLATION = -7,    /* an index out of range, a division by zero */
    WEFT_ENDLESS = -8,      /* a loop went on for too long */
    WEFT_BUSY = -9,         /* another thread is running this context */
    WEFT_NO_DEVICE = -10,   /* there is no GPU that runs the code, or no driver for it */
    WEFT_DRIVER = -11       /* the driver of the GPU failed */
};

/* Everything may be zero but `bytes`. */
typedef struct weft_options {
    uint32_t bytes;                              /* sizeof(weft_options) */
    int32_t threads;                             /* of a run, the caller's among them; 0 is 1 */
    uint64_t memory_limit;                       /* the most bytes a context may take; 0: any */
    void *(*allocate)(void *user, size_t bytes); /* null: malloc */
    void (*release)(void *user, void *memory);
    void *user;
    int32_t verify; /* not 0: the digest of all weights is checked, not only of their table */
    int32_t device; /* the number of the GPU, for models that run on one */
    const char *target; /* whose code is run, of several; null: the best that the machine runs */
} weft_options;

/* A tensor of the model. A negative number n in a shape stands for size -1 - n of the signature. */
typedef struct weft_type {
    const char *name;
    const char *dtype;
    uint8_t code;
    uint8_t bits;
    uint16_t element_bytes;
    int32_t ndim;
    const int64_t *shape;
} weft_type;

/* A size that is not fixed: what it may be. */
typedef struct weft_size {
    const char *name;
    int64_t least;
    int64_t most;
} weft_size;

typedef struct weft_signature {
    uint32_t abi;
    const char *name;
    const char *target;
    const char *made_by;
    int32_t inputs, results, states, sizes;
    const weft_type *input;
    const weft_type *result;
    const weft_type *state;
    const weft_size *size;
} weft_signature;

#elif WEFT_BUNDLE_ABI != 1
#error "bundles of different ABIs are included; build them with one version of Weft"
#endif
