"""Programs over many values at once: one rule for each family of ops says how it takes a further
axis. A batched tensor has that axis first. Importing this package fills the table in `rules`."""

from weft.ptir.batching import algebra, callback, collective, indexing, shapes

__all__ = ["algebra", "callback", "collective", "indexing", "shapes"]
