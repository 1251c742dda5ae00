"""What a call may overwrite of what it was given: memory of tensors that nobody else can see."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from operator import is_
from typing import Any

import numpy as np

from weft.foundation.lines import user_line
from weft.ops.graph.arena import Arena
from weft.ops.graph.node import Donated, give_away
from weft.ops.tensor import Tensor
from weft.ops.versions import Key


def part(
    inputs: list[Any], places: Sequence[int], owners: Sequence[Any], key: Key, home: Arena
) -> None:
    """A donated input that is the caller's own array, a constant, memory that nobody may write, or
    that another input shares, is copied: only memory of tensors may be overwritten, and only once.
    The owner of each of these places is what the caller gave."""
    storages = [inputs[place] for place in places]
    if len(set(map(id, inputs))) == len(inputs) and _are_own(storages, owners):
        return
    counts = Counter(map(id, inputs))
    for place, storage, owner in zip(places, storages, owners, strict=True):
        if counts[id(storage)] > 1 or not _are_own([storage], [owner]):
            elements = home.backend.read_storage(storage, key.arguments[place].type)
            inputs[place] = home.backend.store(np.array(elements))


def _are_own(storages: Sequence[Any], owners: Sequence[Any]) -> bool:
    """Whether all of these are memory of tensors that may be overwritten."""
    if set(map(type, owners)) != {Tensor}:
        return False
    held = [owner._node.storage for owner in owners]
    return all(map(is_, held, storages)) and are_writeable(storages)


def are_writeable(storages: Sequence[Any]) -> bool:
    """Whether the memory may be overwritten; a backend's own storage, unless it says otherwise."""
    if set(map(type, storages)) == {np.ndarray}:
        return all(storage.flags.writeable for storage in storages)
    return all(
        storage.flags.writeable
        if type(storage) is np.ndarray
        else getattr(storage, "is_writeable", True)
        for storage in storages
    )


def are_separate(results: Sequence[Any], inputs: Sequence[Any], donated: Collection[int]) -> bool:
    """Whether results share memory neither with each other nor with what stays the caller's."""
    kept = [id(storage) for place, storage in enumerate(inputs) if place not in donated]
    own = set(map(id, results))
    return len(own) == len(results) and own.isdisjoint(kept)


def give(owners: Sequence[Any]) -> Donated:
    """Donated arguments can no longer be read. What they hold from now on."""
    given = Donated(user_line())
    nodes = [owner._node for owner in owners if isinstance(owner, Tensor)]
    if nodes:
        give_away(nodes, given)
    return given
