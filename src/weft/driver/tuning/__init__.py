"""Tuning: kernels measured one at a time, and the plans that were best, kept on disk."""
