"""Reverse-mode differentiation of bodies: what depends on what, the walk back, and control flow."""
