"""Integer sets and maps with named dimensions, and the analyses that use them. The only importer
of islpy."""
