"""Tiny IR: movement, unary, binary, reduce; nothing else (document 2, section 1.2)."""
