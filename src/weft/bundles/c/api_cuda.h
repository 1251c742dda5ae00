
/* Run in a stream of the caller's (a CUstream of the device's primary context; null: the context's
   own), and do not wait. Memory of the host that is not pinned may be used again when this returns;
   all other memory, and the stream, when the run is done. Runs of a context come one after the
   other. */
@API@ int @NAME@_run_async(@NAME@_context *context, const weft_tensor *inputs,
        weft_tensor *results, uint64_t seed, void *stream, weft_error *error);

/* Wait for all runs of a context. What went wrong in them is told here: their results, and the
   states that they updated, are then not to be relied on. */
@API@ int @NAME@_wait(@NAME@_context *context, weft_error *error);

/* The elements of a state, whose memory is on the GPU, to memory of the host, and back. */
@API@ int @NAME@_read_state(@NAME@_context *context, int32_t number, void *host,
        weft_error *error);
@API@ int @NAME@_write_state(@NAME@_context *context, int32_t number, const void *host,
        weft_error *error);
