"""Orders: sorts by keys where the comparator is an order by keys, by comparing each with each other
where it is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from weft.foundation.dtypes import SI64
from weft.interop.stablehlo.reading.bits import total_order
from weft.interop.stablehlo.reading.comparators import Key, canonical_source, keys_of, part_of
from weft.interop.stablehlo.reading.reductions import run_on_tensors
from weft.interop.stablehlo.reading.site import Lowering, Results, Site
from weft.ptir.builder import Value

MOST_COMPARED: Final = 4096
"""How many elements are compared each with each other."""


def _sort(at: Site) -> Results:
    values = at.aligned(at.x)
    axis = int(at.attr("dimension", -1)) % max(values[0].rank, 1)
    keys = keys_of(at.op.blocks[0])
    if keys is None:
        return _by_ranks(at, values, axis)
    lightest, *heavier = reversed(keys)
    order = _argsort(at, _tensor_of(at, lightest, values), axis, lightest.descending)
    for key in heavier:
        met = at.b.emit("gather", _tensor_of(at, key, values), order, axis=axis)
        again = _argsort(at, met, axis, key.descending)
        order = at.b.emit("gather", order, again, axis=axis)
    return [at.b.emit("gather", x, order, axis=axis) for x in values]


def _argsort(at: Site, key: Value, axis: int, descending: bool) -> Value:
    return at.b.emit("argsort", key, axis=axis, descending=descending, output_dtype=SI64)


def _tensor_of(at: Site, key: Key, values: Sequence[Value]) -> Value:
    """A key for all elements at once."""
    block = at.op.blocks[0]
    source = canonical_source(block, key.value)
    if source is not None:
        return values[block.arguments.index(source) // 2]
    both = [value for value in values for _ in range(2)]
    (found,) = run_on_tensors(at, part_of(block, key.value), both)
    return total_order(at, found) if key.total and found.dtype.is_float else found


# -- any comparator ------------------------------------------------------------------------------


def _by_ranks(at: Site, values: Sequence[Value], axis: int) -> list[Value]:
    """Each element is compared with each other: how many come before it is its place. Among equals
    the order stays."""
    size = at.static(values[0])[axis]
    if size > MOST_COMPARED:
        at.refuse(
            f"its comparator orders by no keys, and {size} elements are too many to try it on"
        )
    ranks = at.b.reduce_sum(at.b.cast(_precedes(at, values, axis), SI64), [axis])
    order = _argsort(at, ranks, axis, descending=False)
    return [at.b.emit("gather", value, order, axis=axis) for value in values]


def _precedes(at: Site, values: Sequence[Value], axis: int) -> Value:
    """Whether the element at one place of `axis` comes before that at a place of the next axis."""
    block, shape = at.op.blocks[0], at.static(values[0])
    column, row = ((*shape[: axis + k], 1, *shape[axis + k :]) for k in (1, 0))
    full = (*shape[: axis + 1], shape[axis], *shape[axis + 1 :])
    these, those = (
        [at.spread(value.reshape(dims), full) for value in values] for dims in (column, row)
    )
    (before,) = run_on_tensors(at, block, _by_turns(these, those))
    (after,) = run_on_tensors(at, block, _by_turns(those, these))
    places = [at.b.iota(SI64, full, axis + k) for k in (0, 1)]
    return before & ~after | ~(before ^ after) & (places[0] < places[1])


def _by_turns(left: Sequence[Value], right: Sequence[Value]) -> list[Value]:
    return [value for pair in zip(left, right, strict=True) for value in pair]


# -- the largest ---------------------------------------------------------------------------------


def _top_k(at: Site) -> Results:
    return extremes(at, int(at.attr("k")), bool(at.attr("largest", True)))


def extremes(at: Site, k: int, largest: bool) -> list[Value]:
    """The k largest or smallest elements of each row, and where they are. XLA orders floats by
    totalOrder: NaN beyond the infinities on the side of its sign, and -0 before +0."""
    (x,) = at.x
    ordered = total_order(at, x) if x.dtype.is_float else x
    values, places = at.b.emit(
        "top_k", ordered, k=k, axis=-1, largest=largest, indices_dtype=at.result(1).dtype
    )
    if x.dtype.is_float:
        values = at.b.emit("gather", x, places, axis=-1)
    return [values, places]


SORTING: Final[Mapping[str, Lowering]] = {"sort": _sort, "top_k": _top_k, "topk": _top_k}
