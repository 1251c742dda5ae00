"""Functions on a mesh of ranks: `mesh`, `spmd`, what ranks exchange, and values that are split."""
