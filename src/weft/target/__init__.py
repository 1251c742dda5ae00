"""What a machine is: its features, its limits, what it was measured to do, and what that costs."""
