"""StableHLO into PTIR: one file for each family of operations, and the walk that uses them."""
