"""Machines: features, limits, measured rates, and cost models."""
