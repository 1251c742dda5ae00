"""Donation: which memory of its arguments a call may overwrite, since nobody else can see it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from operator import is_
from typing import Any, Protocol

import numpy as np

from weft.driver.backends import duplicated
from weft.foundation.lines import user_line
from weft.ops.graph.arena import Arena
from weft.ops.graph.evaluate import compute_users
from weft.ops.graph.group import LEAVING
from weft.ops.graph.node import CHANGES, Donated, Node
from weft.ops.tensor import Tensor
from weft.ops.versions import Key


def copy_shared_inputs(
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
            inputs[place] = duplicated(home.backend, storage, key.arguments[place].type)


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


class LentGroup(Protocol):
    """Tensors among the arguments that nobody has looked at, and that are given away together."""

    @property
    def given(self) -> Donated | None:
        """What they hold where somebody else was faster."""
        ...

    def late(self) -> list[Node]:
        """The nodes of those that somebody has looked at since they were found."""
        ...

    def give_away(self, given: Donated) -> None:
        """They cannot be read from now on."""
        ...

    def take_back(self) -> None:
        """They can."""
        ...


class Claim:
    """What a call is about to overwrite. From here on nobody else can read or donate it: that it is
    free and that it is taken are one step, so of two threads that give the same tensor away one
    gets the error. A call that fails before it has started anything gives it back."""

    __slots__ = ("_given", "_groups", "_nodes", "_storages")

    def __init__(self, owners: Sequence[Any], groups: Sequence[LentGroup] = ()) -> None:
        given = Donated(user_line())
        nodes = [owner._node for owner in owners if isinstance(owner, Tensor)]
        if any(node.users for node in nodes):
            compute_users(nodes)
        with LEAVING:
            for each in groups:
                nodes += each.late()
            storages = [node.storage for node in nodes]
            check_there([*storages, *[each.given for each in groups]])
            for node in nodes:
                node.storage = given
            for each in groups:
                each.give_away(given)
        if nodes:
            CHANGES.tell()
        self._nodes, self._storages, self._groups = nodes, storages, groups
        self._given = given

    def spoil(self) -> None:
        """The call failed when it may have written to some of it: who reads it is told so."""
        self._given.failed = True

    def give_back(self) -> None:
        """The call came to nothing."""
        with LEAVING:
            for node, storage in zip(self._nodes, self._storages, strict=True):
                node.storage = storage
            for each in self._groups:
                each.take_back()
        CHANGES.tell()


def check_there(storages: Sequence[Any]) -> None:
    """Say so where one of these was given away."""
    if Donated in map(type, storages):
        raise next(storage for storage in storages if type(storage) is Donated).error()
