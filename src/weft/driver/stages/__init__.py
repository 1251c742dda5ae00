"""The way through the stages: what a stage is, and what is carried from one to the next."""
