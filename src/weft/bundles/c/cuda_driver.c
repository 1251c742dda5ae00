/* -- the CUDA driver --------------------------------------------------------------------------- */

/* The library of the driver is looked for when a program is opened; nothing of CUDA is needed to
   build or to link. Declared is what is used of it. */

#define WEFT_OUT_OF_MEMORY 2
#define WEFT_SHARED_BYTES 8      /* attributes of functions */
#define WEFT_ANY_CLUSTER 14
#define WEFT_PROCESSORS 16       /* attributes of devices */
#define WEFT_MAJOR 75
#define WEFT_MINOR 76
#define WEFT_EARLY 6             /* attribute of launches */
#define WEFT_APART 1             /* streams that wait for no others */
#define WEFT_RELAXED 2           /* recordings that other calls do not end */

typedef struct weft_plane {
    size_t source_x, source_y;
    int source_type; /* 1: the host's memory, 2: the device's */
    const void *source_host;
    uint64_t source_device;
    void *source_array;
    size_t source_pitch;
    size_t target_x, target_y;
    int target_type;
    void *target_host;
    uint64_t target_device;
    void *target_array;
    size_t target_pitch;
    size_t width, height;
} weft_plane;

typedef struct weft_attribute {
    int id;
    char unused[4];
    union {
        char bytes[64];
        int allowed;
        uint64_t aligned;
    } value;
} weft_attribute;

typedef struct weft_config {
    unsigned grid[3], block[3], shared_bytes;
    void *stream;
    weft_attribute *attributes;
    unsigned count;
} weft_config;

#define WEFT_FUNCTIONS(X)                                                                          \
    X(cuInit, "cuInit", (unsigned))                                                                \
    X(cuGetErrorString, "cuGetErrorString", (int, const char **))                                  \
    X(cuDeviceGetCount, "cuDeviceGetCount", (int *))                                               \
    X(cuDeviceGet, "cuDeviceGet", (int *, int))                                                    \
    X(cuDeviceGetName, "cuDeviceGetName", (char *, int, int))                                      \
    X(cuDeviceGetAttribute, "cuDeviceGetAttribute", (int *, int, int))                             \
    X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (void **, int))                        \
    X(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", (int))                            \
    X(cuCtxPushCurrent, "cuCtxPushCurrent_v2", (void *))                                           \
    X(cuCtxPopCurrent, "cuCtxPopCurrent_v2", (void **))                                            \
    X(cuModuleLoadData, "cuModuleLoadData", (void **, const void *))                               \
    X(cuModuleUnload, "cuModuleUnload", (void *))                                                  \
    X(cuModuleGetFunction, "cuModuleGetFunction", (void **, void *, const char *))                 \
    X(cuFuncSetAttribute, "cuFuncSetAttribute", (void *, int, int))                                \
    X(cuMemAlloc, "cuMemAlloc_v2", (uint64_t *, size_t))                                           \
    X(cuMemFree, "cuMemFree_v2", (uint64_t))                                                       \
    X(cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2", (uint64_t, const void *, size_t, void *))         \
    X(cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2", (void *, uint64_t, size_t, void *))               \
    X(cuMemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2", (uint64_t, uint64_t, size_t, void *))             \
    X(cuMemcpy2DAsync, "cuMemcpy2DAsync_v2", (const weft_plane *, void *))                         \
    X(cuMemsetD8Async, "cuMemsetD8Async", (uint64_t, unsigned char, size_t, void *))               \
    X(cuMemsetD32Async, "cuMemsetD32Async", (uint64_t, unsigned, size_t, void *))                  \
    X(cuStreamCreate, "cuStreamCreate", (void **, unsigned))                                       \
    X(cuStreamDestroy, "cuStreamDestroy_v2", (void *))                                             \
    X(cuStreamSynchronize, "cuStreamSynchronize", (void *))                                        \
    X(cuStreamBeginCapture, "cuStreamBeginCapture_v2", (void *, int))                              \
    X(cuStreamEndCapture, "cuStreamEndCapture", (void *, void **))                                 \
    X(cuGraphInstantiate, "cuGraphInstantiateWithFlags", (void **, void *, unsigned long long))    \
    X(cuGraphDestroy, "cuGraphDestroy", (void *))                                                  \
    X(cuGraphLaunch, "cuGraphLaunch", (void *, void *))                                            \
    X(cuGraphExecDestroy, "cuGraphExecDestroy", (void *))                                          \
    X(cuLaunchKernel, "cuLaunchKernel",                                                            \
      (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *,       \
       void **, void **))                                                                          \
    X(cuLaunchKernelEx, "cuLaunchKernelEx", (const weft_config *, void *, void **, void **))       \
    X(cuTensorMapEncodeTiled, "cuTensorMapEncodeTiled",                                            \
      (void *, int, uint32_t, void *, const uint64_t *, const uint64_t *, const uint32_t *,        \
       const uint32_t *, int, int, int, int))                                                      \
    X(cuTensorMapEncodeIm2col, "cuTensorMapEncodeIm2col",                                          \
      (void *, int, uint32_t, void *, const uint64_t *, const uint64_t *, const int *,             \
       const int *, uint32_t, uint32_t, const uint32_t *, int, int, int, int))

typedef struct weft_driver {
    void *library;
#define X(name, symbol, parameters) int(*name) parameters;
    WEFT_FUNCTIONS(X)
#undef X
} weft_driver;

static int weft_symbol(void *library, const char *symbol, void *place) {
    void *found = dlsym(library, symbol);
    memcpy(place, &found, sizeof found);
    return found != NULL;
}

static int weft_load_driver(weft_driver *driver, weft_error *error) {
    const char *missing = NULL;
    driver->library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (driver->library == NULL)
        return weft_fail(error, WEFT_NO_DEVICE,
                         "there is no CUDA driver on this machine: libcuda.so.1 cannot be loaded");
#define X(name, symbol, parameters)                                                                \
    if (!weft_symbol(driver->library, symbol, &driver->name)) missing = symbol;
    WEFT_FUNCTIONS(X)
#undef X
    if (missing != NULL)
        return weft_fail(error, WEFT_NO_DEVICE,
                         "the CUDA driver of this machine is too old: it has no %s; update it",
                         missing);
    return WEFT_OK;
}

/* What the driver answered, as a sentence. */
static int weft_said(const weft_driver *driver, int status, const char *what, weft_error *error) {
    const char *text = NULL;
    if (status == 0) return WEFT_OK;
    if (driver->cuGetErrorString(status, &text) != 0 || text == NULL) text = "an unknown error";
    return weft_fail(error, status == WEFT_OUT_OF_MEMORY ? WEFT_NO_MEMORY : WEFT_DRIVER,
                     "%s failed: %s (CUDA error %d)", what, text, status);
}
