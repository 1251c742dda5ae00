"""Kernels rewritten for the machine: joined, cut in parts, or given other operands."""
