"""Core IR."""
