"""The driver: backends and conversion targets by name, legalisation, compiling and running."""
