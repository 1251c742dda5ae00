"""`weft.vmap`: a function of one value as a function of many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from weft.foundation.axes import normalise_axis
from weft.foundation.calls import told
from weft.foundation.errors import SpecViolation, UserError
from weft.foundation.lines import user_line
from weft.ops.arithmetic import number_kind
from weft.ops.array.manipulation import moveaxis
from weft.ops.calls import check_function, explained, public
from weft.ops.default_backend import at_home
from weft.ops.graph.context import current
from weft.ops.mode import keys_withheld
from weft.ops.pytree import Structure
from weft.ops.tensor import Tensor
from weft.ops.traced_function import (
    Arguments,
    TracedFunction,
    arguments_of,
    returning_tensors,
    trace_function,
)
from weft.ops.tracing import Plain
from weft.ptir.ir import Program
from weft.ptir.types import Dim, TensorType
from weft.ptir.vmap import vmap as program_vmap

Axes = Any
"""A number, None, or a container of them."""


@told
def vmap(function: Callable[..., Any], in_axes: Axes = 0, out_axes: Axes = 0) -> Callable[..., Any]:
    """The function over a batch: `vmap(f)(xs)` is `stack([f(x) for x in xs])`, as one program.

    `in_axes` says which axis of the arguments counts the batch, None for what is the same for all:
    one number for everything, or a tuple with an entry for each argument, itself one number or
    nested as the argument is. Named arguments are the same for all. `out_axes` says in the same way
    where the results have their batch axis.
    """
    check_function("vmap", function)

    @public
    @at_home
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return _map_function(function, arguments_of(args, kwargs), in_axes, out_axes)
        except (SpecViolation, UserError) as error:
            raise explained("vmap", error, user_line()) from None

    return call


def _map_function(
    function: Callable[..., Any], arguments: Arguments, in_axes: Axes, out_axes: Axes
) -> Any:
    """What the function gives for every value of a batch."""
    given = _per_leaf("in_axes", in_axes, arguments.structure.children[0])
    given += [None] * (len(arguments.leaves) - len(given))
    axes = _tensor_axes(arguments, given)
    size = _batch_size(arguments, axes)
    kinds = [_type_of_one(t.type, axis) for t, axis in zip(arguments.tensors, axes, strict=True)]
    with keys_withheld("vmap"):
        traced = trace_function(returning_tensors(function), arguments, kinds)
    traced.check_stateless(
        "vmap",
        "every value of the batch would have a state of its own: call it without training=True, or "
        "on the whole batch",
    )
    captured = len(traced.nodes) - len(axes)
    made = program_vmap(traced.trace.program, size, [*axes, *[None] * captured])
    wanted = _per_leaf("out_axes", out_axes, traced.trace.structure)
    places = [a for a, o in zip(wanted, traced.trace.outputs, strict=True) if o is None]
    found = _emit_batched(traced, made)
    traced.carry(found)
    moved = zip(found[: len(places)], places, strict=True)
    return traced.results([_place_axis(result, place) for result, place in moved])


def _emit_batched(traced: TracedFunction, made: Program) -> list[Tensor]:
    """The results of the batched program; a checkpoint of the whole function stays one."""
    arena = current()
    before = len(arena.created)
    results = traced.emit(made)
    if traced.trace.is_one_part:
        arena.parts.append(arena.created[before:])
    return results


def _per_leaf(what: str, given: Axes, structure: Structure) -> list[int | None]:
    """An axis for every leaf; a number or None goes for all the leaves below it."""
    if given is None or (isinstance(given, int) and not isinstance(given, bool)):
        return [given] * structure.leaf_count
    if structure.kind is None:
        raise UserError(f"{what} has {given!r} where a number or None should be")
    entries, shape = _children(given)
    if shape is not structure.kind or len(entries) != len(structure.children):
        raise UserError(
            f"{what} is {given!r}, which is not nested as the "
            f"{'arguments' if what == 'in_axes' else 'results'} are"
        )
    pairs = zip(entries, structure.children, strict=True)
    return [axis for entry, child in pairs for axis in _per_leaf(what, entry, child)]


def _children(given: Axes) -> tuple[Sequence[Any], type]:
    """What a container of axes holds directly, in the order of leaves."""
    if isinstance(given, dict):
        return [given[key] for key in sorted(given)], dict
    if isinstance(given, list | tuple):
        return given, type(given)
    raise UserError(f"an axis is a number or None, not {given!r}")


def _tensor_axes(arguments: Arguments, axes: Sequence[int | None]) -> list[int | None]:
    """The axes of the leaves that are tensors, counted from the front."""
    found: list[int | None] = []
    for leaf, axis in zip(arguments.leaves, axes, strict=True):
        number = isinstance(leaf, Plain) and number_kind(leaf.value) not in (bool, None)
        if axis is not None and (number or (isinstance(leaf, Tensor) and not leaf.ndim)):
            raise UserError(f"a scalar has no axis {axis}; say None in in_axes for it")
        if isinstance(leaf, Plain):
            continue
        found.append(None if axis is None else normalise_axis(axis, leaf.ndim))
    return found


def _batch_size(arguments: Arguments, axes: Sequence[int | None]) -> Dim:
    pairs = zip(arguments.tensors, axes, strict=True)
    sizes = {tensor.shape[axis] for tensor, axis in pairs if axis is not None}
    if not sizes:
        raise UserError("no argument has a batch axis; in_axes must name one")
    if len(sizes) > 1:
        listed = ", ".join(sorted(map(str, sizes)))
        raise UserError(f"the batch axes of the arguments have different sizes: {listed}")
    return sizes.pop()


def _type_of_one(kind: TensorType, axis: int | None) -> TensorType:
    """The type of one value of a batch."""
    if axis is None:
        return kind
    return kind.with_shape((*kind.shape[:axis], *kind.shape[axis + 1 :]))


def _place_axis(result: Tensor, place: int | None) -> Tensor:
    if place is None:
        raise UserError("every result has a batch axis; out_axes cannot be None")
    return moveaxis(result, 0, normalise_axis(place, result.ndim))
