"""Templates of ops that no stage decomposes: scatter, sorting, cumulative reductions."""
