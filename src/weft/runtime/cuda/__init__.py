"""Carrying compiled programs out on a CUDA device: its driver, memory, kernels, graphs."""
