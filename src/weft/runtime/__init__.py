"""Running compiled programs: executor, threads, caches, drivers. Knows no IR."""
