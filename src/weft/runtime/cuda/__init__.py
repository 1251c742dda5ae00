"""Running compiled programs on a CUDA device: its driver, memory, kernels, graphs."""
