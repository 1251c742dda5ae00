"""GPU code generation: region kernels by templates to a dialect, to CUDA C, to cubins."""
