"""Single rows of 8-bit numbers become contractions, with the same results; others stay sums."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.gpu_interpreted import InterpretedGpu
from tests.support.gpu_programs import through_stages
from weft.foundation.dtypes import BY_NAME
from weft.plan.ir import MmaPlan
from weft.ptir import Builder, Program
from weft.region.ir import Kernel, Pattern

SIZES = (1024, 1024)


def product(
    dtype: str = "fp8_e4m3", result: str = "bf16", sizes: tuple[int, int] = SIZES, lead: int = 1,
    *, across: bool = False, bias: bool = False,
) -> Program:  # fmt: skip
    n, k = sizes
    b = Builder()
    x = b.param(dtype, [lead, k] if lead else [k])
    w = b.param(dtype, [k, n] if across else [n, k])
    added = [b.param(result, [1, n])] if bias else []
    contract = ([1 if lead else 0], [0 if across else 1])
    y = b.dot_general(x, w, contract=contract, out_dtype=result)
    return b.build(y + added[0] if bias else y)


def kernels(program: Program, target: str = "sm90") -> tuple[Kernel, ...]:
    found: tuple[Kernel, ...] = through_stages(program, target)["region"].kernels
    return found


TAKEN = {
    "e4m3": product(),
    "e5m2": product("fp8_e5m2"),
    "si8": product("si8", "si32"),
    "a bias behind it": product("si8", "si32", bias=True),
}
LEFT = {
    "16 bits": product("bf16"),
    "sums that show what promotion loses": product(result="f32"),
    "across k": product(across=True),
    "rows at odd places": product(sizes=(1024, 1025)),
    "too little": product(sizes=(256, 256)),
    "no place for a row": product(lead=0),
}


@pytest.mark.parametrize("name", TAKEN)
def test_single_rows_become_contractions(name: str) -> None:
    (kernel,) = kernels(TAKEN[name])
    assert kernel.pattern is Pattern.MATMUL
    assert kernel.roles is not None
    assert [kernel.sizes[axis] for axis in kernel.roles.m] == [1]


@pytest.mark.parametrize("name", LEFT)
def test_others_stay_sums(name: str) -> None:
    assert {kernel.pattern for kernel in kernels(LEFT[name])} <= {Pattern.ROW, Pattern.MAP}


def test_older_machines_keep_sums() -> None:
    assert {kernel.pattern for kernel in kernels(product(), "sm80")} == {Pattern.ROW}


@pytest.mark.parametrize(("dtype", "result"), [("fp8_e4m3", "bf16"), ("si8", "si32")])
def test_results_are_those_of_numpy(dtype: str, result: str) -> None:
    drawn, held = np.random.default_rng(0), BY_NAME[dtype].numpy
    inputs = [drawn.integers(-2, 3, shape).astype(held) for shape in ((1, 1024), SIZES)]
    executable = InterpretedGpu("sm90").compile(product(dtype, result))
    (plan,) = executable.compilation["plan"].plans.values()
    assert isinstance(plan, MmaPlan)
    assert plan.swap_ab
    (got,) = executable.execute(inputs)
    x, w = (given.astype(np.float64) for given in inputs)
    want = (x @ w.T).astype(BY_NAME[result].numpy)
    np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64))
