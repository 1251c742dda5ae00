"""The graph of captured instructions: nodes in arenas, and the programs made of them."""
