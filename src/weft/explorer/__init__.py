"""The explorer: one program through every stage, as a page that opens from disk."""
