"""Other people's formats: weights, models, programs."""
