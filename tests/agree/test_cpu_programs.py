"""Random programs and the example programs on the cpu backend, against the reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from tests.random.programs import check_program
from tests.support.cases import one_in
from weft.ptir import Builder, Program, load
from weft.testing.compare import compare

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.ptir.txt"))
Array = NDArray[Any]


def random_inputs(program: Program, seed: int) -> list[Array]:
    rng = np.random.default_rng(seed)
    found: list[Array] = []
    for kind in program.main.parameters:
        assert isinstance(kind, weft.ptir.TensorType)
        if kind.dtype.is_integer:
            found.append(rng.integers(0, 8, kind.static_shape).astype(kind.dtype.numpy))
        else:
            found.append(rng.standard_normal(kind.static_shape).astype(kind.dtype.numpy))
    return found


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
@pytest.mark.parametrize("seed", one_in(3, range(3)))
def test_examples_agree(path: Path, seed: int) -> None:
    program = load(path)
    report = compare(program, random_inputs(program, seed), "cpu")
    assert report.agrees, str(report)


@pytest.mark.parametrize("block", one_in(40, range(40)))
def test_random_programs_agree(block: int) -> None:
    """Short programs, 50 of them in every run; `python -m tests.random` runs many longer ones."""
    for seed in range(50 * block, 50 * block + 50):
        check_program(seed, 1 + seed % 2)


def mlp(rows: int, inner: int, columns: int) -> Program:
    b = Builder()
    x, w = b.param("f32", [rows, inner]), b.param("f32", [inner, columns])
    bias = b.param("f32", [columns])
    y = x @ w
    return b.build(b.gelu(y + b.broadcast_to(bias, y.shape)))


@pytest.mark.parametrize("rows", [0, 1, 7])
@pytest.mark.parametrize("inner", [0, 1, 13])
@pytest.mark.parametrize("columns", [0, 1, 37])
def test_odd_sizes_agree(rows: int, inner: int, columns: int) -> None:
    program = mlp(rows, inner, columns)
    report = compare(program, random_inputs(program, 0), "cpu")
    assert report.agrees, str(report)


@pytest.mark.parametrize("inner", [3, 4, 9, 14])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_dot_products_of_rows_agree(dtype: str, inner: int) -> None:
    b = Builder()
    x, w = b.param(dtype, [2, inner]), b.param(dtype, [9, inner])
    program = b.build(b.dot_general(x, w, contract=([1], [1])))
    report = compare(program, random_inputs(program, 0), "cpu")
    assert report.agrees, str(report)


@pytest.mark.parametrize("axis", [0, 1])
def test_reductions_of_what_a_reduction_made_agree(axis: int) -> None:
    """The variance alone: nothing but the second sum reads the first."""
    b = Builder()
    x = b.param("f32", [4, 6])
    centre = b.reduce_sum(x, [axis], keepdims=True) * 0.25
    centred = x - b.broadcast_to(centre, x.shape)
    program = b.build(b.reduce_sum(centred * centred, [axis]))
    report = compare(program, random_inputs(program, 0), "cpu")
    assert report.agrees, str(report)


def test_groups_of_channels_and_channels_of_groups_agree() -> None:
    """Twelve channels as three times four in one place and four times three in another: what joins
    the two reads across parts that do not align."""
    b = Builder()
    x, y = b.param("f32", [12]), b.param("f32", [1, 12])
    sums = [b.reduce_sum(b.reshape(v, s), [1]) for v, s in ((x, [3, 4]), (y, [4, 3]))]
    program = b.build(*sums, b.reshape(x, [1, 12]) * y)
    report = compare(program, random_inputs(program, 0), "cpu")
    assert report.agrees, str(report)


def test_rows_are_updated_under_a_shape_that_does_not_align() -> None:
    """Twenty rows as five times four: an update begins anywhere among them."""
    b = Builder()
    x, update, start = b.param("f32", [20, 3]), b.param("f32", [6, 3]), b.param("si32", [2])
    made = b.emit("dynamic_update_slice", x, update, start, sizes=[6, 3])
    program = b.build(b.reshape(made, [5, 4, 3]))
    inputs = [np.zeros((20, 3), np.float32), np.ones((6, 3), np.float32), np.array([7, 0], "i4")]
    report = compare(program, inputs, "cpu")
    assert report.agrees, str(report)


@pytest.mark.parametrize(
    ("shape", "low", "high"),
    [([0], [0], [2]), ([0, 4], [0, 0], [2, 0]), ([1, 4], [1, 0], [2, 3]), ([3], [2], [7])],
    ids=str,
)
@pytest.mark.parametrize("op", ["rng_uniform", "rng_normal"])
def test_padded_random_numbers_agree(
    op: str, shape: list[int], low: list[int], high: list[int]
) -> None:
    """Whether an element is drawn depends on axes that the element does not."""
    b = Builder()
    drawn = b.emit(op, shape=shape, dtype="f32")
    interior = [0] * len(shape)
    padded = b.pad(drawn, low=low, high=high, interior=interior, pad_value=-0.5)
    report = compare(b.build(b.abs(padded)), [], "cpu", seed=3)
    assert report.agrees, str(report)


@pytest.mark.parametrize("shape", [[3, 0], [0, 3], [2, 5, 0]], ids=str)
def test_sums_of_no_columns_agree(shape: list[int]) -> None:
    b = Builder()
    x = b.param("f32", shape)
    program = b.build(b.reduce_sum(x * x, [0]))
    report = compare(program, random_inputs(program, 0), "cpu")
    assert report.agrees, str(report)
