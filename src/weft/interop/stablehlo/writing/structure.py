"""Movement, reductions, products, positions and orders, in StableHLO's words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from weft.foundation import numeric
from weft.foundation.dtypes import SI64, DType
from weft.foundation.errors import Unimplemented
from weft.interop.stablehlo.writing.elementwise import WriteOne, cast, identity_of
from weft.interop.stablehlo.writing.page import Page, Ssa, array_text
from weft.ptir.types import TensorType

MOST_COPIES: Final = 4096
"""How many copies a `tile` of open sizes may have: each is an operand of its own."""
BODIES: Final = {
    "sum": "add",
    "max": "maximum",
    "min": "minimum",
    "prod": "multiply",
    "any": "or",
    "all": "and",
    "add": "add",
}


# -- movement ------------------------------------------------------------------------------------


def _reshape(page: Page, op: Any, x: list[Ssa], kind: TensorType) -> Ssa:
    return page.reshape(x[0], kind.shape)


def _transpose(page: Page, op: Any, x: list[Ssa], kind: TensorType) -> Ssa:
    return page.transpose(x[0], op.perm)


def _broadcast_to(page: Page, op: Any, x: list[Ssa], kind: TensorType) -> Ssa:
    return page.spread(x[0], kind.shape)


def moved(page: Page, x: Ssa, source: int, target: int) -> Ssa:
    """One axis taken out and put in elsewhere."""
    order = [axis for axis in range(x.rank) if axis != source]
    order.insert(target, source)
    return page.transpose(x, order)


def _slice(page: Page, op: Any, x: list[Ssa], kind: TensorType) -> Ssa:
    limits = [a + n for a, n in zip(op.starts, op.sizes, strict=True)]
    return page.slice(x[0], op.starts, limits)


def _concat(page: Page, op: Any, x: list[Ssa], kind: TensorType) -> Ssa:
    axis = op.axis % kind.rank
    return page.concat(x, axis, kind.shape[axis])


def _pad(page: Page, op: Any, x: list[Ssa], kind: TensorType) -> Ssa:
    fill = page.scalar(op.pad_value.fill(kind.dtype), kind.dtype)
    return padded(page, x[0], fill, op.low, op.high, op.interior, kind)


def padded(
    page: Page, x: Ssa, fill: Ssa, low: Sequence[int], high: Sequence[int],
    interior: Sequence[int], kind: TensorType,
) -> Ssa:  # fmt: skip
    return page.op(
        "pad", x, fill, like=kind, edge_padding_low=array_text(low),
        edge_padding_high=array_text(high), interior_padding=array_text(interior),
    )  # fmt: skip


def _tile(page: Page, op: Any, x: list[Ssa], kind: TensorType) -> Ssa:
    if not x[0].type.is_static:
        return _repeat_axes(page, op.repeats, x[0], kind)
    split = [n for dim in x[0].shape for n in (1, dim)]
    spread = [n for r, dim in zip(op.repeats, x[0].shape, strict=True) for n in (r, dim)]
    return page.reshape(page.spread(page.reshape(x[0], split), spread), kind.shape)


def _repeat_axes(page: Page, repeats: Sequence[int], x: Ssa, kind: TensorType) -> Ssa:
    """Copies side by side, axis by axis, where sizes are known only at run time."""
    if math.prod(repeats) > MOST_COPIES or 0 in repeats:
        raise Unimplemented("tile", f"{list(repeats)} copies of {x.type}")
    for axis, count in enumerate(repeats):
        if count > 1:
            x = page.concat([x] * count, axis, kind.shape[axis])
    return x


def _iota(page: Page, op: Any, x: list[Ssa], kind: TensorType) -> Ssa:
    return page.iota(kind, op.axis)


# -- products and reductions ---------------------------------------------------------------------


def _dot_general(page: Page, op: Any, x: list[Ssa], kind: TensorType) -> Ssa:
    accum = op.accum_dtype or numeric.dot_accumulator_dtype(x[0].dtype)
    fields = {
        "lhs_batching_dimensions": op.batch_lhs,
        "rhs_batching_dimensions": op.batch_rhs,
        "lhs_contracting_dimensions": op.contract_lhs,
        "rhs_contracting_dimensions": op.contract_rhs,
    }
    shown = ", ".join(f"{key} = {list(axes)}" for key, axes in fields.items() if axes)
    found = page.op(
        "dot_general", *x, like=kind.with_dtype(accum),
        dot_dimension_numbers=f"#stablehlo.dot<{shown}>",
    )  # fmt: skip
    return cast(page, found, kind.dtype)


def reduced(page: Page, x: Ssa, kind: str, axes: Sequence[int]) -> Ssa:
    """A reduction by one operation."""
    start = page.scalar(identity_of(kind, x.dtype), x.dtype)
    shape = [dim for axis, dim in enumerate(x.shape) if axis not in axes]
    scalar = TensorType(x.dtype, ())

    def combine(inner: Page, args: list[Ssa]) -> list[Ssa]:
        return [inner.op(BODIES[kind], *args)]

    return page.ops(
        "stablehlo.reduce", [x, start], [x.type.with_shape(shape)],
        {"dimensions": array_text(axes)}, [((scalar, scalar), combine)],
    )[0]  # fmt: skip


def _reduce_writer(kind: str) -> WriteOne:
    def write(page: Page, op: Any, x: list[Ssa], output: TensorType) -> Ssa:
        accum = getattr(op, "accum_dtype", None)
        wide = accum or numeric.accumulator_dtype(x[0].dtype)
        wide = x[0].dtype if kind in ("any", "all", "max", "min") and accum is None else wide
        found = reduced(page, cast(page, x[0], wide), kind, op.axes)
        return page.reshape(cast(page, found, output.dtype), output.shape)

    return write


def _position_writer(larger: str) -> WriteOne:
    """The position of an extreme: NaN before everything else, and of equal elements the first."""

    def write(page: Page, op: Any, x: list[Ssa], kind: TensorType) -> Ssa:
        value = x[0]
        axis = op.axis % value.rank
        places = page.iota(value.type.with_dtype(op.output_dtype), axis)
        worst = value.dtype.lowest if larger == "GT" else value.dtype.highest
        starts = [page.scalar(worst, value.dtype), page.scalar(places.dtype.highest, places.dtype)]
        shape = [dim for a, dim in enumerate(value.shape) if a != axis]
        types = [TensorType(value.dtype, ()), TensorType(places.dtype, ())]
        found = page.ops(
            "stablehlo.reduce",
            [value, places, *starts],
            [v.type.with_shape(shape) for v in (value, places)],
            {"dimensions": array_text([axis])},
            [([*types, *types], lambda inner, args: _first_extreme(inner, args, larger))],
        )[1]
        return page.reshape(found, kind.shape)

    return write


def _first_extreme(page: Page, args: list[Ssa], larger: str) -> list[Ssa]:
    a, i, b, j = args
    better = page.compare(a, b, larger)
    equal = page.compare(a, b, "EQ")
    if a.dtype.is_float:
        no_a, no_b = page.compare(a, a, "NE"), page.compare(b, b, "NE")
        better = page.op("or", better, page.op("and", no_a, page.op("not", no_b)))
        equal = page.op("or", equal, page.op("and", no_a, no_b))
    first = page.op("and", equal, page.compare(i, j, "LT"))
    chosen = page.op("or", better, first)
    return [page.op("select", chosen, p, q, like=p.type) for p, q in ((a, b), (i, j))]


# -- positions that are data ---------------------------------------------------------------------


def _take(page: Page, op: Any, x: list[Ssa], kind: TensorType) -> Ssa:
    return rows_at(page, *x)


def rows_at(page: Page, x: Ssa, indices: Ssa) -> Ssa:
    """The rows of a tensor that indices name."""
    kind = x.type.with_shape((*indices.shape, *x.shape[1:]))
    offsets = list(range(indices.rank, kind.rank))
    numbers = (
        f"offset_dims = {offsets}, collapsed_slice_dims = [0], start_index_map = [0], "
        f"index_vector_dim = {indices.rank}"
    )
    return _write_gather(page, [x, indices], kind, numbers, [1, *x.shape[1:]])


def _write_gather(
    page: Page, x: list[Ssa], kind: TensorType, numbers: str, sizes: Sequence[Any]
) -> Ssa:
    if not all(isinstance(size, int) for size in sizes):
        return page.op(
            "dynamic_gather", *x, page.sizes(sizes), like=kind,
            dimension_numbers=f"#stablehlo.gather<{numbers}>", indices_are_sorted="false",
        )  # fmt: skip
    if any(size > dim for size, dim in zip(sizes, x[0].shape, strict=True) if dim == 0):
        return page.full(0, kind)
    return page.op(
        "gather", *x, like=kind, dimension_numbers=f"#stablehlo.gather<{numbers}>",
        slice_sizes=array_text(sizes), indices_are_sorted="false",
    )  # fmt: skip


def _gather(page: Page, op: Any, x: list[Ssa], kind: TensorType) -> Ssa:
    rank = kind.rank
    axis = op.axis % rank
    others = [a for a in range(rank) if a != axis]
    batches = f"operand_batching_dims = {others}, start_indices_batching_dims = {others}, "
    numbers = (
        f"collapsed_slice_dims = [{axis}], {batches if others else ''}"
        f"start_index_map = [{axis}], index_vector_dim = {rank}"
    )
    return _write_gather(page, x, kind, numbers, [1] * rank)


def _write_scatter(page: Page, x: list[Ssa], numbers: str, how: str) -> Ssa:
    scalar = TensorType(x[0].dtype, ())

    def combine(inner: Page, args: list[Ssa]) -> list[Ssa]:
        return [args[1]] if how == "replace" else [inner.op(BODIES[how], *args)]

    return page.ops(
        "stablehlo.scatter", x, [x[0].type],
        {
            "scatter_dimension_numbers": f"#stablehlo.scatter<{numbers}>",
            "indices_are_sorted": "false",
            "unique_indices": "false",
        },
        [((scalar, scalar), combine)],
    )[0]  # fmt: skip


def _scatter_add(page: Page, op: Any, x: list[Ssa], kind: TensorType) -> Ssa:
    windows = op.window_axes(kind.rank)
    inserted = [axis for axis in range(kind.rank) if axis not in windows]
    numbers = (
        f"update_window_dims = {list(op.update_window_dims)}, inserted_window_dims = {inserted}, "
        f"scatter_dims_to_operand_dims = {list(op.scatter_dims_to_operand_dims)}, "
        f"index_vector_dim = {op.vector_axis(x[1].rank)}"
    )
    wide = numeric.accumulator_dtype(kind.dtype)
    value, updates = (cast(page, v, wide) for v in (x[0], x[2]))
    return cast(page, _write_scatter(page, [value, x[1], updates], numbers, "add"), kind.dtype)


def _scatter_reduce(page: Page, op: Any, x: list[Ssa], kind: TensorType) -> Ssa:
    rank = kind.rank
    axis = op.axis % rank
    others = [a for a in range(rank) if a != axis]
    batches = f"input_batching_dims = {others}, scatter_indices_batching_dims = {others}, "
    numbers = (
        f"inserted_window_dims = [{axis}], {batches if others else ''}"
        f"scatter_dims_to_operand_dims = [{axis}], index_vector_dim = {rank}"
    )
    how = str(op.reduce)
    wide = numeric.accumulator_dtype(kind.dtype) if how == "add" else kind.dtype
    value, updates = (cast(page, v, wide) for v in (x[0], x[2]))
    return cast(page, _write_scatter(page, [value, x[1], updates], numbers, how), kind.dtype)


def _segment(kind: str) -> WriteOne:
    """Rows scattered into as many rows as there are segments."""

    def write(page: Page, op: Any, x: list[Ssa], output: TensorType) -> Ssa:
        data, ids = x
        wide = op.accum_dtype or (numeric.accumulator_dtype(data.dtype))
        start = cast(page, page.scalar(identity_of(kind, data.dtype), data.dtype), wide)
        rows = page.spread(start, output.shape)
        numbers = (
            f"update_window_dims = {list(range(1, data.rank))}, inserted_window_dims = [0], "
            "scatter_dims_to_operand_dims = [0], index_vector_dim = 1"
        )
        found = _write_scatter(page, [rows, ids, cast(page, data, wide)], numbers, kind)
        return cast(page, found, output.dtype)

    return write


def _scalar_starts(page: Page, start: Ssa, rank: int) -> list[Ssa]:
    parts = (page.slice(start, [axis], [axis + 1]) for axis in range(rank))
    return [page.reshape(part, ()) for part in parts]


def _dynamic_slice(page: Page, op: Any, x: list[Ssa], kind: TensorType) -> Ssa:
    if not kind.rank:
        return x[0]
    starts = _scalar_starts(page, x[1], kind.rank)
    sizes = array_text(op.sizes)
    return page.op("dynamic_slice", x[0], *starts, like=kind, slice_sizes=sizes)


def _dynamic_update_slice(page: Page, op: Any, x: list[Ssa], kind: TensorType) -> Ssa:
    value, update, start = x
    if not kind.rank:
        return update
    return page.op("dynamic_update_slice", value, update, *_scalar_starts(page, start, kind.rank))


# -- orders --------------------------------------------------------------------------------------


def ordered(page: Page, x: Ssa, axis: int, descending: bool, places: DType) -> list[Ssa]:
    """The elements in order and where they were; NaN is larger than everything else, and equal
    elements keep their order."""
    where = page.iota(x.type.with_dtype(places), axis)
    types = [TensorType(dtype, ()) for dtype in (x.dtype, x.dtype, places, places)]

    def before(inner: Page, args: list[Ssa]) -> list[Ssa]:
        left, right = (_canonical(inner, value) for value in args[:2])
        ordering = "TOTALORDER" if x.dtype.is_float else ""
        return [inner.compare(left, right, "GT" if descending else "LT", ordering)]

    attrs = {"dimension": f"{axis} : i64", "is_stable": "true"}
    return page.ops("stablehlo.sort", [x, where], [x.type, where.type], attrs, [(types, before)])


def _canonical(page: Page, x: Ssa) -> Ssa:
    """One zero and one NaN, so that the total order has no others."""
    if not x.dtype.is_float:
        return x
    zero, absent = page.scalar(0.0, x.dtype), page.scalar(float("nan"), x.dtype)
    is_zero = page.compare(x, zero, "EQ")
    x = page.op("select", is_zero, zero, x, like=x.type)
    return page.op("select", page.compare(x, x, "NE"), absent, x, like=x.type)


def _sort(page: Page, op: Any, x: list[Ssa], kind: TensorType) -> Ssa:
    return ordered(page, x[0], op.axis % kind.rank, op.descending, SI64)[0]


def _argsort(page: Page, op: Any, x: list[Ssa], kind: TensorType) -> Ssa:
    return ordered(page, x[0], op.axis % kind.rank, op.descending, op.output_dtype)[1]


def top_k(page: Page, op: Any, x: Ssa) -> tuple[Ssa, Ssa]:
    axis = op.axis % x.rank
    found = ordered(page, x, axis, op.largest, op.indices_dtype)
    first, second = (_take_leading(page, value, axis, op.k) for value in found)
    return first, second


def _take_leading(page: Page, x: Ssa, axis: int, count: int) -> Ssa:
    """The first elements along an axis."""
    if x.type.is_static:
        limits = [count if a == axis else dim for a, dim in enumerate(x.type.static_shape)]
        return page.slice(x, [0] * x.rank, limits)
    numbers = page.iota(TensorType(SI64, (count,)), 0)
    return moved(page, rows_at(page, moved(page, x, axis, 0), numbers), 0, axis)


STRUCTURE: Final[Mapping[str, WriteOne]] = {
    "reshape": _reshape,
    "transpose": _transpose,
    "broadcast_to": _broadcast_to,
    "slice": _slice,
    "concat": _concat,
    "pad": _pad,
    "tile": _tile,
    "iota": _iota,
    "dot_general": _dot_general,
    **{
        f"reduce_{kind}": _reduce_writer(kind)
        for kind in ("sum", "max", "min", "prod", "any", "all")
    },
    "arg_max": _position_writer("GT"),
    "argmin": _position_writer("LT"),
    "take": _take,
    "gather": _gather,
    "scatter_add": _scatter_add,
    "scatter_reduce": _scatter_reduce,
    "segment_sum": _segment("sum"),
    "segment_max": _segment("max"),
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "sort": _sort,
    "argsort": _argsort,
}
"""By mnemonic."""
