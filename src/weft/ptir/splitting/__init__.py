"""How the ops of a program are split over a mesh: parts, the rules of each family, the walk."""

from weft.ptir.splitting import indexing, products, shapes

__all__ = ["indexing", "products", "shapes"]
