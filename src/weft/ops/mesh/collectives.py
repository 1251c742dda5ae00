"""What ranks exchange inside a function with `@weft.spmd(mesh)`. Each takes a tensor or a container
of them, and the axes of the mesh along which ranks meet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft.foundation.dtypes import F16
from weft.foundation.errors import UserError, brief
from weft.foundation.lines import shown, user_line
from weft.foundation.mesh import Mesh, Over
from weft.ops.array.creation import asarray
from weft.ops.calls import public
from weft.ops.mesh.mesh import mesh_in_force
from weft.ops.pytree import flatten, unflatten
from weft.ops.session import Handle, Session
from weft.ops.tensor import Tensor

_REDUCTIONS = ("sum", "mean", "prod", "min", "max")


@public
def all_reduce(tree: Any, op: str = "sum", *, over: Over) -> Any:
    """The sum, mean, prod, min or max over the ranks along some axes of the mesh, on each of
    them."""
    _check_reduction(op, _REDUCTIONS)
    found = mesh_in_force()

    def one(s: Session, x: Handle, groups: dict[str, Any]) -> Handle:
        if op == "mean":
            return _mean_over_ranks(s, "all_reduce", x, groups)
        return s.emit("all_reduce", x, **groups, fn=op)

    return _exchange_leaves(tree, found, over, one)


@public
def all_gather(tree: Any, axis: int = 0, *, over: Over) -> Any:
    """The tensors of all ranks along some axes of the mesh, side by side along `axis`."""
    return _exchange_leaves(
        tree,
        mesh_in_force(),
        over,
        lambda s, x, groups: s.emit("all_gather", x, **groups, axis=axis),
    )


@public
def reduce_scatter(tree: Any, op: str = "sum", axis: int = 0, *, over: Over) -> Any:
    """What `all_reduce` gives, of which each rank keeps its part along `axis`."""
    _check_reduction(op, _REDUCTIONS)

    def one(s: Session, x: Handle, groups: dict[str, Any]) -> Handle:
        if op == "mean":
            return _mean_over_ranks(s, "reduce_scatter", x, groups, axis=axis)
        return s.emit("reduce_scatter", x, **groups, axis=axis, fn=op)

    return _exchange_leaves(tree, mesh_in_force(), over, one)


@public
def all_to_all(tree: Any, split: int, concat: int, *, over: Over) -> Any:
    """Cut along `split` into a part for each rank, and the parts that came laid side by side along
    `concat`."""
    return _exchange_leaves(
        tree,
        mesh_in_force(),
        over,
        lambda s, x, groups: s.emit("all_to_all", x, **groups, split=split, concat=concat),
    )


@public
def collective_permute(tree: Any, pairs: Sequence[tuple[int, int]], *, over: Over) -> Any:
    """Each pair (source, target) of places along the axes sends a tensor; who gets none has
    zeros."""
    if not all(isinstance(pair, Sequence) and len(pair) == 2 for pair in pairs):
        raise UserError(
            f"pairs is {brief(pairs)}; write for each tensor who sends it to whom: [(0, 1)]"
        )
    sources, targets = tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs)
    return _exchange_leaves(
        tree,
        mesh_in_force(),
        over,
        lambda s, x, groups: s.emit(
            "collective_permute", x, **groups, sources=sources, targets=targets
        ),
    )


@public
def collective_broadcast(tree: Any, *, over: Over) -> Any:
    """The tensor of the first rank along the axes, on each of them."""
    return _exchange_leaves(
        tree,
        mesh_in_force(),
        over,
        lambda s, x, groups: s.emit("collective_broadcast", x, **groups),
    )


@public
def rank(over: Over | None = None) -> Tensor:
    """The place of a rank along some axes of the mesh, or its number: a tensor of int64."""
    found = mesh_in_force()
    session = Session.here()
    numbers = tuple(range(found.count)) if over is None else found.places(over)
    return session.export(session.emit("mesh_rank", numbers=numbers))


def _exchange_leaves(
    tree: Any, found: Mesh, over: Over, one: Callable[[Session, Handle, dict[str, Any]], Handle]
) -> Any:
    """Every leaf of a container through an exchange."""
    leaves, structure = flatten(tree)
    session = Session.here()
    groups = {**found.groups(over), "line": shown(user_line())}
    made = []
    for leaf in leaves:
        tensor = leaf if isinstance(leaf, Tensor) else asarray(leaf)
        made.append(session.export(one(session, session.import_(tensor), groups)))
    return unflatten(structure, made)


def _mean_over_ranks(
    s: Session, reduce: str, x: Handle, groups: dict[str, Any], **attrs: int
) -> Handle:
    """The sum over the ranks, divided. The sum of f16 may be too large for it where the mean is
    not: there the parts are divided."""
    count = float(groups["size"])
    if not (x.dtype.is_float or x.dtype.is_complex):
        raise UserError(f"the mean of {x.type} is not an integer; cast it to a float first")
    if x.dtype is F16:
        return s.emit(reduce, x / count, **groups, **attrs, fn="sum")
    return s.emit(reduce, x, **groups, **attrs, fn="sum") / count


def _check_reduction(op: Any, known: Sequence[str]) -> None:
    if op not in known:
        raise UserError(f"the reduction is {brief(op)}; it is one of {', '.join(known)}")
