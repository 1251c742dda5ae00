"""`weft.data`: batches of arrays and iterators, and a thread that makes them ahead.

for x, y in data.prefetch(data.batches((images, labels), 64, key=key, epochs=10)):
    model, state, loss = step(model, state, x, y)
"""

from weft.ops.data.batches import batches
from weft.ops.data.prefetch import prefetch

__all__ = ["batches", "prefetch"]


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)
