/* -- programs on a GPU ------------------------------------------------------------------------- */

#define WEFT_ALIGNMENT 256
#define WEFT_ELEMENT_BITS 40
#define WEFT_MAP_BYTES 128
#define WEFT_RUN_BYTES 16
#define WEFT_DEVICES "the CPU, 1, or of CUDA, 2"

typedef struct weft_program {
    const weft_model *model;
    weft_options options;
    weft_driver driver;
    int device, retained;
    void *context; /* the device's primary one, which other libraries share */
    char device_name[128];
    int processors;
    const uint8_t *weights;
    uint64_t device_weights;
    uint8_t **weight_places; /* on the device */
    void **modules;          /* of every kernel of every version */
    void **functions;
} weft_program;

static int weft_reaches(int32_t device_type) {
    return device_type == 1 || device_type == 2 || device_type == 3 || device_type == 13;
}

static size_t weft_rounded(size_t bytes) {
    return (bytes + WEFT_ALIGNMENT - 1) / WEFT_ALIGNMENT * WEFT_ALIGNMENT;
}

/* The number of the first kernel of a version among all. */
static int64_t weft_first_kernel(const weft_model *model, int32_t version) {
    int64_t count = 0;
    int32_t v;
    for (v = 0; v < version; v++) count += model->versions[v].kernel_count;
    return count;
}

static void weft_close(weft_program *program) {
    const weft_driver *driver;
    int64_t n, count;
    void *popped;
    if (program == NULL) return;
    driver = &program->driver;
    count = weft_first_kernel(program->model, program->model->version_count);
    if (program->context != NULL && driver->cuCtxPushCurrent(program->context) == 0) {
        for (n = 0; n < count; n++)
            if (program->modules[n] != NULL) driver->cuModuleUnload(program->modules[n]);
        if (program->device_weights) driver->cuMemFree(program->device_weights);
        driver->cuCtxPopCurrent(&popped);
    }
    if (program->retained) driver->cuDevicePrimaryCtxRelease(program->device);
    if (driver->library != NULL) dlclose(driver->library);
    weft_unmap(&program->model->weights, program->weights);
    weft_release(&program->options, program);
}

/* The first model that such a GPU runs. */
static const weft_model *weft_find(const weft_model *all, const weft_options *options, int major,
                                   int minor) {
    int32_t n;
    for (n = 0; n < model_count; n++) {
        const int32_t *least = all[n].capability;
        if (weft_wanted(&all[n], options) && major == least[0] && minor >= least[1] &&
            (!least[2] || minor == least[1]))
            return &all[n];
    }
    return NULL;
}

/* The GPU that the options name, and the model that it runs. */
static int weft_open_device(weft_program *program, const weft_model *all, weft_error *error) {
    const weft_driver *driver = &program->driver;
    const char *name = all->signature->name;
    const weft_model *found;
    int count = 0, major = 0, minor = 0, failed, wanted = program->options.device;
    int status = driver->cuInit(0);
    const char *text = NULL;
    if (status == 0) status = driver->cuDeviceGetCount(&count);
    if (status != 0 && driver->cuGetErrorString(status, &text) != 0) text = NULL;
    if (status != 0)
        return weft_fail(error, WEFT_NO_DEVICE,
                         "the CUDA driver of this machine does not start: %s (CUDA error %d)",
                         text != NULL ? text : "an unknown error", status);
    if (wanted < 0 || wanted >= count)
        return weft_fail(error, WEFT_NO_DEVICE, "there is no GPU number %d: the machine has %d",
                         wanted, count);
    failed = weft_said(driver, driver->cuDeviceGet(&program->device, wanted), "cuDeviceGet", error);
    if (failed) return failed;
    driver->cuDeviceGetName(program->device_name, (int)sizeof program->device_name,
                            program->device);
    driver->cuDeviceGetAttribute(&major, WEFT_MAJOR, program->device);
    driver->cuDeviceGetAttribute(&minor, WEFT_MINOR, program->device);
    driver->cuDeviceGetAttribute(&program->processors, WEFT_PROCESSORS, program->device);
    found = weft_find(all, &program->options, major, minor);
    if (found == NULL)
        return weft_fail(error, WEFT_NO_DEVICE,
                         "%s was built for %s, whose code %s, an SM%d%d, does not run", name,
                         weft_built_for(all, &program->options), program->device_name, major,
                         minor);
    program->model = found;
    status = driver->cuDevicePrimaryCtxRetain(&program->context, program->device);
    failed = weft_said(driver, status, "cuDevicePrimaryCtxRetain", error);
    program->retained = !failed;
    return failed;
}

/* The weights to the device, each at a place that any kernel can begin at. */
static int weft_upload_weights(weft_program *program, weft_error *error) {
    const weft_model *model = program->model;
    const weft_driver *driver = &program->driver;
    size_t total = 0, place = 0;
    int32_t n;
    int failed;
    for (n = 0; n < model->weight_count; n++) total += weft_rounded((size_t)model->weight_bytes[n]);
    if (total == 0) return WEFT_OK;
    failed = driver->cuMemAlloc(&program->device_weights, total);
    if (failed == WEFT_OUT_OF_MEMORY)
        return weft_fail(error, WEFT_NO_MEMORY, "%s has no memory for %zu bytes of weights",
                         program->device_name, total);
    failed = weft_said(driver, failed, "cuMemAlloc", error);
    for (n = 0; !failed && n < model->weight_count; n++) {
        uint64_t at = program->device_weights + place;
        size_t bytes = (size_t)model->weight_bytes[n];
        const uint8_t *from = program->weights + model->weight_offsets[n];
        program->weight_places[n] = (uint8_t *)(uintptr_t)at;
        if (bytes > 0)
            failed = weft_said(driver, driver->cuMemcpyHtoDAsync(at, from, bytes, NULL),
                               "the upload of the weights", error);
        place += weft_rounded(bytes);
    }
    if (!failed)
        failed = weft_said(driver, driver->cuStreamSynchronize(NULL), "the upload of the weights",
                           error);
    return failed;
}

static int weft_load_kernel(weft_program *program, const weft_kernel *kernel, const uint8_t *code,
                            int64_t number, weft_error *error) {
    const weft_driver *driver = &program->driver;
    void *function = NULL;
    int failed;
    if (kernel->grid[0] == 0) return WEFT_OK;
    if (kernel->together && kernel->grid[0] > (uint32_t)program->processors)
        return weft_fail(error, WEFT_NO_DEVICE,
                         "the %u blocks of the kernel %s wait for one another, and %s runs %d at "
                         "once: build for a GPU like it",
                         (unsigned)kernel->grid[0], kernel->symbol, program->device_name,
                         program->processors);
    failed = driver->cuModuleLoadData(&program->modules[number], code + kernel->offset);
    if (failed) {
        program->modules[number] = NULL;
        weft_said(driver, failed, "cuModuleLoadData", error);
        return weft_fail(error, WEFT_NO_DEVICE,
                         "the CUDA driver of this machine cannot load the kernel %s for %s (CUDA "
                         "error %d): update the driver",
                         kernel->symbol, program->device_name, failed);
    }
    failed = weft_said(
        driver,
        driver->cuModuleGetFunction(&function, program->modules[number], kernel->symbol),
        "cuModuleGetFunction", error);
    program->functions[number] = function;
    if (!failed && kernel->shared_bytes > 0 &&
        driver->cuFuncSetAttribute(function, WEFT_SHARED_BYTES, kernel->shared_bytes) != 0)
        return weft_fail(error, WEFT_NO_DEVICE,
                         "the kernel %s takes %d bytes of shared memory, which %s does not have",
                         kernel->symbol, (int)kernel->shared_bytes, program->device_name);
    if (!failed && kernel->cluster > 8)
        failed = weft_said(driver, driver->cuFuncSetAttribute(function, WEFT_ANY_CLUSTER, 1),
                           "cuFuncSetAttribute", error);
    return failed;
}

static int weft_load_kernels(weft_program *program, const uint8_t *code, weft_error *error) {
    const weft_model *model = program->model;
    int64_t number = 0;
    int32_t v, k;
    int failed = WEFT_OK;
    for (v = 0; v < model->version_count; v++)
        for (k = 0; !failed && k < model->versions[v].kernel_count; k++, number++)
            failed = weft_load_kernel(program, &model->versions[v].kernels[k], code, number, error);
    return failed;
}

static int weft_fill_device(weft_program *program, const char *folder, weft_error *error) {
    const weft_model *model = program->model;
    const uint8_t *code = NULL;
    void *popped;
    int failed = weft_said(&program->driver, program->driver.cuCtxPushCurrent(program->context),
                           "cuCtxPushCurrent", error);
    if (failed) return failed;
    failed = weft_upload_weights(program, error);
    /* Code is looked at whole before any of it is loaded. */
    if (!failed) failed = weft_map(&program->options, folder, &model->code, 1, &code, error);
    if (!failed) failed = weft_load_kernels(program, code, error);
    weft_unmap(&model->code, code);
    program->driver.cuCtxPopCurrent(&popped);
    return failed;
}

/* The kernels of the model that has most. */
static size_t weft_most_kernels(const weft_model *all) {
    int64_t most = 0, count;
    int32_t n;
    for (n = 0; n < model_count; n++) {
        count = weft_first_kernel(&all[n], all[n].version_count);
        if (count > most) most = count;
    }
    return (size_t)most;
}

static int weft_open(const weft_model *all, const char *folder, const weft_options *given,
                     weft_program **made, weft_error *error) {
    weft_options options;
    weft_program *program;
    size_t kernels = weft_most_kernels(all), head, bytes;
    int failed;
    if (made == NULL) return weft_fail(error, WEFT_MISUSE, "there is no place for the program");
    *made = NULL;
    failed = weft_read_options(given, &options, error);
    if (!failed) failed = weft_check_target(all, &options, error);
    if (failed) return failed;
    head = weft_rounded(sizeof *program);
    bytes = head + ((size_t)all->weight_count + 2 * kernels + 1) * sizeof(void *);
    program = weft_allocate(&options, bytes);
    if (program == NULL)
        return weft_fail(error, WEFT_NO_MEMORY, "there is no memory for a program");
    memset(program, 0, bytes);
    program->model = all; /* until the GPU is known */
    program->options = options;
    program->modules = (void **)(void *)((uint8_t *)program + head);
    program->functions = program->modules + kernels;
    program->weight_places = (uint8_t **)(void *)(program->functions + kernels);
    failed =
        weft_map(&options, folder, &all->weights, options.verify, &program->weights, error);
    if (!failed) failed = weft_load_driver(&program->driver, error);
    if (!failed) failed = weft_open_device(program, all, error);
    if (!failed) failed = weft_fill_device(program, folder, error);
    if (failed) {
        weft_close(program);
        return failed;
    }
    *made = program;
    return weft_fine(error);
}
