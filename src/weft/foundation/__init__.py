"""Shared basics: dtypes, errors, axes, text tokens, limits. Imports no other package of Weft."""
