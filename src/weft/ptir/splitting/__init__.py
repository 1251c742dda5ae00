"""SPMD partitioning, op by op: parts of tensors, the rules of each family, the walk."""

from weft.ptir.splitting import indexing, products, shapes

__all__ = ["indexing", "products", "shapes"]
