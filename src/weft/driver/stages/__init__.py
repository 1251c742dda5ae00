"""The pipeline's stages: what a stage is, and what is passed from one to the next."""
