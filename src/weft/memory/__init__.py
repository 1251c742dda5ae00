"""Buffers after regions: layouts, aliasing, donation, liveness, arena offsets (document 2, section
8)."""
