"""Kernels of the dialect as CUDA C, and as text that reads back."""
