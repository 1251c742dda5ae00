"""Templates of ops that no stage takes apart: scatter, sorting, cumulative reductions."""
