"""Schedule Plan: how a kernel is carried out, as data (document 2, sections 1.7, 12.5, 12.6)."""
