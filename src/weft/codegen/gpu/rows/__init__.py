"""Templates of kernels with reductions."""
