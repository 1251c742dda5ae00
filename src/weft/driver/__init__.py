"""Carrying programs out: backends and conversion targets by name, legalisation, and running."""
