"""Region: kernels as SSA over axes (document 2, sections 1.5 and 4)."""
