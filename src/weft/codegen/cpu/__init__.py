"""Code generation for CPUs: kernels become loop nests, and loop nests become LLVM IR."""
