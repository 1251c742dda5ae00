"""Templates of matrix products and convolutions: the problem, its layout, the kernel."""
