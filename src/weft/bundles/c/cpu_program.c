/* -- programs on a processor ------------------------------------------------------------------- */

#define WEFT_ALIGNMENT 128
#define WEFT_STEP_WORDS 8
#define WEFT_NOTHING UINT64_MAX /* what an error word holds while nothing was reported */
#define WEFT_ELEMENT_BITS 48
#define WEFT_DEVICES "the CPU, 1"

typedef struct weft_program {
    const weft_model *model;
    weft_options options;
    const uint8_t *weights;
} weft_program;

/* A word that points into an input or a result, and is filled in by every run. */
typedef struct weft_patch {
    uint64_t *word;
    int32_t number; /* of an input, or the number of inputs + that of a result */
    int64_t offset;
} weft_patch;

/* The tables of one version, as its executor reads them. */
typedef struct weft_tables {
    uint64_t *steps, *arguments, *errors, *runs, *counters;
    weft_patch *patches;
    int64_t patch_count;
} weft_tables;

typedef struct weft_context {
    const weft_program *program;
    void *pool;
    int32_t busy;
    int64_t sizes[WEFT_MOST_SIZES];
    int64_t state[4]; /* failed, bodies entered, bodies that may be, stop */
    weft_tables *tables;
    uint8_t *arena;
    uint8_t **states;
    uint8_t **filled;   /* room for inputs that are filled up; null: never */
    uint8_t **results;  /* room for results, then for new states */
    uint8_t **pointers; /* of this run's inputs and results */
    int64_t *told;
    int64_t **shapes; /* of results in our own memory */
} weft_context;

static int weft_reaches(int32_t device_type) { return device_type == 1; }

static void weft_close(weft_program *program) {
    if (program == NULL) return;
    weft_unmap(&program->model->weights, program->weights);
    weft_release(&program->options, program);
}

/* The first model that this processor runs. */
static int weft_find(const weft_model *all, const weft_options *options, const weft_model **found,
                     weft_error *error) {
    const char *missing = NULL;
    int32_t n;
    int failed = weft_check_target(all, options, error);
    if (failed) return failed;
    for (n = 0; n < model_count; n++) {
        if (!weft_wanted(&all[n], options)) continue;
        missing = all[n].missing();
        *found = &all[n];
        if (missing == NULL) return WEFT_OK;
    }
    return weft_fail(error, WEFT_WRONG_CPU, "%s was built for %s, and this processor has no %s",
                     all->signature->name, weft_built_for(all, options), missing);
}

static int weft_open(const weft_model *all, const char *folder, const weft_options *given,
                     weft_program **made, weft_error *error) {
    weft_options options;
    weft_program *program;
    const weft_model *model = NULL;
    int failed;
    if (made == NULL) return weft_fail(error, WEFT_MISUSE, "there is no place for the program");
    *made = NULL;
    failed = weft_read_options(given, &options, error);
    if (!failed) failed = weft_find(all, &options, &model, error);
    if (failed) return failed;
    program = weft_allocate(&options, sizeof *program);
    if (program == NULL)
        return weft_fail(error, WEFT_NO_MEMORY, "there is no memory for a program");
    program->model = model;
    program->options = options;
    program->weights = NULL;
    failed = weft_map(&program->options, folder, &model->weights, program->options.verify,
                      &program->weights, error);
    if (failed) {
        weft_close(program);
        return failed;
    }
    *made = program;
    return weft_fine(error);
}
