"""Code generation: a function of kernel, buffers and plan."""
