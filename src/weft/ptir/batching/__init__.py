"""Programs over many values at once: one rule for each family of ops says how it takes a further
axis. A batched tensor has that axis first."""
