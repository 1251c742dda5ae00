"""Fast paths for donated arguments and the results that take their places.

A donated argument and the result that is nested as it is are one thing to the user, who hands it
from call to call. The result is made as groups (`weft.ops.graph.group`), which the next call knows
again and takes as they are:

    a module           has nothing until somebody looks at it: it is one object, whatever it holds
    tensors elsewhere  in lists, tuples, dicts: the tensors of the call before the last are used
                       again, if nobody holds one of them; the containers are new ones

Nobody else has seen the memory of a group, so nobody asks to whom it belongs. What was looked at is
no part of its group any more, and is taken as any tensor is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import is_not
from sys import getrefcount
from typing import Any, Final
from weakref import getweakrefcount

from weft.foundation.identities import identities
from weft.ops.donation import are_separate, are_writeable
from weft.ops.graph.arena import Arena
from weft.ops.graph.group import LEAVING, Group, Memory, Place
from weft.ops.graph.node import Donated, Node
from weft.ops.pytree import LEAF, Later, Structure, later_of, parts_like, unflatten
from weft.ops.state import Holder
from weft.ops.tensor import Tensor
from weft.ptir.types import TensorType

_MOST_SPARE: Final = 2
_UNSHARED: Final = sum(map(getrefcount, [object()]))
"""How often an object is referred to that a list alone holds."""
_new: Final = object.__new__


class OtherKind(Exception):
    """An argument is a group of other types: there is no need to look at its tensors."""


class Found:
    """A group among the arguments of a call."""

    __slots__ = ("_given_after", "group", "left", "loose", "memory", "tensors")

    def __init__(
        self, group: Group, tensors: list[Tensor] | None = None, loose: Sequence[int] = ()
    ) -> None:
        self.group = group
        self.memory = group.memory
        self.left = self._given_after = len(group.left)
        self.tensors = tensors
        """Those of the group, and in the places of the loose ones others."""
        self.loose = loose
        """The places of tensors that have left it."""

    @property
    def is_whole(self) -> bool:
        """Whether no tensor has left the group since it was found."""
        return len(self.group.left) == self.left

    @property
    def given(self) -> Donated | None:
        """What the tensors hold where another call was faster."""
        return self.group.given

    def late(self) -> list[Node]:
        """The nodes of tensors that have left the group since it was found: their memory is among
        what the call takes."""
        return self.group.late(self.left)

    def give_away(self, given: Donated) -> None:
        """The memory is that of a result."""
        self._given_after = len(self.group.left)
        self.group.give_away(given)

    def take_back(self) -> None:
        """There is no such result."""
        self.group.take_back(self.memory, self._given_after)

    def keep_tensors(self) -> None:
        """The tensors, whose memory was given away, may be used again."""
        group, tensors, maker = self.group, self.tensors, self.group.maker
        if tensors is None or self._given_after > self.left or not isinstance(maker, Tensors):
            return
        for index in self.loose:
            group.places[index] = Place(index)
            tensors[index] = _waiting_tensor(group, group.places[index])
        if self.left:
            del group.left[: self.left]
            group.tensors = identities(tensors)
        maker.spare.append((group, tensors))
        del maker.spare[:-_MOST_SPARE]


def _waiting_tensor(group: Group, place: Place) -> Tensor:
    """A tensor without a node."""
    made = _new(Tensor)
    made._group, made._place = group, place
    made.number, made._wants_grad = None, False
    return made


class Tensors:
    """The tensors of a container that are in no module that waits."""

    def __init__(self, kinds: tuple[TensorType, ...]) -> None:
        self.kinds = kinds
        self.spare: list[tuple[Group, list[Tensor]]] = []
        """Groups that were given away, with their tensors."""

    def find(self, tensors: list[Any], home: Arena) -> Found | None:
        """The group of tensors that are all it has left, if they are of these types."""
        first = tensors[0]
        if type(first) is not Tensor or first._place is None:
            first = next((x for x in tensors if type(x) is Tensor and x._place is not None), None)
            if first is None:
                return None
        group = first._group
        loose: Sequence[int] = ()
        with LEAVING:
            # As long as all of its tensors refer to it, none has the identity of one that is gone.
            alive = _referred_to(group) == _LOCAL + len(tensors)
        if not alive or group.tensors != identities(tensors):
            if len(tensors) != len(group.places) or not _are_tensors(tensors):
                return None
            pairs = map(is_not, [tensor._place for tensor in tensors], group.places)
            loose = [number for number, differs in enumerate(pairs) if differs]
        # Who is in the group and not among the tensors is not to be given away with it.
        if len(loose) != len(group.left) or group.given is not None:
            return None
        _check_kind(group, self, home)
        return Found(group, tensors, loose)

    def make(self, home: Arena, memory: Memory) -> list[Tensor]:
        """Tensors with this memory."""
        try:
            group, tensors = self.spare.pop(0)
        except IndexError:
            pass
        else:
            if not group.left and _are_unknown(tensors):
                group.home, group.memory, group.given = home, memory, None
                return tensors
        places = [Place(index) for index in range(len(self.kinds))]
        group = Group(home, self.kinds, memory, places, self)
        tensors = [_waiting_tensor(group, place) for place in places]
        group.tensors = identities(tensors)
        return tensors


def _are_tensors(values: list[Any]) -> bool:
    return set(map(type, values)) == {Tensor}


def _referred_to(group: object) -> int:
    """How often an object is referred to by others than those who ask."""
    return getrefcount(group)


def _known_here() -> int:
    """The same of an object that one function knows."""
    known = object()
    return _referred_to(known)


_LOCAL: Final = _known_here()


def _are_unknown(tensors: list[Tensor]) -> bool:
    """Whether nobody but this list knows any of these tensors."""
    counted = sum(map(getrefcount, tensors)) == _UNSHARED * len(tensors)
    return counted and not any(map(getweakrefcount, tensors))


class Modules:
    """A module that can wait, with all that is in it."""

    def __init__(self, structure: Structure, kinds: tuple[TensorType, ...], later: Later) -> None:
        self.structure = structure
        self.kinds = kinds
        self._later = later

    def find(self, module: Any, home: Arena) -> Found | None:
        """The group of a module that nobody has looked at."""
        waiting = module._waiting if isinstance(module, Holder) else None
        if not isinstance(waiting, _Waiting) or waiting.group.given is not None:
            return None
        if waiting.structure is not self.structure:
            if type(module) is not self.structure.kind or waiting.structure != self.structure:
                raise OtherKind
            waiting.structure = self.structure
        _check_kind(waiting.group, self, home)
        return Found(waiting.group)

    def make(self, home: Arena, memory: Memory) -> Any:
        """A module that gets its tensors, with this memory, when somebody looks at it."""
        return self._later(_Waiting(self.structure, Group(home, self.kinds, memory)))


class _Waiting:
    """Makes what a module has when somebody looks at it."""

    __slots__ = ("_leaves", "group", "structure")

    def __init__(self, structure: Structure, group: Group) -> None:
        self.structure = structure
        self.group = group
        self._leaves: list[Tensor] | None = None

    @property
    def rest(self) -> Any:
        return self.structure.rest

    def children(self) -> list[Any]:
        if self._leaves is None:
            group = self.group
            self._leaves = [Tensor(group.leave(index)) for index in range(len(group.kinds))]
        found, at = [], 0
        for child in self.structure.children:
            found.append(unflatten(child, self._leaves[at : at + child.leaf_count]))
            at += child.leaf_count
        return found


def _check_kind(group: Group, piece: Tensors | Modules, home: Arena) -> None:
    """The tensors of a group are of these types, and on this backend."""
    if group.home.backend is not home.backend:
        raise OtherKind
    if group.kinds is not piece.kinds:
        if group.kinds != piece.kinds:
            raise OtherKind
        group.kinds = piece.kinds


class Outline:
    """How a donated argument, or the result in its place, is made of groups: one of each module
    that can wait, and one of all other tensors."""

    def __init__(self, structure: Structure, kinds: tuple[TensorType, ...]) -> None:
        self.whole = structure
        self.kinds = kinds
        self.count = len(kinds)
        self._parts: list[Modules | None] = []
        """What it has where its outline ends: a module, or None for a tensor."""
        self._starts: list[int] = []
        """Which tensor each of these is, or begins with."""
        self.structure = self._outline_structure(structure, kinds, 0)
        self._modules = [n for n, piece in enumerate(self._parts) if piece is not None]
        self._others = [n for n, piece in enumerate(self._parts) if piece is None]
        own = tuple([kinds[self._starts[n]] for n in self._others])
        self._tensors = Tensors(own) if own else None

    def _outline_structure(
        self, structure: Structure, kinds: tuple[TensorType, ...], at: int
    ) -> Structure:
        """The structure down to modules that can wait."""
        count = structure.leaf_count
        later = later_of(structure) if count else None
        if structure.kind is None or later is not None:
            own = kinds[at : at + count]
            self._parts.append(None if later is None else Modules(structure, own, later))
            self._starts.append(at)
            return LEAF
        children = []
        for child in structure.children:
            children.append(self._outline_structure(child, kinds, at))
            at += child.leaf_count
        return Structure(structure.kind, structure.rest, tuple(children))

    def find(self, value: Any, home: Arena) -> list[Found] | None:
        """The groups that an argument is made of; None where it is not."""
        parts = parts_like(self.structure, value)
        if parts is None:
            return None
        found: list[Found] = []
        for number in self._modules:
            piece = self._parts[number]
            one = piece.find(parts[number], home) if piece is not None else None
            if one is None:
                return None
            found.append(one)
        if self._tensors is not None:
            own = [parts[number] for number in self._others] if found else parts
            one = self._tensors.find(own, home)
            if one is None:
                return None
            found.append(one)
        return found

    def storages(self, found: Sequence[Found]) -> list[Any]:
        """What groups hold, in the order of the tensors."""
        if len(found) == 1:
            return found[0].memory
        storages = [None] * self.count
        for number, each in zip(self._modules, found, strict=False):
            at = self._starts[number]
            storages[at : at + len(each.memory)] = each.memory
        if self._tensors is not None:
            for number, storage in zip(self._others, found[-1].memory, strict=True):
                storages[self._starts[number]] = storage
        return storages

    def loose(self, found: Sequence[Found]) -> list[tuple[int, Any]]:
        """The tensors that are in no group, with their positions."""
        last = found[-1]
        places = [(self._others[number], (last.tensors or ())[number]) for number in last.loose]
        return [(self._starts[number], tensor) for number, tensor in places]

    def memories(
        self, storages: list[Any], found: Sequence[Found], others: list[Memory]
    ) -> list[Memory]:
        """The memory of each group, of tensors that lie there. What lies where it lay in an
        argument is the same memory; all `others` are told."""
        pieces = [storages]
        if len(self._parts) > 1 and self._modules:
            ends = (*self._starts[1:], self.count)
            pieces = [storages[self._starts[n] : ends[n]] for n in self._modules]
            pieces += [[storages[self._starts[n]] for n in self._others]] if self._others else []
        memories = []
        for number, piece in enumerate(pieces):
            memory = found[number].memory if found else None
            if memory is None or identities(piece) != memory.identities:
                memory = Memory(piece)
                others.append(memory)
            memories.append(memory)
        return memories

    def make(self, home: Arena, memories: Sequence[Memory]) -> Any:
        """The result with this memory."""
        if not self._modules:
            assert self._tensors is not None
            return unflatten(self.structure, self._tensors.make(home, memories[0]))
        parts: list[Any] = list(self._parts)
        for number, memory in zip(self._modules, memories, strict=False):
            parts[number] = parts[number].make(home, memory)
        if self._tensors is not None:
            made = self._tensors.make(home, memories[-1])
            for number, tensor in zip(self._others, made, strict=True):
                parts[number] = tensor
        return unflatten(self.structure, parts)


class Results:
    """What a function returns of which parts take the places of donated arguments."""

    def __init__(
        self,
        structure: Structure,
        kinds: Sequence[TensorType],
        parts: Mapping[int, Outline],
        donated: frozenset[int],
    ) -> None:
        self._kinds = kinds
        self._donated = donated
        self._structure = _cut_parts(structure, parts, 0)
        self._items: list[tuple[int, int, Outline | None]] = []
        """What is where these parts are leaves: the first tensor of each, and that behind it."""
        at = 0
        while at < structure.leaf_count:
            part = parts.get(at)
            end = at + (1 if part is None else part.count)
            self._items.append((at, end, part))
            at = end
        self._parts = [number for number, item in enumerate(self._items) if item[2] is not None]

    def made_of(
        self,
        home: Arena,
        storages: list[Any],
        inputs: Sequence[Any],
        handed: Mapping[Outline, Sequence[Found]],
    ) -> Any:
        """The results with this memory, of a call with these inputs; None where some of it may be
        known to somebody else."""
        others: list[Memory] = []
        made: list[Any] = []
        for first, end, part in self._items:
            if part is None:
                node = Node(home, None, (), self._kinds[first], None, storages[first])
                made.append(Tensor(node))
            else:
                own, before = storages[first:end], handed.get(part, ())
                made.append((part, part.memories(own, before, others)))
        if others and not (
            are_separate(storages, inputs, self._donated) and all(map(are_writeable, others))
        ):
            return None
        for number in self._parts:
            part, memories = made[number]
            made[number] = part.make(home, memories)
        return unflatten(self._structure, made)


def results_of(
    structure: Structure,
    kinds: Sequence[TensorType],
    outlines: Sequence[Outline],
    donated: frozenset[int],
) -> Results | None:
    """How results are made, where donated arguments are found again among them."""
    parts: dict[int, Outline] = {}
    for outline in outlines:
        taken = {at for first, own in parts.items() for at in range(first, first + own.count)}
        first = _place_of(outline, structure, kinds, 0, taken)
        if first is not None:
            parts[first] = outline
    return Results(structure, kinds, parts, donated) if parts else None


def _place_of(
    outline: Outline, structure: Structure, kinds: Sequence[TensorType], at: int, taken: set[int]
) -> int | None:
    """The first tensor of a part of the results that is nested and typed as an argument is."""
    count = structure.leaf_count
    if count < outline.count:
        return None
    if structure == outline.whole:
        fits = at not in taken and tuple(kinds[at : at + count]) == outline.kinds
        return at if fits else None
    for child in structure.children:
        found = _place_of(outline, child, kinds, at, taken)
        if found is not None:
            return found
        at += child.leaf_count
    return None


def _cut_parts(structure: Structure, parts: Mapping[int, Outline], at: int) -> Structure:
    """A structure with leaves in the places of the parts that begin at these leaves."""
    part = parts.get(at)
    if part is not None and structure == part.whole:
        return LEAF
    children = []
    for child in structure.children:
        children.append(_cut_parts(child, parts, at))
        at += child.leaf_count
    return Structure(structure.kind, structure.rest, tuple(children))
