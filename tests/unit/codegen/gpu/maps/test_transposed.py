"""Blocks through shared memory: right on the dialect's interpreter for every dtype and shape, with
whole vectors where they fit; what is planted is found; what does not suit is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.support.cases import one_in
from tests.support.example_inputs import inputs_for
from tests.support.gpu_interpreted import InterpretedGpu
from tests.support.gpu_programs import through_stages
from weft.codegen.gpu import ir
from weft.codegen.gpu.interp.scalars import evaluate
from weft.codegen.gpu.ir.values import StoreVector
from weft.codegen.gpu.maps import transposed
from weft.plan.ir import MapPlan
from weft.ptir import Builder, Program, Value
from weft.target.known import target_named
from weft.testing.compare import compare

Make = Callable[..., Value]


def padded(b: Builder, x: Value, low: list[int], high: list[int] | None = None) -> Value:
    found = b.emit("pad", x, low=low, high=high or low, interior=[0] * len(low), pad_value=2)
    assert isinstance(found, Value)
    return found


CASES: dict[str, tuple[tuple[tuple[int, ...], ...], Make]] = {
    "transpose": (((72, 136),), lambda b, x: b.transpose(x, [1, 0])),
    "odd": (((67, 75),), lambda b, x: b.transpose(x, [1, 0])),
    "images": (((2, 24, 10, 20),), lambda b, x: b.transpose(x, [0, 2, 3, 1])),
    "images with a row each": (
        ((2, 24, 10, 20), (10,)),
        lambda b, x, y: (
            b.transpose(x, [0, 2, 3, 1])
            + b.broadcast_to(b.reshape(y, [1, 10, 1, 1]), [2, 10, 20, 24])
        ),
    ),
    "images with a border": (
        ((2, 32, 10, 30),),
        lambda b, x: b.transpose(padded(b, x, [0, 0, 1, 1]), [0, 2, 3, 1]),
    ),
    "with a border below": (
        ((70, 72), (80, 72)),
        lambda b, x, y: b.transpose(padded(b, x, [2, 0], [0, 8]), [1, 0]) + y,
    ),
    "added": (((72, 80), (80, 72)), lambda b, x, y: b.transpose(x, [1, 0]) + y),
    "two": (((72, 80), (72, 80)), lambda b, x, y: b.transpose(x, [1, 0]) * b.transpose(y, [1, 0])),
    "by rows": (
        ((72, 80), (72,)),
        lambda b, x, y: b.transpose(x, [1, 0]) + b.broadcast_to(y, [80, 72]),
    ),
}


def program(name: str, dtype: str) -> Program:
    shapes, make = CASES[name]
    b = Builder()
    return b.build(make(b, *(b.param(dtype, list(shape)) for shape in shapes)))


@pytest.mark.parametrize("dtype", one_in(2, ["f32", "bf16"]))
@pytest.mark.parametrize("name", one_in(3, CASES))
def test_blocks_agree(name: str, dtype: str) -> None:
    found = program(name, dtype)
    compilation = through_stages(found, "sm90")
    plans = compilation["plan"].plans.values()
    assert any(isinstance(plan, MapPlan) and plan.block > 1 for plan in plans)
    report = compare(found, inputs_for(found, 3), InterpretedGpu("sm90"))
    assert report.agrees, str(report)


@pytest.mark.parametrize("dtype", one_in(3, ["i1", "si8", "si64", "f64", "f16"]))
def test_other_dtypes_agree(dtype: str) -> None:
    found = program("transpose", dtype)
    report = compare(found, inputs_for(found, 4), InterpretedGpu("sm80"))
    assert report.agrees, str(report)


def test_results_are_stored_in_vectors() -> None:
    kernels = through_stages(program("transpose", "bf16"), "sm90")["gpu"].kernels
    (kernel,) = kernels.values()
    stores = [found for found in kernel.body if isinstance(found, StoreVector)]
    assert stores
    assert all(len(store.sources) == 8 for store in stores)


def shared_words(kernel: ir.Kernel) -> Iterator[list[int]]:
    """The words of shared memory that the lanes of the first warp of block 0 touch together."""
    names: dict[str, Any] = {}
    for found in kernel.body:
        place = SimpleNamespace(kernel=kernel, number=0)
        if isinstance(found, ir.Let):
            names[found.name] = evaluate(found.value, names, 0, place)
        elif isinstance(found, ir.StShared | ir.LoadShared):
            at = found.target if isinstance(found, ir.StShared) else found.source
            words = evaluate(at.offset, names, 0, place)
            assert isinstance(words, np.ndarray)
            yield [int(word) // 4 for word in words]


@pytest.mark.parametrize("dtype", one_in(2, ["f32", "bf16", "si8"]))
def test_lanes_find_their_words_in_different_banks(dtype: str) -> None:
    b = Builder()
    found = b.build(b.transpose(b.param(dtype, [128, 192]), [1, 0]))
    (kernel,) = through_stages(found, "sm90")["gpu"].kernels.values()
    every = list(shared_words(kernel))
    assert len(every) == 2 * 64 * 64 // 128
    assert all(len({word % 32 for word in words}) == 32 for words in every)


@pytest.mark.parametrize(
    ("name", "blocks"), [("images", 2 * 4), ("images with a row each", 2 * 10)]
)
def test_rows_go_on_along_axes_that_lie_like_one(name: str, blocks: int) -> None:
    """Of 10x20 points blocks take 64 at a time, unless an operand has one of the axes alone."""
    (kernel,) = through_stages(program(name, "f32"), "sm90")["gpu"].kernels.values()
    assert kernel.grid == blocks


REFUSED = {
    "vector": ({"vector": 16}, "a vector of 16 does not divide an axis of 72"),
    "block": ({"block": 20}, "blocks of 20x20 are not made of 128 threads with vectors of 4"),
    "grain": ({"grain": 512}, "a piece of work is a block: 4096 points"),
    "unroll": ({"unroll": 2}, "a piece of work is a block: 4096 points"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    fields, why = REFUSED[name]
    compilation = through_stages(program("transpose", "f32"), "sm90")
    (kernel,) = compilation["region"].kernels
    plan = replace(compilation["plan"].of(kernel.name), **fields)
    tensors = compilation["region"].tensors
    found = transposed.accepts(kernel, tensors, plan, target_named("sm90"))
    assert [finding.why for finding in found] == [why]


def test_operands_in_wider_vectors_than_results_are_loaded_whole_or_refused() -> None:
    """Bytes are loaded sixteen at a time and stored eight: a block of 64x64 has none for 512
    threads."""
    b = Builder()
    turned = b.build(b.transpose(b.param("si8", [128, 192]), [1, 0]))
    compilation = through_stages(turned, "sm90")
    (kernel,) = compilation["region"].kernels
    plan = replace(compilation["plan"].of(kernel.name), threads=512)
    assert plan.vector == 8
    tensors = compilation["region"].tensors
    found = transposed.accepts(kernel, tensors, plan, target_named("sm90"))
    assert [finding.why for finding in found] == [
        "blocks of 64x64 are not made of 512 threads with vectors of 16"
    ]


def test_a_kernel_without_crossing_is_refused() -> None:
    b = Builder()
    x = b.param("f32", [64, 64])
    compilation = through_stages(b.build(x + x), "sm90")
    (kernel,) = compilation["region"].kernels
    plan = replace(compilation["plan"].of(kernel.name), block=64, grain=4096)
    tensors = compilation["region"].tensors
    found = transposed.accepts(kernel, tensors, plan, target_named("sm90"))
    assert [finding.why for finding in found] == ["no operand is transposed"]
