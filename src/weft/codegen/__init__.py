"""Code generation: from a kernel, its buffers and its plan to LLVM IR or CUDA C."""
