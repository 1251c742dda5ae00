"""Templates of elementwise kernels."""
