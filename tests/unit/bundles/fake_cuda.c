/* A CUDA driver for tests: libcuda.so.1 without a GPU. Memory of the device is memory of the host,
   copies are done at once, and every call that matters is written to the file FAKE_CUDA_LOG. What is
   recorded is done when its graph is launched. Instead of running its machine code, a kernel adds
   FAKE_CUDA_ADD floats, of its first two buffers into the third.

   FAKE_CUDA_DEVICES, FAKE_CUDA_CAPABILITY (90) and FAKE_CUDA_MEMORY are what the machine has;
   FAKE_CUDA_FAULT makes the first launch report that element in its last parameter. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NOT_FOUND = 500, NO_MEMORY = 2, INVALID = 1, MOST = 4096 };

typedef struct Node {
    int kind; /* 0 a launch, 1 a copy */
    char symbol[80];
    uint64_t words[16];
    size_t bytes;
} Node;

typedef struct Graph {
    Node nodes[64];
    int count;
} Graph;

static struct {
    uint64_t address;
    size_t bytes;
} blocks[MOST];
static int block_count, faulted;
static size_t taken;
static __thread Graph *recording;
static FILE *log_file;

static int number(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text != NULL ? atoi(text) : otherwise;
}

#define SAY(...)                                                                                   \
    do {                                                                                           \
        fprintf(log_file, __VA_ARGS__);                                                            \
        fputc('\n', log_file);                                                                     \
        fflush(log_file);                                                                          \
    } while (0)

/* Whether memory is the device's, from its beginning to its end. */
static int inside(uint64_t address, size_t bytes) {
    int n;
    for (n = 0; n < block_count; n++)
        if (blocks[n].address && address >= blocks[n].address &&
            address + bytes <= blocks[n].address + blocks[n].bytes)
            return 1;
    return 0;
}

int cuInit(unsigned flags) {
    const char *path = getenv("FAKE_CUDA_LOG");
    if (log_file == NULL) log_file = path != NULL ? fopen(path, "a") : stderr;
    return flags != 0;
}
int cuGetErrorString(int status, const char **text) {
    *text = status == NO_MEMORY ? "out of memory" : status == INVALID ? "invalid argument" : "other";
    return 0;
}
int cuDeviceGetCount(int *count) { return *count = number("FAKE_CUDA_DEVICES", 1), 0; }
int cuDeviceGet(int *device, int ordinal) { return *device = ordinal, 0; }
int cuDeviceGetName(char *name, int room, int device) {
    return snprintf(name, (size_t)room, "Fake %d", device), 0;
}
int cuDeviceGetAttribute(int *found, int attribute, int device) {
    int capability = number("FAKE_CUDA_CAPABILITY", 90);
    (void)device;
    *found = attribute == 75 ? capability / 10 : attribute == 76 ? capability % 10 : 132;
    return 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device) {
    SAY("retain %d", device);
    return *context = &blocks, 0;
}
int cuDevicePrimaryCtxRelease_v2(int device) {
    SAY("release %d", device);
    return 0;
}
int cuCtxPushCurrent_v2(void *context) { return context != (void *)&blocks; }
int cuCtxPopCurrent_v2(void **context) { return *context = &blocks, 0; }
int cuModuleLoadData(void **module, const void *image) {
    if (memcmp(image, "\177ELF", 4) != 0) return INVALID;
    SAY("load");
    return *module = malloc(1), 0;
}
int cuModuleUnload(void *module) {
    SAY("unload");
    return free(module), 0;
}
int cuModuleGetFunction(void **function, void *module, const char *name) {
    static char names[MOST][80];
    static int count;
    (void)module;
    snprintf(names[count], sizeof names[0], "%s", name);
    return *function = names[count++], 0;
}
int cuFuncSetAttribute(void *function, int attribute, int value) {
    SAY("attribute %s %d %d", (char *)function, attribute, value);
    return 0;
}
int cuMemAlloc_v2(uint64_t *address, size_t bytes) {
    void *memory = NULL;
    if (taken + bytes > (size_t)number("FAKE_CUDA_MEMORY", 1 << 30)) return NO_MEMORY;
    if (posix_memalign(&memory, 256, bytes) != 0) return NO_MEMORY;
    memset(memory, 0xee, bytes);
    taken += bytes;
    blocks[block_count].address = *address = (uint64_t)(uintptr_t)memory;
    blocks[block_count++].bytes = bytes;
    SAY("take %zu", bytes);
    return 0;
}
int cuMemFree_v2(uint64_t address) {
    int n;
    for (n = 0; n < block_count; n++)
        if (blocks[n].address == address) {
            taken -= blocks[n].bytes;
            SAY("give %zu", blocks[n].bytes);
            blocks[n].address = 0;
            return free((void *)(uintptr_t)address), 0;
        }
    return INVALID;
}
int cuMemcpyHtoDAsync_v2(uint64_t target, const void *source, size_t bytes, void *stream) {
    (void)stream;
    SAY("up %zu", bytes);
    if (recording != NULL || !inside(target, bytes)) return INVALID;
    return memcpy((void *)(uintptr_t)target, source, bytes), 0;
}
int cuMemcpyDtoHAsync_v2(void *target, uint64_t source, size_t bytes, void *stream) {
    (void)stream;
    SAY("down %zu", bytes);
    if (recording != NULL || !inside(source, bytes)) return INVALID;
    return memcpy(target, (void *)(uintptr_t)source, bytes), 0;
}
int cuMemcpyDtoDAsync_v2(uint64_t target, uint64_t source, size_t bytes, void *stream) {
    (void)stream;
    SAY("copy %zu%s", bytes, recording != NULL ? " recorded" : "");
    if (!inside(target, bytes) || !inside(source, bytes)) return INVALID;
    if (recording != NULL) {
        Node *node = &recording->nodes[recording->count++];
        node->kind = 1;
        node->words[0] = target;
        node->words[1] = source;
        node->bytes = bytes;
        return 0;
    }
    return memcpy((void *)(uintptr_t)target, (void *)(uintptr_t)source, bytes), 0;
}
typedef struct Plane {
    size_t source_x, source_y;
    int source_type;
    const void *source_host;
    uint64_t source_device;
    void *source_array;
    size_t source_pitch, target_x, target_y;
    int target_type;
    void *target_host;
    uint64_t target_device;
    void *target_array;
    size_t target_pitch, width, height;
} Plane;
int cuMemcpy2DAsync_v2(const Plane *plane, void *stream) {
    const char *from = plane->source_type == 1 ? plane->source_host
                                               : (const char *)(uintptr_t)plane->source_device;
    char *to = plane->target_type == 1 ? plane->target_host
                                       : (char *)(uintptr_t)plane->target_device;
    size_t row;
    (void)stream;
    SAY("rows %zu x %zu", plane->height, plane->width);
    for (row = 0; row < plane->height; row++)
        memcpy(to + row * plane->target_pitch, from + row * plane->source_pitch, plane->width);
    return 0;
}
int cuMemsetD8Async(uint64_t target, unsigned char byte, size_t bytes, void *stream) {
    (void)stream;
    SAY("zero %zu", bytes);
    if (!inside(target, bytes)) return INVALID;
    return memset((void *)(uintptr_t)target, byte, bytes), 0;
}
int cuMemsetD32Async(uint64_t target, unsigned word, size_t count, void *stream) {
    (void)stream;
    SAY("word %u", word);
    if (count != 1 || !inside(target, 4)) return INVALID;
    return memcpy((void *)(uintptr_t)target, &word, 4), 0;
}
int cuStreamCreate(void **stream, unsigned flags) {
    SAY("stream %u", flags);
    return *stream = malloc(1), 0;
}
int cuStreamDestroy_v2(void *stream) {
    SAY("no stream");
    return free(stream), 0;
}
int cuStreamSynchronize(void *stream) {
    (void)stream;
    SAY("wait");
    return 0;
}
int cuStreamBeginCapture_v2(void *stream, int mode) {
    (void)stream;
    SAY("record %d", mode);
    return recording = calloc(1, sizeof *recording), 0;
}
int cuStreamEndCapture(void *stream, void **graph) {
    (void)stream;
    SAY("recorded %d", recording->count);
    return *graph = recording, recording = NULL, 0;
}
int cuGraphInstantiateWithFlags(void **made, void *graph, unsigned long long flags) {
    Graph *own = malloc(sizeof *own);
    memcpy(own, graph, sizeof *own);
    return *made = own, flags != 0;
}
int cuGraphDestroy(void *graph) { return free(graph), 0; }
int cuGraphExecDestroy(void *graph) {
    SAY("no graph");
    return free(graph), 0;
}
static int play(const Node *node) {
    int count = number("FAKE_CUDA_ADD", 0), n;
    if (node->kind == 1) {
        memmove((void *)(uintptr_t)node->words[0], (void *)(uintptr_t)node->words[1], node->bytes);
        return 0;
    }
    for (n = 0; n < count; n++) {
        const float *left = (float *)(uintptr_t)node->words[0];
        const float *right = (float *)(uintptr_t)node->words[1];
        ((float *)(uintptr_t)node->words[2])[n] = left[n] + right[n];
    }
    if (getenv("FAKE_CUDA_FAULT") != NULL && !faulted++) {
        uint64_t report = ~(uint64_t)number("FAKE_CUDA_FAULT", 0);
        memcpy((void *)(uintptr_t)node->words[node->bytes - 1], &report, 8);
    }
    return 0;
}
int cuGraphLaunch(void *graph, void *stream) {
    const Graph *found = graph;
    int n;
    (void)stream;
    SAY("graph %d", found->count);
    for (n = 0; n < found->count; n++) play(&found->nodes[n]);
    return 0;
}
/* The parameters are addresses of the device, as many as FAKE_CUDA_PARAMETERS says, or, with
   FAKE_CUDA_TABLE, one parameter that holds them all; those in front of them are maps of 128 bytes,
   as many as FAKE_CUDA_MAPS says. */
static int launch(const char *how, const char *symbol, const unsigned *grid, const unsigned *block,
                  unsigned shared, void **parameters) {
    int count = number("FAKE_CUDA_PARAMETERS", 0), maps = number("FAKE_CUDA_MAPS", 0), n;
    Node *node;
    SAY("%s %s %u %u %u %u %u %u %u", how, symbol, grid[0], grid[1], grid[2], block[0], block[1],
        block[2], shared);
    if (recording == NULL) return INVALID;
    node = &recording->nodes[recording->count++];
    snprintf(node->symbol, sizeof node->symbol, "%s", symbol);
    for (n = 0; n < count; n++) {
        const char *place = number("FAKE_CUDA_TABLE", 0) ? (const char *)parameters[maps] + 8 * n
                                                         : (const char *)parameters[maps + n];
        memcpy(&node->words[n], place, 8);
        if (!inside(node->words[n], 1)) return INVALID;
    }
    node->bytes = (size_t)count;
    return 0;
}
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void *stream, void **parameters, void **extra) {
    unsigned grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz};
    return stream == NULL || extra != NULL ||
           launch("launch", function, grid, block, shared, parameters);
}
typedef struct Config {
    unsigned grid[3], block[3], shared;
    void *stream;
    struct {
        int id;
        char unused[4];
        int allowed;
    } *attributes;
    unsigned count;
} Config;
#ifndef WITHOUT_EARLY
int cuLaunchKernelEx(const Config *config, void *function, void **parameters, void **extra) {
    if (config->count != 1 || config->attributes->id != 6 || config->attributes->allowed != 1 ||
        extra != NULL)
        return INVALID;
    return launch("early", function, config->grid, config->block, config->shared, parameters);
}
#endif
static int map(void *made, const char *how, int dtype, uint32_t rank, void *start,
               const uint64_t *sizes, int swizzle) {
    char text[160];
    uint32_t n;
    int used = snprintf(text, sizeof text, "%s %d %u %d", how, dtype, rank, swizzle);
    for (n = 0; n < rank; n++)
        used += snprintf(text + used, sizeof text - (size_t)used, " %zu", (size_t)sizes[n]);
    SAY("%s", text);
    if (!inside((uint64_t)(uintptr_t)start, 16) || (uintptr_t)made % 64) return INVALID;
    return memset(made, 0xab, 128), 0;
}
int cuTensorMapEncodeTiled(void *made, int dtype, uint32_t rank, void *start, const uint64_t *sizes,
                           const uint64_t *strides, const uint32_t *box, const uint32_t *steps,
                           int interleave, int swizzle, int promotion, int fill) {
    (void)strides, (void)promotion;
    if (interleave || fill || !box[0] || !steps[0]) return INVALID;
    return map(made, "map", dtype, rank, start, sizes, swizzle);
}
int cuTensorMapEncodeIm2col(void *made, int dtype, uint32_t rank, void *start,
                            const uint64_t *sizes, const uint64_t *strides, const int *lower,
                            const int *upper, uint32_t channels, uint32_t places,
                            const uint32_t *steps, int interleave, int swizzle, int promotion,
                            int fill) {
    (void)strides, (void)lower, (void)upper, (void)promotion;
    if (interleave || fill || !channels || !places || !steps[0]) return INVALID;
    return map(made, "image", dtype, rank, start, sizes, swizzle);
}
