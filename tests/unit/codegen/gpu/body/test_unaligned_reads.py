"""Reads of narrow elements that begin anywhere are made of whole lines, and give what NumPy gives;
faults that were planted are found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.gpu_faults import planted
from tests.support.gpu_interpreted import InterpretedGpu
from tests.support.gpu_programs import through_stages
from weft.codegen.gpu import ir
from weft.codegen.gpu.interp import Hazard, run
from weft.codegen.gpu.ir import values, walk
from weft.foundation.dtypes import BY_NAME
from weft.ptir import Builder, Program, Value

Array = NDArray[Any]
Make = Callable[[Builder, Value], Value]


def padded(low: list[int], high: list[int], value: float) -> Make:
    return lambda b, x: b.pad(x, low=low, high=high, interior=[0, 0], pad_value=value)


READS: Mapping[str, tuple[str, list[int], Make, Callable[[Array], Array]]] = {
    "padded rows": (
        "bf16", [9, 13],
        padded([0, 0], [0, 3], 0.0), lambda x: np.pad(x, ((0, 0), (0, 3))),
    ),
    "padded rows and more of them": (
        "f16", [5, 37],
        padded([0, 0], [2, 27], 0.0), lambda x: np.pad(x, ((0, 2), (0, 27))),
    ),
    "from an odd place on": (
        "bf16", [6, 67], lambda b, x: b.slice(x, [1, 3], [4, 64]), lambda x: x[1:5, 3:67],
    ),
    "to the end": (
        "f16", [3, 43], lambda b, x: b.slice(x, [0, 11], [3, 32]), lambda x: x[:, 11:43],
    ),
}  # fmt: skip
OTHERS: Mapping[str, tuple[str, list[int], Make]] = {
    "padded with ones": ("bf16", [9, 13], padded([0, 0], [0, 3], 1.0)),
    "padded in front": ("bf16", [9, 13], padded([0, 3], [0, 0], 0.0)),
    "aligned": ("bf16", [9, 16], padded([0, 0], [0, 8], 0.0)),
    "half a line": ("ui8", [5, 45], lambda b, x: b.slice(x, [0, 5], [5, 32])),
    "wide elements": ("f32", [9, 13], padded([0, 0], [0, 3], 0.0)),
}


def program_of(dtype: str, shape: list[int], make: Make) -> Program:
    b = Builder()
    return b.build(make(b, b.param(dtype, shape)))


def kernel_of(program: Program) -> ir.Kernel:
    (kernel,) = through_stages(program, "sm90")["gpu"].kernels.values()
    assert isinstance(kernel, ir.Kernel)
    return kernel


def reads_across(kernel: ir.Kernel) -> bool:
    return any(isinstance(found, values.LoadAcross) for found in walk(kernel.body))


def sample(dtype: str, shape: list[int]) -> Array:
    rng = np.random.default_rng(7)
    return rng.integers(1, 100, shape).astype(BY_NAME[dtype].numpy)


@pytest.mark.parametrize("name", READS)
def test_reads_agree_with_numpy(name: str) -> None:
    dtype, shape, make, meant = READS[name]
    program = program_of(dtype, shape, make)
    assert reads_across(kernel_of(program))
    x = sample(dtype, shape)
    (y,) = InterpretedGpu("sm90").compile(program).execute([x])
    np.testing.assert_array_equal(y, meant(x))


@pytest.mark.parametrize("name", OTHERS)
def test_other_reads_stay_as_they_are(name: str) -> None:
    assert not reads_across(kernel_of(program_of(*OTHERS[name])))


def changed(field: str, by: int) -> Callable[[ir.Stmt], ir.Stmt]:
    def change(statement: ir.Stmt) -> ir.Stmt:
        if not isinstance(statement, values.LoadAcross):
            return statement
        return replace(statement, **{field: getattr(statement, field) + by})

    return change


FAULTS = {
    "an element too far": changed("offset", 1),
    "an element more": changed("count", 1),
    "an element less": changed("count", -1),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_caught(fault: str) -> None:
    dtype, shape, make, meant = READS["padded rows"]
    kernel = kernel_of(program_of(dtype, shape, make))
    broken = planted(kernel, FAULTS[fault])
    assert broken != kernel
    x = sample(dtype, shape)
    y = np.zeros_like(meant(x))
    try:
        run(broken, dict(zip(broken.buffers, (x.reshape(-1), y.reshape(-1)), strict=True)))
    except Hazard:
        return
    assert (y != meant(x)).any()
