"""Printing of dialect kernels: as CUDA C, and as text that reads back."""
