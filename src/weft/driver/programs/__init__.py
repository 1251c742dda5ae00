"""Compiled programs: which sizes share one, and the cache on disk."""
