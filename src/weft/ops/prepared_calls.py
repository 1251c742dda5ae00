"""The fast path of `jit`: calls with arguments like those of an earlier call.

The first call of its kind takes the arguments apart, finds or compiles a version, and leaves a
`Ready` behind: for each argument what it has to be like for the same version to serve. Later calls
compare the arguments with that, one after the other, and collect what the program takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any, Final, Protocol
from weakref import ref

import numpy as np

from weft.driver.backends import Backend
from weft.driver.execute import Prepared
from weft.foundation.arrays import handed_in
from weft.foundation.errors import WeftError
from weft.ops.autocast import autocast_dtype
from weft.ops.donated_arguments import Found, OtherKind, Outline, results_of
from weft.ops.donation import Claim
from weft.ops.graph.arena import Arena
from weft.ops.graph.context import own_arena
from weft.ops.graph.faults import told_by_line
from weft.ops.graph.hooks import execute
from weft.ops.graph.node import Donated, Node, tensor_type
from weft.ops.mode import called_in_training
from weft.ops.module_cache import Remembered, recall
from weft.ops.numbers import number
from weft.ops.promotion import EXACT
from weft.ops.pytree import LEAF, Structure, leaves_like
from weft.ops.settings import can_change
from weft.ops.state import Holder
from weft.ops.tensor import Tensor, from_array
from weft.ops.versions import Argument, Setting, Version
from weft.ptir.literal import TensorLiteral
from weft.ptir.types import TensorType

_NOT_HELD: Final = frozenset({type(None), TensorLiteral, Donated})
"""What a node has where there is no memory to hand to a program."""
_TENSORS: Final = {Tensor}
_PLAIN: Final = (int, str, bool, type(None))
"""Static values that are told apart by their types and values alone."""


class Taken:
    """What a call hands to a program."""

    __slots__ = ("groups", "handed", "home", "inputs", "modules", "numbers", "owners", "places")

    def __init__(self, home: Arena) -> None:
        self.home = home
        self.inputs: list[Any] = []
        self.places: list[int] = []
        """The donated inputs of which it has to be known to whom they belong."""
        self.owners: list[Any] = []
        """The leaves of the arguments that these are."""
        self.handed: dict[Outline, list[Found]] = {}
        """The donated arguments that are groups."""
        self.groups: list[Found] = []
        """All of these."""
        self.modules: list[Remembered] = []
        self.numbers: dict[int, Any] = {}
        """The Python numbers among the leaves, by position."""

    def claim(self) -> Claim:
        """Donated arguments can no longer be read."""
        return Claim(self.owners, self.groups)

    def keep_tensors(self) -> None:
        """Those of groups that were given away are used again when nobody holds them any more."""
        for each in self.groups:
            each.keep_tensors()


class Slot(Protocol):
    """What one argument has to be like."""

    def take(self, value: Any, call: Taken) -> bool:
        """Whether it is, and then its tensors are among those of the call."""
        ...


@dataclass
class _Static:
    """An argument that is part of the version."""

    setting: Setting
    can_change: bool
    """Whether it may be another setting while it is the same object."""

    def take(self, value: Any, call: Taken) -> bool:
        own = self.setting.value
        if value is own:
            return not self.can_change or Setting.of(value) == self.setting
        return type(value) in _PLAIN and type(value) is type(own) and bool(value == own)


@dataclass
class _Module:
    """A module with tensors of these types."""

    structure: Structure
    kinds: tuple[TensorType, ...]

    def find(self, value: Any, backend: Backend) -> Remembered | None:
        """What is known of a module, if it is one like this."""
        known = recall(value) if isinstance(value, Holder) else None
        if known is None or known.kinds != self.kinds:
            return None
        if known.backend is not None and known.backend is not backend:
            return None
        if known.structure is not self.structure:
            if known.structure != self.structure:
                return None
            known.structure = self.structure
        return known

    def take(self, value: Any, call: Taken) -> bool:
        known = self.find(value, call.home.backend)
        if known is None:
            return False
        call.modules.append(known)
        call.inputs += known.storages
        return True


@dataclass
class _Tree:
    """Anything else: a container, an array, a number. It is taken apart in every call, unless it is
    what an earlier call handed on."""

    structure: Structure
    kinds: tuple[TensorType, ...]
    """The types of the leaves."""
    numbers: tuple[bool, ...]
    """Which of them are Python numbers."""
    is_donated: bool = False
    outline: Outline | None = None
    """How it is made of groups, where it is donated and worth it."""

    def take(self, value: Any, call: Taken) -> bool:
        if self.outline is not None:
            try:
                if self._take_groups(self.outline, value, call):
                    return True
            except OtherKind:
                return False
        leaves = leaves_like(self.structure, value)
        if leaves is None:
            return False
        if self.is_donated:
            first = len(call.inputs)
            call.places += range(first, first + len(leaves))
            call.owners += leaves
        if self._are_tensors(leaves):
            return self._take_tensors(leaves, call)
        for leaf, kind, is_number in zip(leaves, self.kinds, self.numbers, strict=True):
            storage = _find_storage(leaf, kind, is_number, call)
            if storage is None:
                return False
            call.inputs.append(storage)
        return True

    def _take_groups(self, outline: Outline, value: Any, call: Taken) -> bool:
        """The same for what nobody has looked at since a call made it."""
        found = outline.find(value, call.home)
        if found is None or not _are_different([*call.groups, *found]):
            return False
        storages = outline.storages(found)
        if found[-1].loose:
            storages, loose = list(storages), outline.loose(found)
            for at, leaf in loose:
                storages[at] = _find_storage(leaf, self.kinds[at], False, call)
                if storages[at] is None:
                    return False
            first = len(call.inputs)
            call.places += [first + at for at, _ in loose]
            call.owners += [leaf for _, leaf in loose]
        call.handed[outline] = found
        call.groups += found
        call.inputs += storages
        return True

    def _are_tensors(self, leaves: Sequence[Any]) -> bool:
        return set(map(type, leaves)) == _TENSORS and True not in self.numbers

    def _take_tensors(self, leaves: Sequence[Tensor], call: Taken) -> bool:
        """The same for many tensors at a time."""
        nodes = [leaf._node for leaf in leaves]
        storages = [node.storage for node in nodes]
        if not _NOT_HELD.isdisjoint(map(type, storages)):
            return False
        if not all(map(is_, [node.type for node in nodes], self.kinds)):
            return False
        if [leaf.number for leaf in leaves].count(None) != len(leaves):
            return False
        call.inputs += storages
        backend = call.home.backend
        return all(arena.backend is backend for arena in {node.arena for node in nodes})


def _are_different(found: Sequence[Found]) -> bool:
    """Whether no group is found twice."""
    return len(found) == 1 or len({id(each.group) for each in found}) == len(found)


def _find_storage(leaf: Any, kind: TensorType, is_number: bool, call: Taken) -> Any:
    """A leaf as the backend has it, if it is of this type; else None."""
    if type(leaf) is Tensor:
        node = leaf._node
        if node.type is not kind or (leaf.number is not None) is not is_number:
            return None
        held = node.arena.backend is call.home.backend and type(node.storage) not in _NOT_HELD
        return node.storage if held else None
    dtype = EXACT.get(type(leaf))
    if dtype is not None and is_number:
        if dtype is not kind.dtype:
            return None
        call.numbers[len(call.inputs)] = leaf
        return call.home.backend.store(number(leaf, dtype).array)
    if dtype is None and not is_number and isinstance(leaf, np.ndarray | np.generic):
        made = from_array(handed_in(leaf), call.home)._node
        return made.storage if made.type is kind else None
    return None


class Ready:
    """A kind of call, and the version that serves it."""

    __slots__ = (
        "_autocast", "_given", "_holder", "_kinds", "_looks", "_names", "_outlines", "_parts",
        "_slots",
        "_training", "backend", "data", "donated", "is_plain", "kinds", "other_data", "results",
        "state", "version",
    )  # fmt: skip

    def __init__(
        self,
        version: Version,
        backend: Backend,
        slots: Mapping[int | str, Slot],
        donated: Sequence[int] = (),
    ) -> None:
        self.version = version
        self.backend = backend
        self.donated = donated
        """The positions of the inputs that a run may overwrite."""
        self._autocast, self._training = version.key.autocast, version.key.training
        self._names = tuple(name for name in slots if isinstance(name, str))
        self._slots = list(slots.values())
        self._kinds = [_one_tensor(slot) for slot in self._slots]
        self._given = [isinstance(slot, _Tree) and slot.is_donated for slot in self._slots]
        traced = version.traced
        self.kinds = [tensor_type(kind.dtype, kind.shape) for kind in traced.results]
        """The types of the results, each the one object that stands for it."""
        self.state = traced.state.without(donated)
        outlines = [slot.outline for slot in self._slots if isinstance(slot, _Tree)]
        handed = [outline for outline in outlines if outline is not None]
        self._outlines = len(handed)
        own = handed if traced.is_plain and not self.state else []
        self.results = results_of(traced.structure, self.kinds, own, frozenset(donated))
        """How what is handed on is made; None: nothing is."""
        self.data = _data_positions(self._slots, False)
        """The positions of the inputs that are of no module."""
        self.other_data = _data_positions(self._slots, True)
        """Those that are of no group either."""
        self._holder: object = None
        self._parts: list[ref[Any]] = []
        are_none = version.ways.are_none and version.values.are_none
        self._looks = bool(traced.captured) or not are_none or traced.state.is_once
        """Whether it has to be looked at what the function captures."""
        pairs = zip(self._kinds, self._slots, strict=True)
        self.is_plain = (
            all(kind is not None or isinstance(slot, _Module) for kind, slot in pairs)
            and not (self._names or donated or self.state)
            and traced.is_plain
            and traced.structure is LEAF
            and len(self.kinds) == 1
        )
        """Whether a call has tensors and modules by position, keeps them, and returns a tensor."""

    def take(
        self, home: Arena, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Taken | None:
        """What the version takes of these arguments; None where the call is of another kind."""
        if len(args) + len(kwargs) != len(self._slots) or len(kwargs) != len(self._names):
            return None
        values = args
        if kwargs:
            if any(name not in kwargs for name in self._names):
                return None
            values = (*args, *[kwargs[name] for name in self._names])
        if autocast_dtype() is not self._autocast or called_in_training(name) != self._training:
            return None
        call = Taken(home)
        inputs = call.inputs
        slots = zip(values, self._kinds, self._slots, self._given, strict=True)
        for value, kind, slot, is_given in slots:
            if kind is None or type(value) is not Tensor:
                if not slot.take(value, call):
                    return None
                continue
            node = value._node
            storage = node.storage
            if node.type is not kind or node.arena.backend is not self.backend:
                return None
            if type(storage) in _NOT_HELD or value.number is not None:
                return None
            if is_given:
                call.places.append(len(inputs))
                call.owners.append(value)
            inputs.append(storage)
        for each in call.groups:
            if not each.is_whole:
                # An argument that came later has a tensor of it too.
                return self.take(home, name, args, kwargs)
        return call

    def call_plain(self, name: str, function: Any, args: Sequence[Any]) -> Tensor | None:
        """The result of a call where `is_plain`; None where the call is of another kind. Nothing is
        done here that such a call does not need."""
        if len(args) != len(self._kinds) or autocast_dtype() is not self._autocast:
            return None
        if called_in_training(name) != self._training:
            return None
        backend = self.backend
        inputs: list[Any] = []
        owners: list[Any] = []
        for value, kind, slot in zip(args, self._kinds, self._slots, strict=True):
            if type(value) is not Tensor or kind is None:
                known = slot.find(value, backend) if isinstance(slot, _Module) else None
                if known is None:
                    return None
                owners.append(known)
                inputs += known.storages
                continue
            node = value._node
            storage = node.storage
            if node.type is not kind or node.arena.backend is not backend:
                return None
            if type(storage) in _NOT_HELD or value.number is not None:
                return None
            inputs.append(storage)
        version = self.version
        if self._looks and not version.is_current(function):
            return None
        version.calls += 1
        if version.traced.captured:
            held = version.held()
            owners.append(held)
            inputs += held.storages
        compiled = version.compiled
        assert isinstance(compiled, Prepared)
        holder = self.holder(owners) if owners else None
        try:
            (result,) = execute(compiled, inputs, 0, holder, self.data)
        except WeftError as error:
            raise told_by_line(error, lambda: version.traced.program) from None
        return Tensor(Node(own_arena(backend), None, (), self.kinds[0], None, result))

    def are_known(self, call: Taken) -> bool:
        """Whether all arguments that can be groups are."""
        return not call.places and len(call.handed) == self._outlines

    def holder(self, parts: Sequence[object]) -> object:
        """Somebody who is the same as long as these parts are, to whom inputs belong."""
        if len(parts) == 1:
            return parts[0]
        same = len(parts) == len(self._parts) and all(
            kept() is part for kept, part in zip(self._parts, parts, strict=True)
        )
        if not same:
            self._parts = [ref(part) for part in parts]
            self._holder = _Holder() if parts else None
        return self._holder


class _Holder:
    """Stands for several owners of inputs."""

    elements_stay: Final = True


def _one_tensor(slot: Slot) -> TensorType | None:
    """The type of an argument that is a tensor and nothing else."""
    if isinstance(slot, _Tree) and slot.structure.kind is None and not slot.numbers[0]:
        return slot.kinds[0]
    return None


def _data_positions(slots: Sequence[Slot], in_groups: bool) -> list[int]:
    """The positions of the inputs that are of no module, nor of a group."""
    found: list[int] = []
    at = 0
    for slot in slots:
        if isinstance(slot, _Static):
            continue
        assert isinstance(slot, _Module | _Tree)
        if isinstance(slot, _Tree) and not (in_groups and slot.outline is not None):
            found += range(at, at + len(slot.kinds))
        at += len(slot.kinds)
    return found


def held_leaves(structure: Structure, captured: int) -> frozenset[int]:
    """The positions of the inputs that belong to modules among the arguments, or are captured: they
    are the same from call to call, where nobody changes them."""
    found, at = set[int](), 0
    for given in structure.children:
        for child in given.children:
            if child.kind is not None and issubclass(child.kind, Holder):
                found.update(range(at, at + child.leaf_count))
            at += child.leaf_count
    return frozenset(found.union(range(at, at + captured)))


def static_slot(setting: Setting) -> Slot:
    return _Static(setting, isinstance(setting.value, Holder) or can_change(setting.value))


def slot_of(value: Any, structure: Structure, arguments: Sequence[Argument], is_kept: bool) -> Slot:
    """The slot for arguments like this one; one that is not kept is a new one in every call."""
    kinds = tuple([tensor_type(each.dtype, each.shape) for each in arguments])
    known = recall(value) if is_kept and isinstance(value, Holder) else None
    if known is not None and known.structure == structure:
        return _Module(known.structure, kinds)
    numbers = tuple([each.is_number for each in arguments])
    can_be_groups = not is_kept and structure.kind is not None and kinds and True not in numbers
    outline = Outline(structure, kinds) if can_be_groups else None
    return _Tree(structure, kinds, numbers, not is_kept, outline)
