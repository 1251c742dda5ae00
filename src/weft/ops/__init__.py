"""The ops layer: lazy tensors, functional ops, traced functions. Everything becomes PTIR."""
