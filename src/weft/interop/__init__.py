"""Formats of other systems: weights, models, programs."""
