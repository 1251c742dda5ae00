/* The runtime of a bundle: it maps the weights, checks what it is given, and plays the steps of a
   compiled program, on a processor or on a GPU. There is no global state. A program is read by any
   number of threads; a context has the memory of one run at a time. */

#define WEFT_MOST_SIZES 64

/* -- errors ------------------------------------------------------------------------------------ */

static int weft_fail(weft_error *error, int code, const char *format, ...) {
    if (error != NULL) {
        va_list list;
        error->code = code;
        va_start(list, format);
        vsnprintf(error->text, sizeof error->text, format, list);
        va_end(list);
    }
    return code;
}

static int weft_fine(weft_error *error) {
    if (error != NULL) {
        error->code = WEFT_OK;
        error->text[0] = 0;
    }
    return WEFT_OK;
}

/* A shape as text: [2, 3]. */
static const char *weft_shown(char *text, size_t room, int32_t ndim, const int64_t *shape) {
    size_t used = 0;
    int32_t axis;
    for (axis = 0; axis < ndim && used + 24 < room; axis++)
        used += (size_t)snprintf(text + used, room - used, "%s%" PRId64, axis ? ", " : "[",
                                 shape[axis]);
    snprintf(text + used, room - used, "%s%s", ndim > 0 ? "" : "[", axis < ndim ? ", ...]" : "]");
    return text;
}

/* -- SHA-256 ----------------------------------------------------------------------------------- */

static uint32_t weft_turned(uint32_t x, int by) { return (x >> by) | (x << (32 - by)); }

static void weft_digest_block(uint32_t *state, const uint8_t *block) {
    static const uint32_t constants[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
        0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
        0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
        0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7,
        0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc,
        0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
        0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116,
        0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
        0xc67178f2};
    uint32_t words[64], v[8];
    int i;
    for (i = 0; i < 16; i++)
        words[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 |
                   (uint32_t)block[4 * i + 2] << 8 | block[4 * i + 3];
    for (i = 16; i < 64; i++) {
        uint32_t a = words[i - 15], b = words[i - 2];
        words[i] = words[i - 16] + words[i - 7] +
                   (weft_turned(a, 7) ^ weft_turned(a, 18) ^ (a >> 3)) +
                   (weft_turned(b, 17) ^ weft_turned(b, 19) ^ (b >> 10));
    }
    memcpy(v, state, sizeof v);
    for (i = 0; i < 64; i++) {
        uint32_t one = weft_turned(v[4], 6) ^ weft_turned(v[4], 11) ^ weft_turned(v[4], 25);
        uint32_t first = v[7] + one + ((v[4] & v[5]) ^ (~v[4] & v[6])) + constants[i] + words[i];
        uint32_t zero = weft_turned(v[0], 2) ^ weft_turned(v[0], 13) ^ weft_turned(v[0], 22);
        uint32_t second = zero + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof v[0]);
        v[4] += first;
        v[0] = first + second;
    }
    for (i = 0; i < 8; i++) state[i] += v[i];
}

static int weft_has_digest(const uint8_t *data, int64_t count, const uint8_t *wanted) {
    uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    uint8_t last[128] = {0};
    int64_t whole = count / 64, rest = count % 64, i;
    int blocks = rest < 56 ? 1 : 2;
    for (i = 0; i < whole; i++) weft_digest_block(state, data + 64 * i);
    if (rest != 0) memcpy(last, data + 64 * whole, (size_t)rest);
    last[rest] = 0x80;
    for (i = 0; i < 8; i++) last[64 * blocks - 1 - i] = (uint8_t)((uint64_t)count * 8 >> (8 * i));
    for (i = 0; i < blocks; i++) weft_digest_block(state, last + 64 * i);
    for (i = 0; i < 32; i++)
        if (wanted[i] != (uint8_t)(state[i / 4] >> (24 - 8 * (i % 4)))) return 0;
    return 1;
}

/* -- options and files ------------------------------------------------------------------------- */

static int weft_read_options(const weft_options *given, weft_options *found, weft_error *error) {
    memset(found, 0, sizeof *found);
    if (given != NULL) {
        if (given->bytes < 16 || given->bytes > 4096)
            return weft_fail(error, WEFT_MISUSE,
                             "options.bytes is %u; set it to sizeof(weft_options)",
                             (unsigned)given->bytes);
        memcpy(found, given, given->bytes < sizeof *found ? given->bytes : sizeof *found);
    }
    if ((found->allocate == NULL) != (found->release == NULL))
        return weft_fail(error, WEFT_MISUSE,
                         "options have one of allocate and release; give both or none");
    if (found->threads < 0 || found->threads > 4096)
        return weft_fail(error, WEFT_MISUSE, "options.threads is %d; it is a number from 0 to 4096",
                         (int)found->threads);
    return WEFT_OK;
}

/* Whether a model is of the target that the options name; where they name none, any is. */
static int weft_wanted(const weft_model *model, const weft_options *options) {
    return options->target == NULL || strcmp(options->target, model->target) == 0;
}

/* That there is code for the target that the options name. */
static int weft_check_target(const weft_model *all, const weft_options *options,
                             weft_error *error) {
    int32_t n;
    for (n = 0; n < model_count; n++)
        if (weft_wanted(&all[n], options)) return WEFT_OK;
    return weft_fail(error, WEFT_MISUSE, "%s has no code for %.40s: it was built for %s",
                     all->signature->name, options->target, all->signature->target);
}

/* What the code is for that was wanted, for sentences. */
static const char *weft_built_for(const weft_model *all, const weft_options *options) {
    return options->target != NULL ? options->target : all->signature->target;
}

static void *weft_allocate(const weft_options *options, size_t bytes) {
    return options->allocate != NULL ? options->allocate(options->user, bytes) : malloc(bytes);
}

static void weft_release(const weft_options *options, void *memory) {
    if (memory == NULL) return;
    if (options->release != NULL)
        options->release(options->user, memory);
    else
        free(memory);
}

/* Map a file of the bundle that is the one the library was built with: its size and the digest of
   its first bytes are looked at, and with `whole` that of all. */
static int weft_map(const weft_options *options, const char *folder, const weft_file *wanted,
                    int whole, const uint8_t **found_at, weft_error *error) {
    size_t length = folder != NULL ? strlen(folder) : 0;
    char *path;
    struct stat found;
    void *mapped = MAP_FAILED;
    int file, failed;
    *found_at = NULL;
    if (wanted->name == NULL) return WEFT_OK;
    if (folder == NULL)
        return weft_fail(error, WEFT_MISUSE, "the folder of the bundle is not given");
    path = weft_allocate(options, length + strlen(wanted->name) + 2);
    if (path == NULL) return weft_fail(error, WEFT_NO_MEMORY, "there is no memory for a path");
    memcpy(path, folder, length);
    path[length] = '/';
    strcpy(path + length + 1, wanted->name);
    file = open(path, O_RDONLY | O_CLOEXEC);
    failed = file < 0 || fstat(file, &found) != 0 ? errno : 0;
    if (!failed && found.st_size == wanted->bytes) {
        mapped = mmap(NULL, (size_t)wanted->bytes, PROT_READ, MAP_PRIVATE, file, 0);
        failed = mapped == MAP_FAILED ? errno : 0;
    }
    if (file >= 0) close(file);
    weft_release(options, path);
    if (failed)
        return weft_fail(error, WEFT_NO_FILE, "cannot read %s in %s: %s", wanted->name, folder,
                         strerror(failed));
    if (mapped == MAP_FAILED)
        return weft_fail(error, WEFT_DAMAGED,
                         "%s has %" PRId64 " bytes, not %" PRId64
                         ": it belongs to another model, or is cut off",
                         wanted->name, (int64_t)found.st_size, wanted->bytes);
    *found_at = mapped;
    if (!weft_has_digest(mapped, wanted->table_bytes, wanted->table_digest) ||
        (whole && !weft_has_digest(mapped, wanted->bytes, wanted->digest)))
        return weft_fail(error, WEFT_DAMAGED, "%s is not the file that this library was built with",
                         wanted->name);
    return WEFT_OK;
}

static void weft_unmap(const weft_file *file, const uint8_t *mapped) {
    if (mapped != NULL) munmap((void *)(uintptr_t)mapped, (size_t)file->bytes);
}

/* A sentence of a check, with the element that broke it and, where it is known, its value. */
static int weft_broken(const char *told, uint64_t element, const int64_t *value,
                       weft_error *error) {
    char text[400];
    size_t used = 0;
    while (*told != 0 && used + 32 < sizeof text) {
        if (strncmp(told, "{value}", 7) == 0) {
            if (value != NULL) used += (size_t)snprintf(text + used, 32, " %" PRId64, *value);
            told += 7;
        } else if (strncmp(told, "{element}", 9) == 0) {
            used += (size_t)snprintf(text + used, 32, "%" PRIu64, element);
            told += 9;
        } else {
            text[used++] = *told++;
        }
    }
    text[used] = 0;
    return weft_fail(error, WEFT_VIOLATION, "%s", text);
}
