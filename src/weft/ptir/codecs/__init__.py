"""Wire forms of PTIR: JSON, bincode, and the public display text."""
