"""From the blocks of a kernel to its axes and its body."""
