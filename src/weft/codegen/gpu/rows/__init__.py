"""Templates of kernels with reductions (softmax, norms, sums)."""
