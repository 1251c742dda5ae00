"""What one thread computes: the body of a kernel, whichever template writes it."""
