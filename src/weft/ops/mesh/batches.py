"""Batches of which every rank reads its own part."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.foundation.errors import UserError
from weft.foundation.mesh import Mesh, Over
from weft.ops.calls import public
from weft.ops.data.batches import Samples, batches, samples_of
from weft.ops.mesh.sharded import Sharded, check_mesh
from weft.ops.pytree import map_leaves


@public
def shard_batches(
    source: Any,
    size: int,
    mesh: Mesh,
    *,
    over: Over = "data",
    key: Any = None,
    epochs: int | None = 1,
    start: int = 0,
) -> Iterator[Any]:
    """What `weft.data.batches` gives for arrays or items, with the samples of each batch split over
    the ranks along `over`: a rank takes only its own. All ranks must give the same key."""
    check_mesh("shard_batches", mesh)
    count = mesh.size(over)
    if type(size) is int and size % count:
        raise UserError(f"a batch of {size} cannot be split over {count} ranks")
    own = _Part(samples_of(source), mesh, over)
    made = batches(own, size, key=key, epochs=epochs, start=start)
    return (map_leaves(lambda leaf: Sharded(leaf, mesh, {0: over}), batch) for batch in made)


class _Part(Samples):
    """Of the samples that are asked for, those of this rank."""

    def __init__(self, whole: Samples, mesh: Mesh, over: Over) -> None:
        super().__init__(whole.count)
        self.whole = whole
        self.mesh, self.over = mesh, over

    def take(self, places: NDArray[Any]) -> Any:
        if self.mesh.simulated:
            return self.whole.take(places)
        parts = np.split(places, self.mesh.size(self.over))
        return self.whole.take(parts[self.mesh.places(self.over)[self.mesh.rank]])
