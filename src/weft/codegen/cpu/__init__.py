"""The CPU: kernels as loop nests, loop nests as LLVM IR."""
