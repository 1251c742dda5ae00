"""State changes of modules: what a traced function assigns to the modules that it was given.

A traced function gets copies of the modules among its arguments, with traced tensors in them. After
it has run, every attribute of every copy is compared with what it was before. What differs is put
into the caller's own module after each call: a tensor in the place of another is one more result of
the program, and an attribute that is of another form (a list that has grown, a tensor where there
was None, another setting) is made again from such results and from what the caller's modules hold.
So a function does the same to a module with and without `jit`, `grad` and `checkpoint`, and nobody
hands state from call to call. Where the form has changed, the next call is one with other arguments
and is traced for them.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from weft.foundation.errors import UserError, a_type
from weft.ops.graph.node import Node
from weft.ops.pytree import Structure, flatten, keyed, unflatten
from weft.ops.settings import can_change, frozen
from weft.ops.state import Holder, attributes
from weft.ops.tensor import Tensor
from weft.ops.traced_numbers import UNFOLLOWED

_ITEMS: Final = (list, dict, tuple)
"""Containers whose items a module may assign to."""


@dataclass(frozen=True)
class Place:
    """An attribute of a module that is a tensor, or an item of the lists, dicts and tuples that the
    attribute is."""

    holder: Holder
    name: str
    path: tuple[Any, ...] = ()
    """The indices and keys of the item, outermost first."""

    def __str__(self) -> str:
        items = "".join(f"[{key!r}]" for key in self.path)
        return f"the attribute {self.name}{items} of {a_type(self.holder)}"

    @property
    def now(self) -> Any:
        """What stands there."""
        found: Any = attributes(self.holder)[self.name]
        for key in self.path:
            found = found[key]
        return found

    def put(self, tensor: Tensor) -> None:
        """Let this tensor stand there. Lists and dicts stay the objects that they are. What a class
        does on assignment, in a `__setattr__` of its own, was done in the trace."""
        found = _with_item(attributes(self.holder).get(self.name), self.path, tensor)
        Holder.__setattr__(self.holder, self.name, found)


def _with_item(value: Any, path: Sequence[Any], tensor: Tensor) -> Any:
    """A container with a tensor at its place: itself, or another tuple."""
    if not path:
        return tensor
    key, *rest = path
    item = _with_item(value[key], rest, tensor)
    if isinstance(value, tuple):
        items = (*value[:key], item, *value[key + 1 :])
        return items if type(value) is tuple else type(value)(*items)
    value[key] = item
    return value


def places(value: Any) -> list[Place | None]:
    """Where each leaf of a container stands; None: in no module, or in a container of a kind that
    cannot be assigned to."""
    return list(_leaf_places(value, None))


def _leaf_places(value: Any, own: Place | None) -> Iterator[Place | None]:
    parts = keyed(value)
    if parts is None:
        yield own
        return
    for key, child in parts:
        place = None
        if isinstance(value, Holder):
            place = Place(value, key)
        elif own is not None and isinstance(value, _ITEMS):
            place = replace(own, path=(*own.path, key))
        yield from _leaf_places(child, place)


def _holders(value: Any) -> dict[int, tuple[Holder, range]]:
    """The modules in a container by their numbers, each before those in it, with its leaves."""
    found: dict[int, tuple[Holder, range]] = {}
    _count_leaves(value, 0, found)
    return found


def _count_leaves(value: Any, first: int, found: dict[int, tuple[Holder, range]]) -> int:
    """The number of the leaf that comes after a value, whose modules are noted."""
    parts = keyed(value)
    if parts is None:
        return first + 1
    number, end = len(found), first
    if isinstance(value, Holder):
        found[number] = value, range(first)
    for _, child in parts:
        end = _count_leaves(child, end, found)
    if isinstance(value, Holder):
        found[number] = value, range(first, end)
    return end


# -- what an attribute is made of ----------------------------------------------------------------


@dataclass(frozen=True)
class _Result:
    """A tensor that the program gives."""

    at: int
    is_number: bool


@dataclass(frozen=True)
class _Leaf:
    """A tensor of the arguments, as it was given."""

    number: int


@dataclass(frozen=True)
class _Module:
    """A module of the arguments."""

    number: int


@dataclass(frozen=True)
class _Value:
    """Anything else. It is the same in every call."""

    value: Any


_Source: TypeAlias = _Result | _Leaf | _Module | _Value


@dataclass(frozen=True)
class _Remade:
    """An attribute of a module of the arguments that has another form than before."""

    module: int
    """The number of the module."""
    span: range
    """The leaves of that module."""
    name: str
    structure: Structure | None
    """How it is nested; None: the attribute is not there any more."""
    sources: tuple[_Source, ...] = ()
    is_same: bool = False
    """Whether it is the list or dict that it was, with other items."""

    def put(self, holder: Holder, values: Sequence[Any]) -> None:
        """Give the attribute to the caller's module."""
        if self.structure is None:
            Holder.__delattr__(holder, self.name)
            return
        made, old = unflatten(self.structure, values), attributes(holder).get(self.name)
        if self.is_same and isinstance(old, list):
            old[:] = made
            made = old
        elif self.is_same and isinstance(old, dict):
            old.clear()
            old.update(made)
            made = old
        Holder.__setattr__(holder, self.name, made)


@dataclass(frozen=True)
class Changes:
    """What a traced function leaves in the modules among its arguments."""

    leaves: tuple[tuple[int, int], ...] = ()
    """Tensors that stand where others stood: the number of the leaf among the arguments, and that
    of the program's result."""
    remade: tuple[_Remade, ...] = ()
    is_once: bool = False
    """Whether the function has also changed an object that is a setting of a module, and the
    caller's too: it is traced for every call."""

    def __bool__(self) -> bool:
        return bool(self.leaves or self.remade)

    def without(self, donated: Container[int]) -> Changes:
        """Those of modules that are not donated. A donated one cannot be read any more: what became
        of it is what the function returns."""
        leaves = tuple((leaf, at) for leaf, at in self.leaves if leaf not in donated)
        kept = (each for each in self.remade if not any(leaf in donated for leaf in each.span))
        return Changes(leaves, tuple(kept), self.is_once)

    def told(self, given: Any) -> Iterator[tuple[Place, list[int]]]:
        """The places of the caller's modules that get something, with the program's results that
        they get."""
        if self.leaves:
            found = places(given)
            for leaf, at in self.leaves:
                place = found[leaf]
                assert place is not None
                yield place, [at]
        if self.remade:
            holders = _holders(given)
            for each in self.remade:
                results = [source.at for source in each.sources if isinstance(source, _Result)]
                yield Place(holders[each.module][0], each.name), results

    def carry(self, made: Sequence[Tensor], given: Any) -> None:
        """Put it there, all or nothing; `made` are the program's results."""
        found = [place for place, _ in self.told(given)]
        seen = set[tuple[int, str, tuple[Any, ...]]]()
        for place in found:
            key = (id(place.holder), place.name, place.path)
            if key in seen:
                raise UserError(
                    f"{place} appears twice in the arguments, and both were assigned to; a module "
                    "with state can appear only once",
                    "StateSharedTwice",
                )
            seen.add(key)
        values = self._attribute_values(made, given) if self.remade else []
        for place, (_, at) in zip(found, self.leaves, strict=False):
            place.put(Tensor(made[at]._node))
        changed = zip(found[len(self.leaves) :], self.remade, values, strict=True)
        for place, each, parts in changed:
            each.put(place.holder, parts)

    def _attribute_values(self, made: Sequence[Tensor], given: Any) -> list[list[Any]]:
        """What the attributes of another form are made of."""
        leaves, holders = flatten(given)[0], _holders(given)

        def find(source: _Source) -> Any:
            if isinstance(source, _Result):
                tensor = Tensor(made[source.at]._node)
                tensor.number = UNFOLLOWED if source.is_number else None
                return tensor
            if isinstance(source, _Leaf):
                return leaves[source.number]
            return holders[source.number][0] if isinstance(source, _Module) else source.value

        return [list(map(find, each.sources)) for each in self.remade]


NO_CHANGES: Final = Changes()


# -- comparing -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Attribute:
    """What an attribute of a copy was before the function ran."""

    value: Any
    structure: Structure
    leaves: list[Any]
    nodes: list[Node | None]
    """Those of the leaves that are tensors."""


class Watched:
    """The modules among the arguments of a traced function, before it runs."""

    def __init__(self, given: Any) -> None:
        leaves, _ = flatten(given)
        self._places = places(given)
        self._nodes = [leaf._node if isinstance(leaf, Tensor) else None for leaf in leaves]
        self._numbers = {id(x): number for number, x in enumerate(leaves) if isinstance(x, Tensor)}
        self._holders = _holders(given)
        self._known = {id(holder): number for number, (holder, _) in self._holders.items()}
        self._before = [
            {name: self._look_at(value) for name, value in attributes(holder).items()}
            for holder, _ in self._holders.values()
        ]
        parts = [leaf for held in self._before for each in held.values() for leaf in each.leaves]
        settings = [part for part in parts if not isinstance(part, Tensor | Holder)]
        self._settings = [(part, frozen(part, 0)) for part in settings if can_change(part)]

    def changes(self, roots: list[Node]) -> Changes:
        """What is there now that was not; the values are added to the results of the program."""
        remade = tuple(self._find_remade(roots))
        other = {(id(self._holders[each.module][0]), each.name) for each in remade}
        leaves = []
        for number, place in enumerate(self._places):
            before = self._nodes[number]
            if place is None or before is None or (id(place.holder), place.name) in other:
                continue
            now = place.now._node
            if now is not before:
                leaves.append((number, _number_root(now, roots)))
        return Changes(tuple(leaves), remade, self._are_settings_changed())

    def _are_settings_changed(self) -> bool:
        return any(frozen(setting, 0) != before for setting, before in self._settings)

    def check_returned(self, name: str, result: Any) -> None:
        """Whatever was assigned to is part of what a body of control flow returns: there is nobody
        to hand it to else."""
        roots: list[Node] = []
        changes = self.changes(roots)
        given = {leaf._node for leaf in flatten(result)[0] if isinstance(leaf, Tensor)}
        returned = {id(holder) for holder, _ in _holders(result).values()}
        lost = [self._places[leaf] for leaf, at in changes.leaves if roots[at] not in given]
        for each in changes.remade:
            holder, _ = self._holders[each.module]
            if id(holder) not in returned:
                lost.append(Place(holder, each.name))
        for place in lost:
            raise UserError(
                f"[{name}] assigns to {place}, and does not return it; return the module from "
                f"{name}, as a result or as part of the carry",
                "StateLost",
            )

    def _find_remade(self, roots: list[Node]) -> Iterator[_Remade]:
        for (number, (holder, span)), before in zip(
            self._holders.items(), self._before, strict=True
        ):
            now = attributes(holder)
            for name in before:
                if name not in now:
                    yield _Remade(number, span, name, None)
            for name, value in now.items():
                old = before.get(name)
                found = self._look_at(value)
                is_same = old is not None and value is old.value
                # Somebody else may hold the list that stood there, which stays as it was.
                is_other = not is_same and isinstance(value, list | dict)
                if old is None or is_other or not self._has_form(found, old):
                    sources = tuple([self._source(leaf, roots) for leaf in found.leaves])
                    yield _Remade(number, span, name, found.structure, sources, is_same)

    def _look_at(self, value: Any) -> _Attribute:
        leaves, structure = flatten(value, self._is_whole)
        nodes = [leaf._node if isinstance(leaf, Tensor) else None for leaf in leaves]
        return _Attribute(value, structure, leaves, nodes)

    def _is_whole(self, value: Any) -> bool:
        """Whether a part of an attribute is kept as it is: a module of the arguments, and what has
        no tensors in it."""
        if isinstance(value, Holder):
            return id(value) in self._known
        if value is None or isinstance(value, _ITEMS):
            return False
        return not any(isinstance(leaf, Tensor) for leaf in flatten(value)[0])

    def _has_form(self, now: _Attribute, before: _Attribute) -> bool:
        """Whether an attribute differs in nothing but tensors, which can be assigned to."""
        if now.structure != before.structure:
            return False
        for old, node, leaf in zip(before.leaves, before.nodes, now.leaves, strict=True):
            if node is None:
                if leaf is not old and not _are_equal(leaf, old):
                    return False
            elif not isinstance(leaf, Tensor) or (
                leaf._node is not node and self._places[self._numbers[id(old)]] is None
            ):
                return False
        return True

    def _source(self, leaf: Any, roots: list[Node]) -> _Source:
        if isinstance(leaf, Holder):
            return _Module(self._known[id(leaf)])
        if not isinstance(leaf, Tensor):
            return _Value(leaf)
        number = self._numbers.get(id(leaf))
        if number is not None and leaf._node is self._nodes[number]:
            return _Leaf(number)
        is_number = leaf.number is not None and not leaf.dtype.is_integer
        return _Result(_number_root(leaf._node, roots), is_number)


def _number_root(node: Node, roots: list[Node]) -> int:
    """The number of a node among the results of a program, of which it is one from now on."""
    if node not in roots:
        roots.append(node)
    return roots.index(node)


def _are_equal(left: Any, right: Any) -> bool:
    """Whether two settings are the same to Python code."""
    return type(left) is type(right) and bool(frozen(left, 0) == frozen(right, 0))
