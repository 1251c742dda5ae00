"""The cases, one module per family of ops."""
