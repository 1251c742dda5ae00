"""Tensors that a call made together, as long as nobody has looked at them.

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
from weft.ops.graph.node import CHANGES, Donated, Home, Node
from weft.ptir.types import TensorType

LEAVING: Final = new_reentrant_lock()
"""Held while a tensor leaves its group: it gets one node, whoever looks at it meanwhile."""


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
        self.left: list[ref[Node]] = []
        """The nodes of tensors that have left, in this order."""

    def leave(self, index: int) -> Node:
        """The node of a tensor that somebody looks at. Whoever calls this holds `LEAVING`."""
        storage: Any = self.given
        if storage is None:
            storage, self.memory[index] = self.memory[index], None
            self.memory.identities = None
        node = Node(self.home, None, (), self.kinds[index], None, storage)
        self.left.append(ref(node))
        return node

    def give_away(self, given: Donated, seen: int) -> bool:
        """The memory of all that have not left belongs to somebody else from now on, and that of
        those who left after the first `seen`. Whether there are none of these."""
        with LEAVING:
            self.given = given
            self.memory = _NO_MEMORY
            late = self.left[seen:]
        for each in late:
            node = each()
            if node is not None:
                node.storage = given
        if late:
            CHANGES.tell()
        return not late
