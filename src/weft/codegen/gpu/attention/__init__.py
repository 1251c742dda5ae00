"""Attention in one kernel: scores and weights stay on the chip."""
