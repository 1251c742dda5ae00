"""Scatter, running reductions and sorting on the dialect's interpreter, against plain Python; their
machine code; and faults that were planted are found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.cases import one_in
from tests.support.gpu_faults import Change, planted, without
from tests.support.gpu_whole import carried_out, kernel_of
from weft.codegen.gpu import ir
from weft.codegen.gpu.compile import compile_cuda
from weft.codegen.gpu.interp import Hazard, run
from weft.codegen.gpu.ir import values
from weft.codegen.gpu.ir.element_ops import ElementOp
from weft.codegen.gpu.ir.module import GpuModule
from weft.codegen.gpu.ir.scalar import Lit
from weft.codegen.gpu.spelling.print import cuda
from weft.codegen.gpu.spelling.text import parse_module, print_module
from weft.codegen.gpu.whole import templates as whole
from weft.foundation.dtypes import (
    BF16,
    BY_NAME,
    F16,
    F32,
    F64,
    FP8_E4M3,
    FP8_E5M2,
    SI8,
    SI32,
    SI64,
    UI32,
    UI64,
    DType,
)
from weft.foundation.whole_ops import (
    Continued,
    Order,
    Running,
    Scatter,
    Totals,
)
from weft.region.ir import Kernel, OpaqueCall, Output, Pattern, Tensor
from weft.target.sm90 import SM90

Array = NDArray[Any]


# -- scatter ---------------------------------------------------------------------------------------

SCATTERS = {
    "rows": Scatter("add", 1, 40, 6, 50),
    "one row": Scatter("add", 1, 1, 5, 9),
    "batched": Scatter("max", 3, 7, 4, 20),
    "each": Scatter("min", 2, 9, 5, 12, each=True),
    "elements": Scatter("replace", 1, 300, 1, 100),
}


def scattered(op: Scatter, x: Array, index: Array, update: Array) -> Array:
    """One update after the other."""
    out = x.copy().reshape(op.outer, op.rows, op.width)
    places = np.broadcast_to(index.reshape(op.outer, op.count, -1), (op.outer, op.count, op.width))
    combine: dict[str, Any] = {"add": lambda a, b: a + b, "max": max, "min": min}
    fn = combine.get(op.fn, lambda a, b: b)
    with np.errstate(over="ignore"):
        for a, m, w in np.ndindex(op.outer, op.count, op.width):
            row = places[a, m, w]
            out[a, row, w] = fn(out[a, row, w], update[a, m, w])
    return out.reshape(-1)


@pytest.mark.parametrize(
    ("dtype", "index_dtype"),
    one_in(
        3,
        [(F32, SI64), (SI32, SI32), (F64, SI32), (SI64, SI64), (UI32, SI32), (SI8, SI32)],
        unpack=True,
    ),
)
@pytest.mark.parametrize("name", SCATTERS)
def test_scatters_agree(name: str, dtype: DType, index_dtype: DType) -> None:
    op = SCATTERS[name]
    rng = np.random.default_rng(len(name))
    x, index, update = scatter_operands(op, dtype, index_dtype, rng)
    kernel = kernel_of(op, [x, index, update], x)
    got = carried_out(kernel, [x, index, update], x)
    assert (got == scattered(op, x, index, update)).all()


@pytest.mark.parametrize("dtype", [BF16, F16, FP8_E4M3, FP8_E5M2], ids=str)
def test_one_narrow_update_is_added_and_rounded_once(dtype: DType) -> None:
    op = Scatter("add", 9, 5, 7, 1, each=True)
    rng = np.random.default_rng(dtype.bits)
    x, update = ((3 * rng.standard_normal((9, n, 7))).astype(dtype.numpy) for n in (5, 1))
    index = rng.integers(0, 5, (9, 1, 7)).astype(np.int32)
    got = carried_out(kernel_of(op, [x, index, update], x), [x, index, update], x)
    want = scattered(op, x.astype(np.float32), index, update.astype(np.float32))
    assert (got.view(np.uint8) == want.astype(dtype.numpy).view(np.uint8)).all()


def test_a_tensor_is_scattered_into_itself() -> None:
    """The updates are the tensor that the result is based on, as it was."""
    op = Scatter("add", 1, 5, 3, 5)
    x = np.arange(15, dtype=np.float32).reshape(1, 5, 3)
    index = np.array([4, 4, 0, 2, 0], np.int32).reshape(1, 5, 1)
    tensors = {"x": Tensor("x", F32, x.shape), "at": Tensor("at", SI32, index.shape)}
    tensors["out"] = Tensor("out", F32, x.shape)
    call, output = OpaqueCall(op, ("x", "at", "x"), (0,)), Output("out", "", (), base="x")
    kernel = Kernel("opaque0", Pattern.OPAQUE, (), (), (output,), opaque=call)
    made = whole.build(op, kernel, tensors, SM90, "k_whole")
    given = {"x": x.reshape(-1), "at": index.reshape(-1), "out": x.reshape(-1).copy()}
    run(made, {name: given[name] for name in made.buffers})
    assert (given["out"] == scattered(op, x, index, x)).all()


def scatter_operands(
    op: Scatter, dtype: DType, index_dtype: DType, rng: np.random.Generator
) -> list[Array]:
    # Numbers below zero are large ones of unsigned dtypes.
    x, update = (
        (10 * rng.standard_normal((op.outer, n, op.width)))
        .astype("f8" if dtype.is_float else "i8")
        .astype(dtype.numpy)
        for n in (op.rows, op.count)
    )
    shape = (op.outer, op.count, op.width if op.each else 1)
    index = rng.integers(0, op.rows, shape).astype(index_dtype.numpy)
    return [x, index, update]


def test_rows_are_dealt_to_as_many_threads_as_the_machine_has() -> None:
    """An embedding's gradient: columns alone would leave most of it idle."""
    op = Scatter("add", 1, 5000, 64, 10)
    rng = np.random.default_rng(0)
    operands = scatter_operands(op, F32, SI32, rng)
    kernel = kernel_of(op, operands, operands[0])
    assert kernel.grid * kernel.threads >= SM90.limits.units * 512


# -- running reductions ----------------------------------------------------------------------------

RUNNING = {
    "threads": (3, 20, 5),
    "one column": (1, 7, 1),
    "rows": (3, 70, 1),
    "blocks": (1, 700, 1),
    "blocks of columns": (1, 513, 3),
}
ACCUMULATE: dict[str, Any] = {
    "sum": np.cumsum,
    "max": np.maximum.accumulate,
    "min": np.minimum.accumulate,
}


CASES = [
    *((name, dtype, fn, False) for name in RUNNING for dtype, fn in ((BF16, "sum"), (SI8, "max"))),
    *((name, F32, "min", True) for name in RUNNING),
    *((name, SI8, "sum", True) for name in RUNNING),
]


@pytest.mark.parametrize(("name", "dtype", "fn", "reverse"), CASES)
def test_running_reductions_agree(name: str, dtype: DType, fn: str, reverse: bool) -> None:
    outer, length, width = RUNNING[name]
    rng = np.random.default_rng(length)
    x = rng.integers(-4, 5, (outer, length, width)).astype(dtype.numpy)
    op = Running(fn, outer, length, width, reverse)
    got = carried_out(kernel_of(op, [x], x), [x], x).reshape(x.shape)
    exact = x.astype(np.int8 if dtype is SI8 else np.float64)
    source = exact[:, ::-1] if reverse else exact
    want = ACCUMULATE[fn](source, axis=1, dtype=source.dtype)
    want = want[:, ::-1] if reverse else want
    assert (got.astype(np.float64) == want.astype(dtype.numpy).astype(np.float64)).all()


@pytest.mark.parametrize("reverse", one_in(2, [False, True]))
@pytest.mark.parametrize(("fn", "dtype"), [("sum", F32), ("max", SI8), ("sum", BF16)])
@pytest.mark.parametrize(
    ("shape", "chunk"),
    one_in(2, [((1, 40, 1), 8), ((2, 57, 3), 20), ((2, 700, 1), 16)], unpack=True),
)
def test_columns_in_parts_agree(
    shape: tuple[int, int, int], chunk: int, fn: str, dtype: DType, reverse: bool
) -> None:
    """Beginning at the other end, the shorter part is the first elements."""
    outer, length, width = shape
    x = np.random.default_rng(length).integers(-4, 0, shape).astype(dtype.numpy)
    adding = Totals(fn, *shape, reverse, chunk)
    room: Array = np.zeros((outer, adding.parts, width), "i1" if dtype is SI8 else "f4")
    totals = carried_out(kernel_of(adding, [x], room), [x], room)
    source = x.astype(np.int8 if dtype is SI8 else np.float64)
    source = source[:, ::-1] if reverse else source
    reduce = np.sum if fn == "sum" else np.max
    pieces = [source[:, n : n + chunk] for n in range(0, length, chunk)]
    found = np.stack([reduce(piece, axis=1) for piece in pieces], axis=1)
    assert (totals.reshape(room.shape) == found).all()
    operands = [x, totals.reshape(room.shape)]
    kernel = kernel_of(Continued(fn, *shape, reverse, chunk), operands, x)
    got = carried_out(kernel, operands, np.zeros_like(x)).reshape(shape)
    want = ACCUMULATE[fn](source, axis=1)
    want = (want[:, ::-1] if reverse else want).astype(dtype.numpy)
    assert (got.astype("f8") == want.astype("f8")).all()


@pytest.mark.parametrize("reverse", one_in(2, [False, True]))
@pytest.mark.parametrize(
    ("length", "dtype", "threads"),
    [(96, F32, 32), (1024, F32, 256), (2048, F32, 256), (8192, F32, 512), (40_000, F32, 1024),
     (4100, BF16, 512), (3000, F64, 256), (1200, SI8, 256), (777, SI32, 256)],
)  # fmt: skip
def test_blocks_take_what_threads_hold(
    length: int, dtype: DType, threads: int, reverse: bool
) -> None:
    x = np.random.default_rng(length).integers(-3, 4, (1, length, 1)).astype(dtype.numpy)
    kernel = kernel_of(Running("sum", 1, length, 1, reverse), [x], x)
    assert kernel.threads == threads
    got = carried_out(kernel, [x], np.zeros_like(x)).reshape(-1)
    exact = x.reshape(-1).astype(np.int8 if dtype is SI8 else np.float64)
    source = exact[::-1] if reverse else exact
    want = np.cumsum(source, dtype=source.dtype)
    want = (want[::-1] if reverse else want).astype(dtype.numpy)
    assert (got.astype("f8") == want.astype("f8")).all()


def test_the_sign_of_a_first_zero_is_kept() -> None:
    x = np.full((1, 600, 1), -0.0, np.float32)
    got = carried_out(kernel_of(Running("sum", 1, 600, 1), [x], x), [x], x)
    assert np.signbit(got).all()


# -- sorting ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("descending", one_in(2, [False, True]))
@pytest.mark.parametrize("dtype", one_in(2, [F32, SI8, BF16, F64]))
@pytest.mark.parametrize(
    "shape",
    one_in(
        2,
        [
            (1, 1, 1),
            (3, 40, 40),
            (2, 66, 7),
            (1, 128, 128),
            (9, 250, 250),
            (2, 700, 699),
            (1, 2048, 9),
        ],
    ),
)
def test_sorting_agrees(shape: tuple[int, int, int], dtype: DType, descending: bool) -> None:
    outer, length, count = shape
    rng = np.random.default_rng(length)
    x = rng.integers(-9, 10, (outer, length)).astype(dtype.numpy)
    if dtype.is_float:
        x[:, ::7] = np.nan
        x[:, ::5] = -x[:, ::5] * 0
    result = np.zeros((outer, count), np.int64)
    kernel = kernel_of(Order(outer, length, count, descending), [x], result)
    got = carried_out(kernel, [x], result).reshape(outer, count)
    for row, found in zip(x.astype(np.float64), got, strict=True):
        assert found.tolist() == sorted(range(length), key=_key(row, descending))[:count]


def _key(row: Array, descending: bool) -> Any:
    """NaN after everything else, or before it; equal elements in their order."""
    sign = -1 if descending else 1
    return lambda i: (sign * bool(np.isnan(row[i])), 0 if np.isnan(row[i]) else sign * row[i])


def test_rows_that_no_block_holds_are_not_sorted_by_one() -> None:
    tensor = Tensor("in0", F32, (1, 1 << 21))
    out = Output("out", "", ())
    op = Order(1, 1 << 21, 5)
    kernel = Kernel("o", Pattern.OPAQUE, (), (), (out,), opaque=OpaqueCall(op, ("in0",), (0,)))
    tensors = {"in0": tensor, "out": Tensor("out", SI64, (1, 5))}
    (finding,) = whole.accepts(op, kernel, tensors)
    assert finding.why == "2097152 elements are too many for one block to sort"


# -- text, machine code, planted faults ------------------------------------------------------------


def examples() -> dict[str, ir.Kernel]:
    rng = np.random.default_rng(0)
    scatter = scatter_operands(SCATTERS["each"], F32, SI64, rng)
    counts = {
        dtype: scatter_operands(SCATTERS["rows"], dtype, SI32, rng)
        for dtype in (SI32, UI32, SI64, UI64)
    }
    column = rng.standard_normal((2, 700, 1)).astype(np.float32)
    totals = rng.standard_normal((2, 3, 1)).astype(np.float32)
    short = rng.standard_normal((3, 20, 5)).astype(BF16.numpy)
    order = np.zeros((3, 7), np.int64)
    row = rng.standard_normal((3, 40)).astype(np.float32)
    longer = rng.standard_normal((1, 300)).astype(np.float64)
    return {
        "scatter": kernel_of(SCATTERS["each"], scatter, scatter[0]),
        **{
            f"{fn} of {dtype}": kernel_of(
                replace(SCATTERS["rows"], fn=fn), counts[dtype], counts[dtype][0]
            )
            for fn in ("add", "max", "min")
            for dtype in (SI32, UI32, SI64, UI64)
        },
        "blocks": kernel_of(Running("sum", 2, 700, 1), [column], column),
        "parts": kernel_of(Continued("sum", 2, 700, 1, False, 280), [column, totals], column),
        "threads": kernel_of(Running("prod", 3, 20, 5, reverse=True), [short], short),
        "order": kernel_of(Order(3, 40, 7), [row], order),
        "network": kernel_of(Order(1, 300, 300), [longer], np.zeros((1, 300), np.int64)),
    }


@pytest.mark.parametrize("name", one_in(6, list(examples())))
def test_the_text_reads_back_and_the_code_is_sound(name: str) -> None:
    kernel = examples()[name]
    module = GpuModule({kernel.name: kernel})
    assert parse_module(print_module(module)).kernels == module.kernels
    for arch in ("sm_80", "sm_90a"):
        assert compile_cuda(cuda(kernel), arch).report.findings == []


def swapped(fn: str, other: str) -> Change:
    """A function takes another's place."""

    def change(statement: ir.Stmt) -> ir.Stmt:
        if isinstance(statement, values.Compute) and statement.op.fn == fn:
            return values.Compute(replace(statement.op, fn=other))
        return statement

    return change


def other_lane(statement: ir.Stmt) -> ir.Stmt:
    """Numbers come from the wrong lane of the warp."""
    if isinstance(statement, values.Shuffle) and statement.mask == 4:
        return replace(statement, mask=2)
    return statement


def in_three_steps(statement: ir.Stmt) -> ir.Stmt:
    """What is there is loaded, combined and stored: others come in between."""
    if not isinstance(statement, values.CombineElement):
        return statement
    buffer, dtype, place = statement.buffer, statement.dtype, statement.offset
    made = ElementOp("made", dtype, statement.fn, ("old", statement.source))
    steps = (
        ir.LoadElement("old", buffer, dtype, place, Lit(1), constant=False),
        values.Compute(made),
        values.StoreElement(buffer, dtype, place, Lit(1), "made"),
    )
    return ir.If(statement.guard, steps, ())


def combined_by(fn: str) -> Change:
    """Updates are combined by another function."""

    def change(statement: ir.Stmt) -> ir.Stmt:
        if isinstance(statement, values.CombineElement):
            return replace(statement, fn=fn)
        return statement

    return change


def next_place(statement: ir.Stmt) -> ir.Stmt:
    """Every update comes to the place after its own."""
    if isinstance(statement, values.CombineElement):
        return replace(statement, offset=statement.offset + 1)
    return statement


FAULTS: dict[str, tuple[str, Change]] = {
    "updates in three steps": ("add of si32", in_three_steps),
    "updates lost": ("add of si64", without(values.CombineElement)),
    "another function": ("max of ui32", combined_by("add")),
    "the least for the most": ("min of si32", combined_by("max")),
    "the next place": ("add of ui64", next_place),
    "no meeting": ("blocks", without(ir.SyncThreads)),
    "wrong lane": ("blocks", other_lane),
    "nothing carried": ("parts", without(values.Assign)),
    "ties fall": ("order", swapped("le", "lt")),
    "nothing counted": ("order", without(values.Assign)),
    "no meeting of pairs": ("network", without(ir.SyncThreads)),
    "pairs tie": ("network", swapped("min", "max")),
    "pairs of other lanes": ("network", other_lane),
}


def fault_operands(name: str) -> tuple[list[Array], Array]:
    rng = np.random.default_rng(1)
    match name.split(" of "):
        case fn, dtype:
            op = replace(SCATTERS["rows"], fn=fn)
            operands = scatter_operands(op, BY_NAME[dtype], SI32, rng)
            return operands, operands[0]
        case ["order"]:
            return [rng.integers(0, 5, (3, 40)).astype("f4")], np.full((3, 7), -1, np.int64)
        case ["network"]:
            return [rng.integers(0, 5, (1, 300)).astype("f8")], np.full((1, 300), -1, np.int64)
    totals = [rng.integers(1, 5, (2, 3, 1)).astype(np.float32)] if name == "parts" else []
    return (
        [rng.integers(0, 5, (2, 700, 1)).astype(np.float32), *totals],
        np.full((2, 700, 1), np.nan, np.float32),
    )


@pytest.mark.parametrize("fault", one_in(2, FAULTS))
def test_planted_faults_are_caught(fault: str) -> None:
    name, change = FAULTS[fault]
    kernel = examples()[name]
    broken = planted(kernel, change)
    assert broken != kernel
    operands, result = fault_operands(name)
    right = carried_out(kernel, operands, result)
    caught = []
    for seed in range(3):
        try:
            caught.append(not np.array_equal(carried_out(broken, operands, result, seed), right))
        except Hazard:
            caught.append(True)
    assert any(caught)
