"""Artifacts in the making: the kernels of a program's bodies as steps over slots of memory."""
