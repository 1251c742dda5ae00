"""What a kernel computes, where plans and templates know something better for it."""
