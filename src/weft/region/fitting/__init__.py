"""Rewrites of kernels for the machine: joined, split, or given other operands."""
