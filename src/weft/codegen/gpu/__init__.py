"""Code generation for NVIDIA GPUs: templates turn kernels into a dialect, which is printed as CUDA
C and compiled to cubins.
"""
