"""Carrying compiled programs out: executor, threads, caches, drivers. Knows no IR."""
