"""vmap on programs: one rule for each family of ops says how it takes a batch axis, which comes
first. Importing this package fills the table in `rules`.
"""

from weft.ptir.batching import algebra, callback, collective, indexing, shapes

__all__ = ["algebra", "callback", "collective", "indexing", "shapes"]
