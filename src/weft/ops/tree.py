"""`weft.tree`: nested containers as trees with leaves.

Tuples, named tuples, lists, dicts, dataclasses and what `weft.register_pytree` was told are
containers; None is a container of nothing, so it is no leaf. `is_leaf` takes more for leaves.
"""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from weft.foundation.errors import UserError, a_type
from weft.ops import pytree
from weft.ops.calls import check_function, public
from weft.ops.other_names import missing
from weft.ops.pytree import IsLeaf, Structure, flatten_up_to, leaf_names

__all__ = [
    "all",
    "flatten",
    "leaves",
    "leaves_with_path",
    "map",
    "map_with_path",
    "reduce",
    "structure",
    "unflatten",
]

_NOTHING = object()


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise missing("weft.tree", name, __all__)


def __dir__() -> list[str]:
    return __all__


@public
def flatten(tree: Any, is_leaf: IsLeaf | None = None) -> tuple[list[Any], Structure]:
    """The leaves of a tree, in order, and its structure."""
    return pytree.flatten(tree, is_leaf)


@public
def unflatten(structure: Structure, leaves: Sequence[Any]) -> Any:
    """The tree of a structure with these leaves."""
    if not isinstance(structure, Structure):
        raise UserError(f"structure is {a_type(structure)}; weft.tree.structure makes one")
    return pytree.unflatten(structure, list(leaves))


@public
def leaves(tree: Any, is_leaf: IsLeaf | None = None) -> list[Any]:
    """The leaves of a tree, in order."""
    return pytree.flatten(tree, is_leaf)[0]


@public
def structure(tree: Any, is_leaf: IsLeaf | None = None) -> Structure:
    """What a tree is without its leaves; equal for trees that are nested in the same way."""
    return pytree.flatten(tree, is_leaf)[1]


@public
def leaves_with_path(tree: Any, is_leaf: IsLeaf | None = None) -> list[tuple[str, Any]]:
    """The leaves of a tree, each with its path, such as `blocks[0].weight` or `['w']`."""
    found, shape = pytree.flatten(tree, is_leaf)
    return list(zip(_paths(shape), found, strict=True))


@public
def map(  # noqa: A001
    function: Callable[..., Any], tree: Any, *others: Any, is_leaf: IsLeaf | None = None
) -> Any:
    """The tree with `function` applied to every leaf, together with what the other trees have at
    its place: they are nested as the first one is, and may go on below its leaves."""
    check_function("map", function)
    columns, shape = _leaf_columns(tree, others, is_leaf)
    return pytree.unflatten(shape, [function(*row) for row in zip(*columns, strict=True)])


@public
def map_with_path(
    function: Callable[..., Any], tree: Any, *others: Any, is_leaf: IsLeaf | None = None
) -> Any:
    """The same as `map`, with the path of the leaf as first argument of the function."""
    check_function("map_with_path", function)
    columns, shape = _leaf_columns(tree, others, is_leaf)
    rows = zip(_paths(shape), *columns, strict=True)
    return pytree.unflatten(shape, [function(*row) for row in rows])


@public
def reduce(
    function: Callable[[Any, Any], Any],
    tree: Any,
    initial: Any = _NOTHING,
    is_leaf: IsLeaf | None = None,
) -> Any:
    """All leaves combined from the first to the last: `function(function(initial, a), b)`."""
    check_function("reduce", function)
    found = pytree.flatten(tree, is_leaf)[0]
    if initial is not _NOTHING:
        return functools.reduce(function, found, initial)
    if not found:
        raise UserError("the tree has no leaves; give `initial`, which is then the result")
    return functools.reduce(function, found)


@public
def all(tree: Any, is_leaf: IsLeaf | None = None) -> bool:  # noqa: A001
    """Whether every leaf is true."""
    return builtins.all(pytree.flatten(tree, is_leaf)[0])


def _leaf_columns(
    tree: Any, others: Sequence[Any], is_leaf: IsLeaf | None
) -> tuple[list[list[Any]], Structure]:
    found, shape = pytree.flatten(tree, is_leaf)
    return [found, *(flatten_up_to(shape, other) for other in others)], shape


def _paths(shape: Structure) -> list[str]:
    return [name.removeprefix(".") for name in leaf_names(shape)]
