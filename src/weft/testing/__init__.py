"""Random programs, comparison with the reference, and reduction of failing programs."""
