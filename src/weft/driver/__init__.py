"""Carrying programs out: backends by name, and running."""
