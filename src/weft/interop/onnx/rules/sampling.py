"""Sampling at computed places."""
