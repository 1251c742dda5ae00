"""Lazy groups of result tensors: the tensors of one call, which become objects when somebody looks
at them.

A step that hands a hundred tensors on, from its results to the arguments of its next call, has no
use for a hundred nodes. What it made is one *group*: the memory of all, in order, which is given
away as a whole. A tensor of a group gets a node when somebody looks at it, and leaves the group: it
is a tensor like any other from then on. So all that is still in the group is known to nobody else:
no instruction uses it, no other library sees its memory.
"""

from __future__ import annotations

from typing import Any, Final
from weakref import ref

from weft.foundation.forks import new_reentrant_lock
from weft.foundation.identities import identities
from weft.ops.graph.node import Donated, Home, Node
from weft.ptir.types import TensorType

LEAVING: Final = new_reentrant_lock()
"""Held while a tensor leaves its group: it gets one node, whoever looks at it meanwhile. Held too
while a call claims what it is given: of two calls that want the same memory, one gets it."""


class Memory(list[Any]):
    """What a backend stored of a group. It is the same object from call to call as long as it is
    the same memory."""

    __slots__ = ("__weakref__", "identities")

    def __init__(self, storages: list[Any]) -> None:
        super().__init__(storages)
        self.identities: object = identities(self)
        """Which storages these are; None: one has been taken out."""


_NO_MEMORY: Final = Memory([])


class Place:
    """A tensor's place in its group, which no other tensor has."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


class Group:
    """Tensors that are looked at by nobody. What is left of it lives as long as any of them."""

    __slots__ = ("given", "home", "kinds", "left", "maker", "memory", "places", "tensors")

    def __init__(
        self,
        home: Home,
        kinds: tuple[TensorType, ...],
        memory: Memory,
        places: list[Place] | None = None,
        maker: object = None,
    ) -> None:
        self.home = home
        self.kinds = kinds
        self.memory = memory
        """By place; None for a tensor that has left."""
        self.places = places or []
        """Those of the tensors, where there are any already."""
        self.maker = maker
        """Who can use its tensors again."""
        self.tensors: object = None
        """Which tensors have these places: their identities."""
        self.given: Donated | None = None
        """What all hold after they were given away."""
        self.left: list[tuple[ref[Node], int]] = []
        """The nodes of tensors that have left, in this order, each with its place."""

    def leave(self, index: int) -> Node:
        """The node of a tensor that somebody looks at. Whoever calls this holds `LEAVING`."""
        storage: Any = self.given
        if storage is None:
            storage, self.memory[index] = self.memory[index], None
            self.memory.identities = None
        node = Node(self.home, None, (), self.kinds[index], None, storage)
        self.left.append((ref(node), index))
        return node

    def late(self, seen: int) -> list[Node]:
        """The nodes of tensors that left after the first `seen`, as far as they are alive. Whoever
        calls this holds `LEAVING`."""
        found = [each() for each, _ in self.left[seen:]]
        return [node for node in found if node is not None]

    def give_away(self, given: Donated) -> None:
        """The memory of all that have not left belongs to somebody else from now on. Whoever calls
        this holds `LEAVING`."""
        self.given = given
        self.memory = _NO_MEMORY

    def take_back(self, memory: Memory, seen: int) -> None:
        """The memory is the group's again, and that of those who left after the first `seen`, when
        it was given away, theirs. Whoever calls this holds `LEAVING`."""
        self.given = None
        self.memory = memory
        for each, index in self.left[seen:]:
            node = each()
            storage, memory[index] = memory[index], None
            memory.identities = None
            if node is not None:
                node.storage = storage
