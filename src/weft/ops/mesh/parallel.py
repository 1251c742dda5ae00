"""`weft.parallel`: a function that is written for whole tensors, run by every rank on its parts.

It is traced on whole tensors, so gradients inside it are those of the whole. Then its program
becomes one rank's (`weft.ptir.split`): how arguments are split is given, how all else is split
follows. What runs is a function with `@weft.spmd` around that program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any

from weft.foundation.calls import told
from weft.foundation.errors import UserError
from weft.foundation.lines import user_line
from weft.foundation.mesh import Mesh, Split
from weft.ops.array.creation import asarray
from weft.ops.calls import check_function, explained, public
from weft.ops.graph.context import current
from weft.ops.graph.inline import inline
from weft.ops.mesh.mesh import mesh_in_force_or_none
from weft.ops.mesh.sharded import Sharded, check_mesh, is_sharded, splits_of
from weft.ops.mesh.spmd import bare, on_ranks
from weft.ops.pytree import flatten, unflatten
from weft.ops.session import Session
from weft.ops.tensor import Tensor
from weft.ops.traced_function import Arguments, TracedFunction
from weft.ops.tracing import Plain, trace
from weft.ptir.split import split_program
from weft.ptir.types import TensorType

_WHOLE: ContextVar[bool] = ContextVar("whole", default=False)
"""Whether what is traced is written for whole tensors."""


@told
def parallel(mesh: Mesh, *, split: Mapping[str, Split] | None = None) -> Callable[..., Any]:
    """Let the ranks of a mesh share the work of a function that is written for whole tensors:
    `@weft.parallel(mesh, split={"x": {0: "data"}, "model.*.up.weight": {0: "model"}})`. Arguments
    are split as in `weft.spmd`, and how all else is split follows. Sums over what is split are
    exchanged, each with a line in `weft.explain`; what does not fit together is an error, and
    `weft.reshard` in the function says what to do. Results that are split are `Sharded`."""
    check_mesh("parallel", mesh)
    splits = splits_of(split)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        check_function("parallel", function)
        return on_ranks(mesh, splits, _on_parts(mesh, function), dressed=True)

    return decorate


@public
def reshard(tree: Any, split: Split) -> Any:
    """Every tensor of a container, split in another way from here on: `reshard(x, {0: "data"})`, or
    `{}` for the same on every rank. It is for functions with `@weft.parallel(mesh)`, and says which
    exchange is meant; elsewhere it gives back what it is given."""
    found = mesh_in_force_or_none()
    if found is None:
        return tree
    if not _WHOLE.get():
        raise UserError(
            "reshard is for functions with @weft.parallel(mesh); with @weft.spmd(mesh) a function "
            "has its parts in hand: all_gather, all_to_all or reduce_scatter them"
        )
    leaves, structure = flatten(tree)
    return unflatten(structure, [_reshard_leaf(leaf, found, split) for leaf in leaves])


def _reshard_leaf(leaf: Any, mesh: Mesh, split: Split) -> Tensor:
    tensor = leaf if isinstance(leaf, Tensor) else asarray(leaf)
    shape = tensor.type.static_shape
    wanted = mesh.checked(split, shape, "x")
    axes = [",".join(mesh.names(wanted[d])) if d in wanted else "" for d in range(len(shape))]
    session = Session.here()
    return session.export(session.emit("reshard", session.import_(tensor), axes=tuple(axes)))


@contextmanager
def _for_whole_tensors() -> Iterator[None]:
    token = _WHOLE.set(True)
    try:
        yield
    finally:
        _WHOLE.reset(token)


def _on_parts(mesh: Mesh, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function on one rank's parts."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = flatten((args, kwargs), is_sharded)
        own = [leaf for leaf in leaves if isinstance(bare(leaf), Tensor)]

        def fill(tensors: Sequence[Tensor]) -> Any:
            supply = iter(tensors)
            return unflatten(
                structure, [next(supply) if isinstance(bare(x), Tensor) else x for x in leaves]
            )

        def called(given: Any) -> Any:
            with _for_whole_tensors():
                return function(*given[0], **given[1])

        found = trace(function, [_whole_type(x) for x in own], fill, called, stands_for=())
        nodes = (*(bare(leaf)._node for leaf in own), *(c.node for c in found.captured))
        kept = tuple(x if isinstance(x, Tensor) else Plain(x) for x in leaves)
        traced = TracedFunction(found, nodes, Arguments(kept, structure, (args, kwargs)))
        try:
            return _split_over(mesh, traced, [x.split if is_sharded(x) else {} for x in own])
        except UserError as error:
            raise explained("parallel", error, user_line()) from None

    return call


def _split_over(mesh: Mesh, traced: TracedFunction, splits: Sequence[Split]) -> Any:
    more = len(traced.nodes) - len(splits)
    made = split_program(traced.trace.program, mesh, [*splits, *[{}] * more])
    for place, results in traced.trace.state.told(traced.arguments.given):
        if any(made.results[at] for at in results):
            raise UserError(
                f"{place} is assigned a value that is split over the mesh; "
                "weft.reshard(value, {}) it before"
            )
    values = [Tensor(n) for n in inline(made.program, traced.nodes, current(), user_line())]
    traced.carry(values)
    pairs = zip(values[: len(traced.trace.returned)], made.results, strict=False)
    return traced.results([_dress_value(value, mesh, split) for value, split in pairs])


def _dress_value(value: Tensor, mesh: Mesh, split: Mapping[int, tuple[str, ...]]) -> Any:
    if not split:
        return value
    said = {d: axes[0] if len(axes) == 1 else axes for d, axes in split.items()}
    return Sharded(value, mesh, said)


def _whole_type(leaf: Any) -> TensorType:
    """The type of the tensor that a rank has a part of."""
    kind: TensorType = bare(leaf).type
    if not isinstance(leaf, Sharded):
        return kind
    dims = list(kind.static_shape)
    for axis, over in leaf.split.items():
        dims[axis] *= leaf.mesh.size(over)
    return kind.with_shape(dims)
