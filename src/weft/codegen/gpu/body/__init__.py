"""The body of a kernel as the code of one thread, shared by all templates."""
