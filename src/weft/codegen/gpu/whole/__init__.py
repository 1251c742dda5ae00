"""Templates of ops that stay whole."""
