"""Padding of dynamic dims to a larger size: one rule for each family of ops says where that changes
nothing. Importing this package fills the table in `rules`.
"""

from weft.ptir.padding import indexing, movement, reduction, whole

__all__ = ["indexing", "movement", "reduction", "whole"]
