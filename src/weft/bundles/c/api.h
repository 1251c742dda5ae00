typedef struct @NAME@_program @NAME@_program; /* read by any number of threads */
typedef struct @NAME@_context @NAME@_context; /* one run at a time: make one for each thread */

/* What the model takes and gives. */
@API@ const weft_signature *@NAME@_signature(void);

/* Load the model; `folder` has its weights. Options and errors may be null. Functions that can fail
   answer 0, or a negative code and a sentence in `error`. */
@API@ int @NAME@_open(const char *folder, const weft_options *options, @NAME@_program **program,
        weft_error *error);

/* The name of the target whose code it runs. */
@API@ const char *@NAME@_target(const @NAME@_program *program);

/* Close it, after all of its contexts. */
@API@ void @NAME@_close(@NAME@_program *program);

/* The memory that a context takes, which is all it ever takes: a run allocates nothing. Of several
   targets it is that of the one that takes most. */
@API@ int64_t @NAME@_context_bytes(void);
@API@ int @NAME@_context_new(const @NAME@_program *program, @NAME@_context **context,
        weft_error *error);
@API@ void @NAME@_context_free(@NAME@_context *context);

/* The types and shapes of the results for inputs of these types and shapes: `shape` of each result
   has room for them. */
@API@ int @NAME@_results(const weft_tensor *inputs, weft_tensor *results, weft_error *error);

/* Run. Results go to the caller's memory where `data` of a result is set, which must not overlap
   with the inputs; else they are in the context's, and good until its next run. */
@API@ int @NAME@_run(@NAME@_context *context, const weft_tensor *inputs, weft_tensor *results,
        uint64_t seed, weft_error *error);

/* The memory of a state, which every run updates; and all states as they were at first. */
@API@ int @NAME@_state(@NAME@_context *context, int32_t number, weft_tensor *state,
        weft_error *error);
@API@ void @NAME@_reset(@NAME@_context *context);
