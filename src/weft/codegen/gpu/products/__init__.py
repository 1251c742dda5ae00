"""Contractions by matrix templates: the problem, its layout on the chip, the kernel."""
