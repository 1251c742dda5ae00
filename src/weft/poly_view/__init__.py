"""Poly-View: what is computed over which domain from which elements (document 2, sections 1.4 and
3)."""
