"""Control flow. Regions of StableHLO see the values around them, so the arguments of a `cond` are
simply used inside it; loops carry theirs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from weft.foundation.dtypes import SI64
from weft.foundation.errors import Unimplemented
from weft.interop.stablehlo.writing.page import Page, Ssa, Written, array_text, flattened
from weft.interop.stablehlo.writing.structure import rows_at
from weft.ptir.ir import Region
from weft.ptir.ops.control import Cond, Scan, While
from weft.ptir.types import TensorType, leaves


class BodyWriter(Protocol):
    """What control flow asks of the walk around it."""

    def region(self, region_id: int) -> Region:
        """The region with that id."""
        ...

    def inline(self, page: Page, region: Region, args: Sequence[Written]) -> list[Written]:
        """Write a region's instructions; the values it returns."""
        ...


def _flatten_written(values: Sequence[Written]) -> list[Ssa]:
    return [leaf for value in values for leaf in flattened(value)]


def _pack_like_models(values: Sequence[Ssa], models: Sequence[Written]) -> list[Written]:
    """Flat values in the shape of tuples that `models` have."""
    rest = iter(values)

    def rebuilt(model: Written) -> Written:
        if isinstance(model, Ssa):
            return next(rest)
        return tuple(rebuilt(element) for element in model)

    return [rebuilt(model) for model in models]


def write_cond(writer: BodyWriter, page: Page, op: Cond, args: Sequence[Written]) -> list[Ssa]:
    predicate = args[0]
    assert isinstance(predicate, Ssa)
    regions = [writer.region(number) for number in op.regions]
    types = [leaf for kind in regions[0].results for leaf in leaves(kind)]

    def branch(region: Region) -> tuple[Sequence[TensorType], object]:
        return (), lambda inner, _: _flatten_written(writer.inline(inner, region, args[1:]))

    both = [branch(region) for region in regions]
    return page.ops("stablehlo.if", [predicate], types, None, both)  # type: ignore[arg-type]


def write_while(writer: BodyWriter, page: Page, op: While, args: Sequence[Written]) -> list[Ssa]:
    """PTIR's condition may change the carries. Where it does not, this is StableHLO's loop; where
    it does, it is written before the loop and at the end of its body, and the loop carries what it
    found."""
    cond, body = writer.region(op.cond_region), writer.region(op.body_region)
    if cond.result_ids[1:] == cond.parameter_ids:
        return _plain_while(writer, page, cond, body, args)
    predicate, *carries = writer.inline(page, cond, args)
    carried = _flatten_written([predicate, *carries])
    types = [value.type for value in carried]

    def again(inner: Page, values: list[Ssa]) -> list[Ssa]:
        made = writer.inline(inner, body, _pack_like_models(values[1:], carries))
        return _flatten_written(writer.inline(inner, cond, made))

    found = page.ops(
        "stablehlo.while", carried, types, None,
        [(types, lambda inner, values: [values[0]]), (types, again)],
    )  # fmt: skip
    return found[1:]


def _plain_while(
    writer: BodyWriter, page: Page, cond: Region, body: Region, args: Sequence[Written]
) -> list[Ssa]:
    carried = _flatten_written(args)
    types = [value.type for value in carried]

    def holds(inner: Page, values: list[Ssa]) -> list[Ssa]:
        return _flatten_written(writer.inline(inner, cond, _pack_like_models(values, args))[:1])

    def again(inner: Page, values: list[Ssa]) -> list[Ssa]:
        return _flatten_written(writer.inline(inner, body, _pack_like_models(values, args)))

    if not carried:
        raise Unimplemented("while", "a loop that carries nothing")
    return page.ops("stablehlo.while", carried, types, None, [(types, holds), (types, again)])


def write_scan(
    writer: BodyWriter, page: Page, op: Scan, args: Sequence[Written], output: list[TensorType]
) -> list[Ssa]:
    """A loop with a counter: each step reads one slice of every input, and writes one of every
    output."""
    carries, inputs = list(args[: op.carry_count]), _flatten_written(args[op.carry_count :])
    body = writer.region(op.body_region)
    length = inputs[0].shape[0]
    stacks = output[len(_flatten_written(carries)) :]
    count = page.scalar(0, SI64)
    boards = [page.full(0, kind) for kind in stacks]
    if length == 0:
        # There is no row, not even for a loop that never runs.
        return [*_flatten_written(carries), *boards]
    if not isinstance(length, int):
        inputs, boards = ([_one_more(page, x) for x in part] for part in (inputs, boards))
    begin = [count, *_flatten_written(carries), *boards]
    types = [value.type for value in begin]

    def holds(inner: Page, values: list[Ssa]) -> list[Ssa]:
        return [inner.compare(values[0], inner.size(length), "LT")]

    def again(inner: Page, values: list[Ssa]) -> list[Ssa]:
        step, state = values[0], values[1 : len(values) - len(stacks)]
        slices = [_slice_row(inner, x, step) for x in inputs]
        made = writer.inline(inner, body, [*_pack_like_models(state, carries), *slices])
        rows = _flatten_written(made[op.carry_count :])
        kept = values[len(values) - len(stacks) :]
        filled = [_put_row(inner, s, row, step) for s, row in zip(kept, rows, strict=True)]
        after = inner.op("add", step, inner.scalar(1, SI64))
        return [after, *_flatten_written(made[: op.carry_count]), *filled]

    found = page.ops("stablehlo.while", begin, types, None, [(types, holds), (types, again)])
    ends = found[len(found) - len(stacks) :]
    if not isinstance(length, int):
        ends = [_without_last(page, x, kind) for x, kind in zip(ends, stacks, strict=True)]
    return [*found[1 : len(found) - len(stacks)], *ends]


def _one_more(page: Page, x: Ssa) -> Ssa:
    """A row of zeros behind the others: where there is none, the loop that never runs has one to
    speak of."""
    zeros = page.full(0, x.type.with_shape((1, *x.shape[1:])))
    return page.concat([x, zeros], 0, page.fresh_size())


def _without_last(page: Page, x: Ssa, kind: TensorType) -> Ssa:
    return rows_at(page, x, page.iota(TensorType(SI64, kind.shape[:1]), 0))


def _slice_row(page: Page, x: Ssa, step: Ssa) -> Ssa:
    sizes = [1, *x.shape[1:]]
    if not x.type.with_shape(sizes).is_static:
        numbers = (
            f"offset_dims = {list(range(x.rank - 1))}, collapsed_slice_dims = [0], "
            "start_index_map = [0], index_vector_dim = 0"
        )
        return page.op(
            "dynamic_gather", x, step, page.sizes(sizes), like=x.type.with_shape(x.shape[1:]),
            dimension_numbers=f"#stablehlo.gather<{numbers}>", indices_are_sorted="false",
        )  # fmt: skip
    zero = page.scalar(0, SI64)
    starts = [step, *(zero for _ in x.shape[1:])]
    kind = x.type.with_shape(sizes)
    found = page.op("dynamic_slice", x, *starts, like=kind, slice_sizes=array_text(sizes))
    return page.reshape(found, x.shape[1:])


def _put_row(page: Page, stack: Ssa, row: Ssa, step: Ssa) -> Ssa:
    zero = page.scalar(0, SI64)
    starts = [step, *(zero for _ in row.shape)]
    return page.op("dynamic_update_slice", stack, page.reshape(row, (1, *row.shape)), *starts)
