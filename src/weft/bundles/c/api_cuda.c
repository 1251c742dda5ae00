
int @NAME@_run_async(@NAME@_context *context, const weft_tensor *inputs, weft_tensor *results,
                     uint64_t seed, void *stream, weft_error *error) {
    return weft_run_async((weft_context *)context, inputs, results, seed, stream, error);
}

int @NAME@_wait(@NAME@_context *context, weft_error *error) {
    return weft_wait((weft_context *)context, error);
}

int @NAME@_read_state(@NAME@_context *context, int32_t number, void *host, weft_error *error) {
    return weft_copy_state((weft_context *)context, number, host, 0, error);
}

int @NAME@_write_state(@NAME@_context *context, int32_t number, const void *host,
                       weft_error *error) {
    return weft_copy_state((weft_context *)context, number, (void *)(uintptr_t)host, 1, error);
}
