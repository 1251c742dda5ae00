"""Pytrees: nested containers as flat lists, which traced functions take and give.

Tuples, named tuples, lists, dicts (in order of their keys; an `OrderedDict` in its own order), None
and dataclasses (by their fields) are containers; so is every class that is registered. Anything
else is a leaf. A dict that is made again has its keys in the order in which it had them, since a
function that goes through it sees that order: dicts of one order are one structure, and `alike`
are those of any.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, TypeAlias, TypeVar

from weft.foundation.calls import told
from weft.foundation.errors import UserError, a_type, brief, with_article
from weft.ops.settings import exact

T = TypeVar("T")
Later: TypeAlias = Callable[[Any], Any]
"""Makes a container that asks somebody for its children when it is looked at."""


@dataclass(frozen=True)
class Node:
    """How one kind of container comes apart: into children and the rest, and together again."""

    flatten: Callable[[Any], tuple[Sequence[Any], Hashable]]
    unflatten: Callable[[Hashable, Sequence[Any]], Any]
    names: Callable[[Hashable, int], list[str]]
    later: Callable[[Hashable], Later | None] | None = None
    """How one is made before its children are, where that can be."""


@dataclass(frozen=True)
class Structure:
    """The shape of a nested container without its leaves; equal for equal shapes."""

    kind: type | None
    """None: a leaf."""
    rest: Hashable = None
    children: tuple[Structure, ...] = ()

    @cached_property
    def leaf_count(self) -> int:
        return 1 if self.kind is None else sum(child.leaf_count for child in self.children)

    @cached_property
    def is_flat(self) -> bool:
        """Whether all its children are leaves."""
        return all(child.kind is None for child in self.children)


LEAF = Structure(None)
_NODES: dict[type, Node | None] = {}
"""None for a class that was looked at and is no container."""
_PYTHONS: set[type] = set()
"""Lists, tuples and dicts, as long as nobody has said how they come apart: the quick way does."""
_OWN = __name__.partition(".")[0]
"""Records of Weft's own, such as dtypes, are values as a whole unless they are marked."""


def _positions(rest: Hashable, count: int) -> list[str]:
    return [f"[{index}]" for index in range(count)]


def _keys(rest: Any, count: int) -> list[str]:
    return [f"[{key!r}]" for key in rest]


def _field_names(rest: Any, count: int) -> list[str]:
    return [f".{name}" for name in rest]


@told
def register_pytree(
    kind: type,
    flatten: Callable[[Any], tuple[Sequence[Any], Hashable]],
    unflatten: Callable[[Any, Sequence[Any]], Any],
    names: Callable[[Any, int], list[str]] = _positions,
) -> None:
    """Make a class a container: `flatten(x)` answers (children, rest), `unflatten(rest, children)`
    makes one again, `names(rest, count)` says what its children are called in messages."""
    if not isinstance(kind, type):
        raise UserError(f"register_pytree takes a class, not {brief(kind)}")
    for part in (flatten, unflatten, names):
        if not callable(part):
            raise UserError(f"register_pytree takes functions, not {brief(part)}")
    _NODES[kind] = Node(flatten, unflatten, names)
    _PYTHONS.discard(kind)


def let_wait(kind: type, later: Callable[[Hashable], Later | None]) -> None:
    """Containers of this registered class can be made before their children, where `later(rest)`
    says how."""
    node = _NODES[kind]
    assert node is not None
    _NODES[kind] = dataclasses.replace(node, later=later)


class _Keys(tuple[Any, ...]):
    """The keys of a dict, sorted, where it has them in another `order`, or where they are no
    strings: 1, 1.0 and True are three keys to a function."""

    order: tuple[Any, ...]
    kinds: Any
    """What these have besides their equals."""

    def __new__(cls, keys: Iterable[Any], order: tuple[Any, ...]) -> _Keys:
        made = super().__new__(cls, keys)
        made.order = order
        made.kinds = exact(order)
        return made

    def are_those_of(self, order: tuple[Any, ...]) -> bool:
        """Whether a dict with keys in this order has them."""
        return self.order == order and self.kinds == exact(order)

    def __getnewargs__(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        return tuple(self), self.order

    def __eq__(self, other: object) -> bool:
        if type(other) is not _Keys or self.kinds != other.kinds:
            return False
        return self.order == other.order and tuple.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.order)


def _sorted_keys(order: tuple[Any, ...]) -> tuple[Any, ...]:
    try:
        return tuple(sorted(order))
    except TypeError:
        return order


def _flatten_dict(value: dict[Any, Any]) -> tuple[list[Any], Hashable]:
    order = tuple(value)
    keys = _sorted_keys(order)
    children = [value[key] for key in keys]
    return children, keys if keys == order and _are_strings(keys) else _Keys(keys, order)


def _are_strings(keys: Iterable[Any]) -> bool:
    return set(map(type, keys)) <= {str}


def _ordered_keys(value: OrderedDict[Any, Any]) -> tuple[Any, ...]:
    order = tuple(value)
    return order if _are_strings(order) else _Keys(order, order)


def _items(keys: Any, children: Iterable[Any]) -> Iterable[tuple[Any, Any]]:
    """What a dict of these keys has, in its own order."""
    pairs = zip(keys, children, strict=True)
    if type(keys) is not _Keys:
        return pairs
    found = dict(pairs)
    return [(key, found[key]) for key in keys.order]


register_pytree(tuple, lambda x: (x, None), lambda rest, c: tuple(c))
register_pytree(list, lambda x: (x, None), lambda rest, c: list(c))
register_pytree(dict, _flatten_dict, lambda rest, c: dict(_items(rest, c)), _keys)
register_pytree(
    OrderedDict,
    lambda x: (list(x.values()), _ordered_keys(x)),
    lambda rest, c: OrderedDict(zip(rest, c, strict=True)),
    _keys,
)
register_pytree(
    defaultdict,
    lambda x: (_flatten_dict(x)[0], (x.default_factory, _flatten_dict(x)[1])),
    lambda rest, c: defaultdict(rest[0], _items(rest[1], c)),
    lambda rest, count: _keys(rest[1], count),
)
register_pytree(type(None), lambda x: ((), None), lambda rest, c: None)
_PYTHONS.update((list, tuple, dict))


@told
def pytree(cls: type[T]) -> type[T]:
    """Make a dataclass a container of its fields, and say so where it is defined. Dataclasses that
    are not marked are containers too."""
    if not dataclasses.is_dataclass(cls):
        raise UserError(
            f"pytree takes a dataclass, not {brief(cls)}; other classes are made containers by "
            "weft.register_pytree"
        )
    _NODES[cls] = _dataclass_node(cls)
    return cls


def _dataclass_node(cls: Any) -> Node:
    """The fields are the children. One with `metadata={"static": True}` is a setting: it must be
    hashable, and is part of the structure."""
    fields = dataclasses.fields(cls)
    names = tuple(field.name for field in fields if not field.metadata.get("static"))
    settings = tuple(field.name for field in fields if field.metadata.get("static"))

    def flatten(value: Any) -> tuple[list[Any], Hashable]:
        held = tuple(getattr(value, name) for name in settings)
        return [getattr(value, name) for name in names], (names, held, exact(held))

    def unflatten(rest: Any, children: Sequence[Any]) -> Any:
        made = object.__new__(cls)
        for name, child in zip((*rest[0], *settings), (*children, *rest[1]), strict=True):
            object.__setattr__(made, name, child)
        return made

    def field_names(rest: Any, count: int) -> list[str]:
        return _field_names(rest[0], count)

    return Node(flatten, unflatten, field_names)


def _named_tuple_node(kind: Any) -> Node:
    names = tuple(kind._fields)
    return Node(lambda x: (tuple(x), names), lambda rest, c: kind(*c), _field_names)


def _node_of(kind: type) -> Node | None:
    if kind not in _NODES:
        _NODES[kind] = _found_node(kind)
    return _NODES[kind]


def _found_node(kind: type) -> Node | None:
    """How a class comes apart that nobody registered."""
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _named_tuple_node(kind)
    if dataclasses.is_dataclass(kind) and kind.__module__.partition(".")[0] != _OWN:
        return _dataclass_node(kind)
    return None


def is_container(value: Any) -> bool:
    """Whether a value comes apart into leaves."""
    return _node_of(type(value)) is not None


IsLeaf: TypeAlias = Callable[[Any], bool]
"""Whether a value is taken as a whole, be it a container or not."""


def flatten(value: Any, is_leaf: IsLeaf | None = None) -> tuple[list[Any], Structure]:
    """The leaves of a nested container, in order, and its structure."""
    leaves: list[Any] = []
    return leaves, _flatten(value, leaves, 0, is_leaf)


def _flatten(value: Any, leaves: list[Any], depth: int, is_leaf: IsLeaf | None) -> Structure:
    node = _node_of(type(value))
    if node is None or (is_leaf is not None and is_leaf(value)):
        leaves.append(value)
        return LEAF
    if depth > 200:
        raise UserError("a container is nested more than 200 deep, or contains itself")
    children, rest = node.flatten(value)
    if is_leaf is None and not any(map(_node_of, set(map(type, children)))):
        leaves += children
        return Structure(type(value), rest, (LEAF,) * len(children))
    found = [_flatten(child, leaves, depth + 1, is_leaf) for child in children]
    return Structure(type(value), rest, tuple(found))


def leaves_like(structure: Structure, value: Any) -> list[Any] | None:
    """The leaves of a container that has a structure; None where it has another one."""
    leaves: list[Any] = []
    return leaves if _collect_leaves(structure, value, leaves, True) else None


def parts_like(structure: Structure, value: Any) -> list[Any] | None:
    """What a container has at the leaves of a structure, be they leaves of the container or not;
    None where it is nested in another way."""
    parts: list[Any] = []
    return parts if _collect_leaves(structure, value, parts, False) else None


def _collect_leaves(structure: Structure, value: Any, leaves: list[Any], ends: bool) -> bool:
    """Whether a value has a structure; it `ends` where the structure does, or may go on below."""
    kind = structure.kind
    if kind is not type(value):
        leaves.append(value)
        return kind is None and not (ends and _node_of(type(value)))
    children = _children_like(structure, value)
    inside = structure.children
    if children is None or len(children) != len(inside):
        return False
    if structure.is_flat:
        leaves += children
        return not ends or not any(map(_node_of, set(map(type, children))))
    for inner, child in zip(inside, children, strict=True):
        if not _collect_leaves(inner, child, leaves, ends):
            return False
    return True


def _children_like(structure: Structure, value: Any) -> Collection[Any] | None:
    """The children of a value of the kind that a structure is; None where it has another rest."""
    kind = structure.kind
    if kind in _PYTHONS:
        if kind is not dict:
            return value  # type: ignore[no-any-return]
        order, rest = tuple(value), structure.rest
        if order == rest and type(rest) is tuple:
            return value.values()  # type: ignore[no-any-return]
        if type(rest) is _Keys and rest.are_those_of(order):
            return [value[key] for key in rest]
    node = _node_of(type(value))
    if node is None:
        return None
    children, rest = node.flatten(value)
    return children if rest is structure.rest or rest == structure.rest else None


def alike(left: Structure, right: Structure) -> bool:
    """Whether two structures are the same but for the order in which dicts have their keys: their
    leaves are at the same places."""
    if left == right:
        return True
    return (
        left.kind is right.kind
        and _loose(left.rest) == _loose(right.rest)
        and len(left.children) == len(right.children)
        and all(map(alike, left.children, right.children))
    )


def _loose(rest: Hashable) -> Hashable:
    """The rest of a container without the order of keys."""
    return tuple(map(_loose, rest)) if isinstance(rest, tuple) else rest


def flatten_up_to(structure: Structure, value: Any, name: str = "") -> list[Any]:
    """What a container has at the leaves of a structure that it begins with: leaves, or containers
    that go on below."""
    if structure.kind is None:
        return [value]
    node = _node_of(structure.kind)
    assert node is not None
    children, rest = node.flatten(value) if type(value) is structure.kind else ((), None)
    same = type(value) is structure.kind and _loose(rest) == _loose(structure.rest)
    if not same or len(children) != len(structure.children):
        raise UserError(
            f"the trees are nested in different ways: at {name or 'the top'} the first has "
            f"{_describe(structure)}, another {_describe(flatten(value)[1], value)}",
            "TreeMismatch",
        )
    steps = node.names(structure.rest, len(children))
    parts = zip(structure.children, children, steps, strict=True)
    return [x for inner, child, step in parts for x in flatten_up_to(inner, child, name + step)]


def _describe(structure: Structure, value: Any = None) -> str:
    if structure.kind is None:
        return a_type(value)
    keys = f" {structure.rest}" if isinstance(structure.rest, tuple) else ""
    return f"{with_article(structure.kind.__name__)} of {len(structure.children)}{keys}"


def children(value: Any) -> list[tuple[str, Any]] | None:
    """The parts of a container with what they are called, in order; None for a leaf."""
    node = _node_of(type(value))
    if node is None:
        return None
    parts, rest = node.flatten(value)
    return list(zip(node.names(rest, len(parts)), parts, strict=True))


def keyed(value: Any) -> list[tuple[Any, Any]] | None:
    """The parts of a container, in order, each with the index, key or attribute that it is; None
    for a leaf."""
    parts = children(value)
    if parts is None:
        return None
    keys: Iterable[Any] = [name.removeprefix(".") for name, _ in parts]
    if isinstance(value, list | tuple):
        keys = range(len(parts))
    elif isinstance(value, dict):
        keys = value if isinstance(value, OrderedDict) else _sorted_keys(tuple(value))
    return [(key, child) for key, (_, child) in zip(keys, parts, strict=True)]


def unflatten(structure: Structure, leaves: Sequence[Any]) -> Any:
    """The container with these leaves."""
    if len(leaves) != structure.leaf_count:
        raise UserError(f"{len(leaves)} leaves for a structure of {structure.leaf_count}")
    return _unflatten(structure, iter(leaves))


def _unflatten(structure: Structure, leaves: Iterator[Any]) -> Any:
    kind = structure.kind
    if kind is None:
        return next(leaves)
    items: Iterable[Any]
    if structure.is_flat:
        items = islice(leaves, len(structure.children))
    else:
        items = [_unflatten(child, leaves) for child in structure.children]
    if kind in _PYTHONS:
        rest: Any = structure.rest
        return kind(items) if kind is not dict else dict(_items(rest, items))
    node = _node_of(kind)
    assert node is not None
    return node.unflatten(structure.rest, list(items))


def later_of(structure: Structure) -> Later | None:
    """How a container is made before its children are; None where that cannot be."""
    node = None if structure.kind is None else _node_of(structure.kind)
    return None if node is None or node.later is None else node.later(structure.rest)


def leaf_names(structure: Structure, prefix: str = "") -> list[str]:
    """What each leaf is called: `params['w'][0].bias`."""
    if structure.kind is None:
        return [prefix]
    node = _node_of(structure.kind)
    assert node is not None
    steps = node.names(structure.rest, len(structure.children))
    return [
        name
        for step, child in zip(steps, structure.children, strict=True)
        for name in leaf_names(child, prefix + step)
    ]


def map_leaves(function: Callable[..., Any], value: Any, *others: Any) -> Any:
    """The container with `function` applied to each leaf (and what is at its place in the
    others)."""
    leaves, structure = flatten(value)
    rest = [flatten_up_to(structure, other) for other in others]
    return unflatten(structure, [function(*items) for items in zip(leaves, *rest, strict=True)])
