"""What every other folder stands on: dtypes, errors, axes, text tokens, limits. Imports nothing of
ours."""
