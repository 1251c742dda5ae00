"""Ops that stay whole, as generated code: against their own meaning, and the proofs of their
loops."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from tests.support.cases import one_in
from tests.support.native_kernels import Array, row_major
from tests.support.one_op import bits, random_array
from weft.codegen.cpu import ir
from weft.codegen.cpu.llvm import emit_module
from weft.codegen.cpu.sorting import Items, kept_at_once
from weft.codegen.cpu.text import parse_routines, print_routines
from weft.codegen.cpu.whole import lower_whole, prove_whole
from weft.foundation.dtypes import (
    BF16,
    F16,
    F32,
    F64,
    FP8_E4M3,
    I1,
    SI4,
    SI8,
    SI16,
    SI32,
    SI64,
    UI8,
    UI16,
    UI64,
    DType,
)
from weft.foundation.errors import InternalError, ResourceExceeded
from weft.foundation.whole_ops import Order, Running, Scatter, WholeOp, op_text, read_op
from weft.region.ir import Kernel, OpaqueCall, Output, Pattern, Tensor
from weft.runtime.jit import Library, compile_object

DTYPES = (F32, F64, BF16, SI32, SI64, SI4, UI8, I1)
ORDERED = (*DTYPES, F16, FP8_E4M3, SI8, SI16, UI16, UI64)


def kernel_of(op: WholeOp, inputs: list[Array], out: DType, size: int) -> Kernel:
    names = tuple(f"x{n}" for n in range(len(inputs)))
    results, outputs = [0], [Output("y", "", (), None if op.base is None else names[op.base])]
    if isinstance(op, Order):
        results.append(-1)
        outputs.append(Output("work", "", ()))
    call = OpaqueCall(op, names, tuple(results))
    return Kernel("whole", Pattern.OPAQUE, (), (), tuple(outputs), opaque=call)


def lowered(
    op: WholeOp, inputs: list[Array], dtypes: list[DType], out: DType, size: int
) -> tuple[ir.Routine, Kernel, dict[str, Tensor]]:
    kernel = kernel_of(op, inputs, out, size)
    pairs = zip(inputs, dtypes, strict=True)
    tensors = {f"x{n}": Tensor(f"x{n}", d, x.shape) for n, (x, d) in enumerate(pairs)}
    tensors["y"] = Tensor("y", out, (size,))
    if isinstance(op, Order):
        tensors["work"] = Tensor("work", UI8, (op.workspace(dtypes[0].storage_bytes),))
    return lower_whole(kernel, tensors, row_major(tensors), 4, "k0"), kernel, tensors


def run(op: WholeOp, inputs: list[Array], dtypes: list[DType], out: DType, size: int) -> Array:
    """The result of generated code, run in two ranges of pieces, the later one first."""
    routine, kernel, tensors = lowered(op, inputs, dtypes, out, size)
    assert prove_whole(routine, op) == []
    assert parse_routines(print_routines([routine])) == [routine]
    library = Library([compile_object(emit_module([routine]))], ["k0"])
    word = ctypes.c_int64
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, word, word)(
        library.address("k0")
    )
    arrays = {f"x{n}": np.ascontiguousarray(x) for n, x in enumerate(inputs)}
    arrays["y"] = np.zeros(size, out.numpy)
    if op.base is not None:
        arrays["y"][:] = inputs[op.base].reshape(-1)
    if "work" in tensors:
        arrays["work"] = np.zeros(tensors["work"].shape, np.uint8)
    names = [*arrays]
    assert names == [*kernel.inputs, "y", *(["work"] if "work" in tensors else [])]
    table = (ctypes.c_void_p * len(names))(*(arrays[name].ctypes.data for name in names))
    middle = routine.pieces // 2
    for first, last in ((middle, routine.pieces), (0, middle)):
        function(ctypes.addressof(table), None, first, last)
    return arrays["y"]


def tell(value: WholeOp | DType) -> str:
    return str(value) if isinstance(value, DType) else op_text(value)


SCATTERS = [
    Scatter("add", 1, 5, 1, 9),
    Scatter("add", 1, 7, 37, 11),
    Scatter("max", 3, 4, 6, 5),
    Scatter("min", 2, 6, 3, 8, each=True),
    Scatter("replace", 2, 5, 40, 7, each=True),
    Scatter("replace", 1, 3, 18, 6),
]


@pytest.mark.parametrize(
    ("op", "dtype"), one_in(3, product(SCATTERS, DTYPES), unpack=True), ids=tell
)
def test_scatter(op: Scatter, dtype: DType) -> None:
    fn = op.fn if dtype is not I1 or op.fn != "add" else "max"
    # Sums of narrow floats are asked for in f32.
    kind = F32 if fn == "add" and dtype.is_float and dtype.bits < 32 else dtype
    op = replace(op, fn=fn)
    x = random_array(kind, (op.outer, op.rows, op.width), 1)
    update = random_array(kind, (op.outer, op.count, op.width), 2)
    rng = np.random.default_rng(3)
    each = (op.width,) if op.each else ()
    index_dtype = SI32 if dtype.bits < 32 else SI64
    shape = (op.outer, op.count, *each)
    index = rng.integers(0, op.rows, shape).astype(index_dtype.numpy)
    found = run(op, [x, index, update], [kind, index_dtype, kind], kind, x.size)
    same(found, op.evaluate(x, index, update))


def test_an_index_out_of_range_touches_nothing_else() -> None:
    """Whoever makes a scatter has checked its indices; memory is safe all the same."""
    op = Scatter("add", 1, 4, 8, 3)
    x, update = np.zeros((4, 8), np.float32), np.ones((3, 8), np.float32)
    index = np.array([-(1 << 40), 2, 1 << 40])
    found = run(op, [x, index, update], [F32, SI64, F32], F32, 32).reshape(4, 8)
    assert found[:, 0].tolist() == [1, 0, 1, 1]


RUNNING = [
    Running("sum", 1, 20, 1), Running("sum", 3, 9, 11), Running("prod", 2, 5, 4, reverse=True),
    Running("max", 2, 7, 1, reverse=True), Running("min", 4, 3, 18),
]  # fmt: skip


@pytest.mark.parametrize(
    ("op", "dtype"),
    one_in(3, product(RUNNING, [d for d in DTYPES if d is not BF16]), unpack=True),
    ids=tell,
)
def test_running(op: Running, dtype: DType) -> None:
    op = replace(op, fn="max") if dtype is I1 and op.fn in ("sum", "prod") else op
    x = random_array(dtype, (op.outer, op.length, op.width), scale=1.0)
    same(run(op, [x], [dtype], dtype, x.size), op.evaluate(x))


def test_a_running_sum_begins_with_its_first_element() -> None:
    op = Running("sum", 1, 3, 1)
    x = np.array([-0.0, -0.0, 1.0], np.float32)
    assert bits(run(op, [x], [F32], F32, 3)) == bits(x)


def keys(dtype: DType, shape: tuple[int, ...]) -> Array:
    """Numbers with ties, zeros of both signs, infinities and NaN."""
    x = random_array(dtype, shape, 4)
    if dtype.is_float:
        rng = np.random.default_rng(5)
        special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0]).astype(dtype.numpy)
        with np.errstate(all="ignore"):
            x = np.where(rng.random(shape) < 0.5, special[rng.integers(0, 6, shape)], x)
    return x


ORDERS = [
    Order(1, 1, 1), Order(3, 20, 20), Order(2, 33, 5, descending=True), Order(40, 70, 70),
    Order(5, 300, 17, descending=True),
]  # fmt: skip


@pytest.mark.parametrize(
    ("op", "dtype"), one_in(3, product(ORDERS, ORDERED), unpack=True), ids=tell
)
def test_order(op: Order, dtype: DType) -> None:
    x = keys(dtype, (op.outer, op.length))
    found = run(op, [x], [dtype], SI64, op.outer * op.count)
    assert found.tolist() == op.evaluate(x).tolist()


@pytest.mark.parametrize("count", [1, 5, 16, 17, 40])
@pytest.mark.parametrize("dtype", [F32, F64, SI8, SI32, UI64, BF16], ids=str)
def test_the_first_few_of_long_rows(dtype: DType, count: int) -> None:
    """Rows in any order, in ascending and descending order, and of equal elements."""
    rows = keys(dtype, (4, 500))
    order = np.argsort(rows[1].astype(np.float64), kind="stable")
    rows[1], rows[2], rows[3] = rows[1][order], rows[1][order[::-1]], rows[3, 0]
    for descending in (False, True):
        op = Order(4, 500, count, descending=descending)
        found = run(op, [rows], [dtype], SI64, op.outer * op.count)
        assert found.tolist() == op.evaluate(rows).tolist()


def test_only_few_of_a_row_are_kept_where_few_are_wanted() -> None:
    assert kept_at_once(500, 5) == kept_at_once(500, 16) == 32
    assert kept_at_once(500, 40) == 160
    assert kept_at_once(500, 100) == kept_at_once(60, 5) == 0


@pytest.mark.parametrize(
    ("dtype", "largest"), [(SI8, 255), (I1, 255), (SI4, 255), (F16, (1 << 32) - 1), (F64, -1)]
)
def test_bytes_and_floats_are_sorted_by_all_their_digits(dtype: DType, largest: int) -> None:
    x = keys(dtype, (1, 70))
    routine, _, _ = lowered(Order(1, 70, 70), [x], [dtype], SI64, 70)
    assert re.search(rf"@sort_items.* i64 70, i64 0, i64 {largest}\)", emit_module([routine]))


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", [SI16, SI32, SI64, UI64], ids=str)
def test_whole_numbers_are_sorted_by_what_they_differ_in(dtype: DType, descending: bool) -> None:
    """Rows in the middle, at both ends and over all numbers, and one of equal numbers."""
    rng, ends = np.random.default_rng(0), np.iinfo(dtype.numpy)
    near = rng.integers(-100, 100, (5, 300))
    if not dtype.is_signed:
        near += 1 << 40
    x = near.astype(dtype.numpy)
    x[1] = (rng.integers(0, 70, 300)).astype(dtype.numpy) + ends.min
    x[2] = ends.max - (rng.integers(0, 257, 300)).astype(dtype.numpy)
    x[3, ::2], x[3, 1::2] = ends.min, ends.max
    x[4] = 7
    op = Order(5, 300, 300, descending=descending)
    found = run(op, [x], [dtype], SI64, x.size)
    assert found.tolist() == op.evaluate(x).tolist()


def same(found: Array, want: Array) -> None:
    nan = (found != found) & (want != want)  # noqa: PLR0124
    zero = np.zeros((), found.dtype)
    assert bits(np.where(nan, zero, found)) == bits(np.where(nan, zero, want))


@pytest.mark.parametrize("op", [*SCATTERS, *RUNNING, *ORDERS], ids=op_text)
def test_records_read_back(op: WholeOp) -> None:
    assert read_op(op_text(op)) == op


def change(body: tuple[ir.Stmt, ...], edit: Callable[[ir.Stmt], ir.Stmt]) -> tuple[ir.Stmt, ...]:
    return tuple(
        edit(replace(stmt, body=change(stmt.body, edit)) if isinstance(stmt, ir.For) else stmt)
        for stmt in body
    )


def shorter(stmt: ir.Stmt) -> ir.Stmt:
    if isinstance(stmt, ir.For) and stmt.kind is ir.LoopKind.PARALLEL:
        return replace(stmt, stop=stmt.stop - 1)
    return stmt


CASES: list[tuple[WholeOp, Any]] = [
    (Scatter("add", 1, 7, 37, 11), [(1, 7, 37), (1, 11), (1, 11, 37)]),
    (Running("sum", 3, 9, 11), [(3, 9, 11)]),
    (Order(40, 70, 70), [(40, 70)]),
]


@pytest.mark.parametrize(("op", "shapes"), CASES, ids=lambda v: getattr(v, "name", ""))
def test_a_planted_fault_is_caught(op: WholeOp, shapes: list[tuple[int, ...]]) -> None:
    inputs = [np.zeros(shape, np.float32) for shape in shapes]
    dtypes = [F32, SI64, F32][: len(inputs)]
    routine, _, _ = lowered(op, inputs, dtypes, F32, int(np.prod(shapes[0])))
    broken = replace(routine, body=change(routine.body, shorter))
    with pytest.raises(InternalError, match=f"do not carry out {op.name}: the point .* is missing"):
        prove_whole(broken, op)


def test_rows_of_more_elements_than_places_have_bits_are_told() -> None:
    with pytest.raises(ResourceExceeded, match=r"rows of 4,294,967,297 elements are too long"):
        Items(SI8, (1 << 32) + 1)
