"""Artifacts: the kernels of a program and the steps that launch them, over slots of memory."""
