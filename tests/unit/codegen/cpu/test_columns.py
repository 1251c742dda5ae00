"""Sums over the columns of large matrices: rows read whole, in parts that any thread may take."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from tests.support.cases import one_in
from weft.codegen.cpu import ir
from weft.codegen.cpu.scopes import UNROLLED
from weft.codegen.cpu.text import parse_routines, print_routines
from weft.foundation.errors import SpecViolation
from weft.ptir import Builder, Program, Value
from weft.runtime.jit import assembly

Array = NDArray[Any]
Write = Callable[..., Value]
Oracle = Callable[..., Array]

COLUMNS: dict[str, tuple[list[tuple[int, ...]], str, Write, Oracle]] = {
    "sum": ([(1024, 600)], "f32", lambda b, x: b.reduce_sum(x, [0]), lambda x: x.sum(0)),
    "sum of f64": ([(960, 301)], "f64", lambda b, x: b.reduce_sum(x, [0]), lambda x: x.sum(0)),
    "sum of whole numbers": (
        [(1024, 513)], "si32", lambda b, x: b.reduce_sum(x, [0]), lambda x: x.sum(0)
    ),
    "two sums": (
        [(1024, 512)], "f32", lambda b, x: b.reduce_sum(x * x, [0]) - b.reduce_sum(x, [0]),
        lambda x: (x * x).sum(0) - x.sum(0),
    ),
    "a row by a matrix": (
        [(1, 768), (768, 700), (700,)], "f32",
        lambda b, x, w, c: b.matmul(x, w) + b.broadcast_to(b.reshape(c, [1, 700]), [1, 700]),
        lambda x, w, c: x @ w + c,
    ),
    "what follows": (
        [(1, 512), (512, 1030)], "f32", lambda b, x, w: b.abs(b.matmul(x, w) * 0.1),
        lambda x, w: np.abs(x @ w * 0.1),
    ),
    "several summed axes": (
        [(12, 64, 900)], "f32", lambda b, x: b.reduce_sum(x, [0, 1]), lambda x: x.sum((0, 1))
    ),
    "batches": (
        [(6, 300, 256)], "f32", lambda b, x: b.reduce_sum(x, [1]), lambda x: x.sum(1)
    ),
    "wider than the totals": (
        [(64, 70_000)], "f32", lambda b, x: b.reduce_sum(x, [0]), lambda x: x.sum(0)
    ),
    "a few rows by a matrix": (
        [(5, 768), (768, 700), (700,)], "f32",
        lambda b, x, w, c: b.matmul(x, w) + b.broadcast_to(b.reshape(c, [1, 700]), [5, 700]),
        lambda x, w, c: x @ w + c,
    ),
    "batches of a few rows": (
        [(3, 2, 330), (3, 330, 300)], "f32", lambda b, x, w: b.matmul(x, w), lambda x, w: x @ w
    ),
    "a few rows of two axes": (
        [(2, 4, 512), (512, 640)], "f64",
        lambda b, x, w: b.dot_general(x, w, contract=([2], [0])), lambda x, w: x @ w,
    ),
    "a masked row": (
        [(640, 512), (512,)], "f32",
        lambda b, x, g: b.reduce_sum(x * b.broadcast_to(b.reshape(g, [1, 512]), [640, 512]), [0]),
        lambda x, g: (x * g).sum(0),
    ),
}  # fmt: skip
NUMPY = {"f32": np.float32, "f64": np.float64, "si32": np.int32}


def program_of(name: str) -> tuple[Program, list[Array]]:
    shapes, dtype, write, _ = COLUMNS[name]
    b = Builder("columns")
    params = [b.param(dtype, list(shape)) for shape in shapes]
    rng = np.random.default_rng(3)
    arrays = [(rng.standard_normal(shape) * 10).astype(NUMPY[dtype]) for shape in shapes]
    return b.build(write(b, *params)), arrays


def plans_of(executable: Any) -> list[dict[str, Any]]:
    return list(json.loads(executable.stages["plan"])["plans"])


@pytest.mark.parametrize("name", one_in(2, COLUMNS))
def test_columns_are_summed_up_row_by_row(name: str) -> None:
    program, arrays = program_of(name)
    executable = weft.compile(program, "cpu")
    assert plans_of(executable)[0]["across"] is True
    (one,) = executable.run(arrays, threads=1)
    (two,) = executable.run(arrays, threads=2)
    assert one.tobytes() == two.tobytes()
    exact = COLUMNS[name][3](*(a.astype(np.float64) for a in arrays))
    scale = np.abs(exact).max()
    bound = 4e-6 if one.dtype == np.float32 else 1e-13
    np.testing.assert_allclose(one, exact, rtol=0, atol=bound * scale)


def test_long_chains_of_additions_are_cut() -> None:
    b = Builder("constant")
    program = b.build(b.reduce_sum(b.param("f32", [100_000, 128]), [0]))
    x = np.full((100_000, 128), np.float32(0.1))
    (found,) = weft.compile(program, "cpu").run([x])
    assert np.abs(found - 100_000 * float(np.float32(0.1))).max() <= 4 * np.spacing(np.float32(1e4))


@pytest.mark.parametrize("name", ["sum", "several summed axes", "what follows"])
def test_the_dialect_parses_back(name: str) -> None:
    text = weft.compile(program_of(name)[0], "cpu").stages["cpu"]
    assert print_routines(parse_routines(text)) == text


def narrow(b: Builder) -> Value:
    x = b.param("f16", [1024, 1024])
    return b.reduce_sum(x, [0], accum_dtype="f16")


def along(b: Builder) -> Value:
    return b.reduce_sum(b.param("f32", [1024, 1024]), [1])


def deviations(b: Builder) -> Value:
    x = b.param("f32", [1024, 1024])
    mean = b.reduce_sum(x, [0], keepdims=True) * (1 / 1024)
    centred = x - b.broadcast_to(mean, x.shape)
    return b.reduce_sum(centred * centred, [0])


def crossed(b: Builder) -> Value:
    x, y = b.param("f32", [1024, 1024]), b.param("f32", [1024, 1024])
    return b.reduce_sum(x * b.transpose(y, [1, 0]), [0])


def greatest(b: Builder) -> Value:
    return b.reduce_max(b.param("f32", [1024, 1024]), [0])


def many_rows(b: Builder) -> Value:
    return b.matmul(b.param("f32", [9, 768]), b.param("f32", [768, 700]))


def small(b: Builder) -> Value:
    return b.reduce_sum(b.param("f32", [64, 128]), [0])


@pytest.mark.parametrize("write", [narrow, along, deviations, crossed, greatest, many_rows, small])
def test_other_kernels_are_not(write: Callable[[Builder], Value]) -> None:
    b = Builder("other")
    plans = plans_of(weft.compile(b.build(write(b)), "cpu"))
    assert not any(plan["across"] for plan in plans if plan["kind"] == "row")


@pytest.mark.parametrize("rows", one_in(2, range(1, 9)))
def test_a_few_rows_of_a_matrix_that_lies_along_the_sum(rows: int) -> None:
    b = Builder("along")
    x, w = b.param("f32", [rows, 301]), b.param("f32", [70, 301])
    executable = weft.compile(b.build(b.dot_general(x, w, contract=([1], [1]))), "cpu")
    rng = np.random.default_rng(rows)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in ((rows, 301), (70, 301))]
    (one,), (two,) = (executable.run(arrays, threads=threads) for threads in (1, 2))
    assert one.tobytes() == two.tobytes()
    np.testing.assert_allclose(one, arrays[0].astype(np.float64) @ arrays[1].T, atol=2e-4)


def test_a_plan_that_asks_for_it_elsewhere_is_refused() -> None:
    b = Builder("softmax")
    program = b.build(b.softmax(b.param("f32", [8, 64])))
    document = json.loads(weft.compile(program, "cpu").stages["plan"])
    document["plans"][0] |= {"across": True, "keep_row": False}
    with pytest.raises(SpecViolation, match="the kernel does more than sum up columns"):
        weft.compile(program, "cpu", overrides={"plan": json.dumps(document)})


@pytest.mark.usefixtures("small_machine")
@pytest.mark.parametrize(
    ("rows", "depth", "columns", "pieces"),
    [
        (1, 768, 3072, [16, 48]), (1, 768, 2304, [16, 36]), (2, 4096, 4096, [32, 32]),
        (8, 4096, 4096, [32, 64]), (1, 256, 512, [8]),
    ],
)  # fmt: skip
def test_parts_and_what_adds_them_up_are_pieces_for_many_threads(
    rows: int, depth: int, columns: int, pieces: list[int]
) -> None:
    """With rows as pieces, there would be two that add up 32 parts of two rows."""
    b = Builder("pieces")
    program = b.build(b.matmul(b.param("f32", [rows, depth]), b.param("f32", [depth, columns])))
    made = weft.compile(program, "cpu").artifact.kernels
    assert [kernel.work_items for kernel in made] == pieces


@pytest.mark.usefixtures("small_machine")
@pytest.mark.parametrize("rows", [2, 8])
def test_many_totals_stay_in_the_first_cache(rows: int) -> None:
    """512 columns of eight totals, whose rows are told to the memory; of two, all 1030 columns."""
    b = Builder("near")
    x, w = b.param("f32", [rows, 2056]), b.param("f32", [2056, 1030])
    executable = weft.compile(b.build(b.matmul(x, w)), "cpu")
    nest = executable.stages["cpu"]
    assert f"scratch f32[{rows * (512 if rows == 8 else 1030)}]" in nest
    assert ("prefetch b1" in nest[: nest.index("routine", 10)]) is (rows == 8)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype("f4") for s in ((rows, 2056), (2056, 1030))]
    exact = arrays[0].astype("f8") @ arrays[1].astype("f8")
    np.testing.assert_allclose(executable.run(arrays)[0], exact, atol=3e-4)


def test_totals_are_read_and_written_for_eight_rows_of_the_matrix_at_a_time() -> None:
    b = Builder("at a time")
    program = b.build(b.matmul(b.param("f32", [5, 768]), b.param("f32", [768, 700])))
    routine, *_ = parse_routines(weft.compile(program, "cpu").stages["cpu"])
    unrolled = [
        loop.stop.constant
        for _, loops in ir.walk(routine.body)
        for loop in loops
        if loop.kind == UNROLLED and loop.var.startswith("ku")
    ]
    assert set(unrolled) == {8}


def test_rows_that_lie_pages_apart_are_packed_for_narrow_vectors() -> None:
    """Eight rows of 4096 numbers share one set of a cache with four ways: read where they lie, each
    of the 64 numbers of a tile came from the second cache."""
    b = Builder("apart")
    program = b.build(b.matmul(b.param("f32", [8, 4096]), b.param("f32", [4096, 1024])))
    wide = weft.compile(program, "x86-64-v4").stages["cpu"]
    assert "load v0 = b0" in wide
    made = weft.compile(program, "aarch64")
    nest = made.stages["cpu"]
    assert "scratch f32[256]" in nest[: nest.index("routine", 10)]
    assert "run v0 over mu" in nest
    text = made.stages["llvm"].split("; ==== kernel ")[1].partition("\n")[2]
    code = assembly(text, made.target.code)
    hot = max(re.split(r"^\.LBB\w+:", code, flags=re.MULTILINE), key=lambda b: b.count("fmla"))
    assert hot.count("fmla") == 128
    assert not re.search(r"ld1r|ldr\ts", hot)
    assert "[sp" not in hot
