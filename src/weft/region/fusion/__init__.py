"""Fusion: which blocks become one kernel, and in which order kernels run."""
