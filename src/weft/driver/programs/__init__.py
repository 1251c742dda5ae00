"""Compiled programs: which sizes share one, and how they are kept on disk."""
