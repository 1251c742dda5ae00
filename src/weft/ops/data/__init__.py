"""`weft.data`: batches of arrays and iterators, and a thread that makes them ahead.

for x, y in data.prefetch(data.batches((images, labels), 64, key=key, epochs=10)):
    model, state, loss = step(model, state, x, y)
"""

from typing import TYPE_CHECKING

from weft.ops.data.batches import batches
from weft.ops.data.prefetch import prefetch
from weft.ops.other_names import missing

__all__ = ["batches", "prefetch"]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise missing("weft.data", name, __all__)


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)
