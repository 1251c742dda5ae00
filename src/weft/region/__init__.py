"""Region Buffer SSA: what is one kernel (document 2, sections 1.5 and 4)."""
