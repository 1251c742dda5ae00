"""Integer sets and maps behind names, and the analyses that stand on them. The only importer of
islpy."""
