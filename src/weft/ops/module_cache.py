"""The cache of flattened modules: a call with a module that has not changed does not look into it.

What a module has can change in five ways, and each is seen.

    an attribute is set or deleted          the module tells whoever remembers it
    an item of a list or dict in it         the items are compared with what they were
    an attribute of a setting               the same, where a setting is an object of the user's
    a tensor in it is assigned to           the tensors are looked at after any assignment
    the memory of a tensor is given away    the same

Where somebody was handed the `__dict__` of a module, it is compared as other dicts are. A module
with something in it of which changes would not be seen is not remembered.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import islice
from operator import is_
from typing import Any, Final
from weakref import ref

from weft.driver.backends import Backend
from weft.ops.graph.evaluate import evaluate
from weft.ops.graph.node import CHANGES, Donated, Node
from weft.ops.pytree import children, flatten
from weft.ops.settings import changing_parts
from weft.ops.state import Holder, attributes, tells, watch
from weft.ops.tensor import Tensor
from weft.ptir.literal import TensorLiteral
from weft.ptir.types import TensorType

_DEEPEST: Final = 200
_MOST_PARTS: Final = 100
"""How many objects inside one setting are looked at."""


class Remembered:
    """What one module, with all that is in it, was found to have."""

    elements_stay: Final = True
    """A program may keep what it makes of the tensors: nobody writes into their memory."""

    __slots__ = (
        "__weakref__", "_dicts", "_last", "_lists", "_nodes", "backend", "is_current", "kinds",
        "leaves", "storages", "structure",
    )  # fmt: skip

    def __init__(self, module: Holder) -> None:
        self.is_current = True
        self._last = CHANGES.last
        self._lists: list[tuple[Collection[Any], list[Any]]] = []
        self._dicts: list[tuple[dict[Any, Any], list[Any], list[Any]]] = []
        self._watch(module, ref(self), 0)
        leaves, self.structure = flatten(module)
        self.leaves: list[Tensor] = leaves
        self.backend: Backend | None = None
        self._nodes: list[Node] = []
        self.storages: list[Any] = []
        self.kinds: tuple[TensorType, ...] = ()
        if not set(map(type, leaves)) <= {Tensor}:
            self.is_current = False
        if self.is_current:
            self._look()

    def _watch(self, value: Any, me: ref[Remembered], depth: int) -> None:
        """Be told of changes, or keep what there is to compare with. First this, and then the
        tensors: a change in between is one that is seen."""
        kind = type(value)
        if isinstance(value, Holder):
            watch(value, me)
        parts = children(value) or ()
        if isinstance(value, Holder):
            if not tells(kind):
                self.is_current = False
            inside = {name.removeprefix(".") for name, _ in parts}
            for name, setting in attributes(value).items():
                if name not in inside:
                    self._watch_setting(setting)
            if value._is_open:
                self._compare_later(attributes(value))
        elif kind is list:
            self._lists.append((value, list(value)))
        elif kind is dict:
            self._compare_later(value)
        elif kind is not tuple and kind is not Tensor and value is not None:
            self.is_current = False
        if depth > _DEEPEST:
            self.is_current = False
        if kind is Tensor or not self.is_current:
            return
        for _, child in parts:
            self._watch(child, me, depth + 1)

    def _watch_setting(self, value: Any) -> None:
        """The same for what a setting has, where that may change while it is the same object."""
        for part in islice(changing_parts(value), _MOST_PARTS):
            if type(part) is dict:
                self._compare_later(part)
            elif type(part) not in (list, set):
                self.is_current = False
            else:
                # Sets are compared as lists are: one that has not changed has its order.
                self._lists.append((part, list(part)))

    def _compare_later(self, held: dict[Any, Any]) -> None:
        self._dicts.append((held, list(held), list(held.values())))

    def _look(self) -> None:
        """The tensors, as a program takes them."""
        leaves = self.leaves
        evaluate([leaf._node for leaf in leaves])
        nodes = [leaf._node for leaf in leaves]
        backends = {id(node.arena.backend) for node in nodes}
        if len(backends) > 1 or any(leaf.number is not None for leaf in leaves):
            self.is_current = False
            return
        self.backend = nodes[0].arena.backend if nodes else None
        self._nodes, self.kinds = nodes, tuple([node.tensor for node in nodes])
        self.storages = [self._store_literal(node.storage) for node in nodes]

    def _store_literal(self, storage: Any) -> Any:
        if isinstance(storage, TensorLiteral) and self.backend is not None:
            return self.backend.store(storage.array)
        if storage is None or isinstance(storage, Donated):
            self.is_current = False
        return storage

    def forget(self) -> None:
        """A module has something else now. What it had is not kept for this."""
        self.is_current = False
        self.leaves, self._nodes, self.storages = [], [], []
        self._lists, self._dicts = [], []

    def holds(self) -> bool:
        """Whether everything is as it was."""
        for items, before in self._lists:
            if len(items) != len(before) or not all(map(is_, items, before)):
                return False
        for held, keys, values in self._dicts:
            if not _are_same(held, keys, values):
                return False
        if self._last is not CHANGES.last and not self._same_tensors():
            return False
        return self.is_current

    def _same_tensors(self) -> bool:
        last = CHANGES.last
        for leaf, node in zip(self.leaves, self._nodes, strict=True):
            if leaf._node is not node or type(node.storage) is Donated:
                return False
        self._last = last
        return True


def _are_same(held: dict[Any, Any], keys: Sequence[Any], values: Sequence[Any]) -> bool:
    return (
        len(held) == len(keys)
        and all(map(is_, held, keys))
        and all(map(is_, held.values(), values))
    )


def recall(module: Holder) -> Remembered | None:
    """What a module has, from memory where it has not changed; None where that cannot be kept."""
    known: Remembered | None = module._known
    if known is not None and known.holds():
        return known
    found = Remembered(module)
    known = found if found.is_current else None
    object.__setattr__(module, "_known", known)
    return known
