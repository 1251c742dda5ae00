"""The command line. Nothing else in Weft imports this folder or typer."""
