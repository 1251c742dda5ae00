/* -- what the header declares ------------------------------------------------------------------ */

const weft_signature *@NAME@_signature(void) {
    return &signature;
}

int @NAME@_open(const char *folder, const weft_options *options, @NAME@_program **program,
                weft_error *error) {
    return weft_open(models, folder, options, (weft_program **)program, error);
}

const char *@NAME@_target(const @NAME@_program *program) {
    return program != NULL ? ((const weft_program *)program)->model->target : NULL;
}

void @NAME@_close(@NAME@_program *program) {
    weft_close((weft_program *)program);
}

int64_t @NAME@_context_bytes(void) {
    int64_t most = 0, bytes;
    int32_t n;
    for (n = 0; n < model_count; n++) {
        bytes = weft_context_bytes(&models[n]);
        if (bytes > most) most = bytes;
    }
    return most;
}

int @NAME@_context_new(const @NAME@_program *program, @NAME@_context **context, weft_error *error) {
    return weft_context_new((const weft_program *)program, (weft_context **)context, error);
}

void @NAME@_context_free(@NAME@_context *context) {
    weft_context_free((weft_context *)context);
}

int @NAME@_results(const weft_tensor *inputs, weft_tensor *results, weft_error *error) {
    return weft_results(models, inputs, results, error);
}

int @NAME@_run(@NAME@_context *context, const weft_tensor *inputs, weft_tensor *results,
               uint64_t seed, weft_error *error) {
    return weft_run((weft_context *)context, inputs, results, seed, error);
}

int @NAME@_state(@NAME@_context *context, int32_t number, weft_tensor *state, weft_error *error) {
    return weft_state((weft_context *)context, number, state, error);
}

void @NAME@_reset(@NAME@_context *context) {
    weft_reset((weft_context *)context);
}
