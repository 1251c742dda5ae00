"""Hand-built kernels through CPU code generation, against playback of the same kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support import kernels
from tests.support.cases import one_in
from tests.support.native_kernels import plans_for, run_native
from weft.foundation.dtypes import BF16, F16, F32, F64, DType
from weft.region.interp import run_kernel
from weft.region.ir import Module

Array = NDArray[Any]


def check(module: Module, tolerance: float) -> None:
    arrays: dict[str, Array] = dict(kernels.arrays_for(module))
    for kernel in module.kernels:
        want = run_kernel(kernel, module.tensors, arrays)
        for plan in plans_for(kernel):
            given = dict(arrays)
            for output in kernel.outputs:
                tensor = module.tensors[output.tensor]
                start = given[output.base] if output.base else np.full(tensor.shape, 77)
                given[output.tensor] = np.array(start, tensor.dtype.numpy)
            run_native(kernel, module, plan, given)
            for name, expected in want.items():
                wide = expected.astype(np.float64)
                error = np.abs(given[name].astype(np.float64) - wide).max(initial=0)
                assert error <= tolerance * max(1.0, np.abs(wide).max(initial=0)), (plan, error)
        arrays.update(want)


SIZES = [(6, 10), (1, 1), (3, 17), (33, 64), (5, 37)]
ULPS = {F32: 2e-6, F64: 2e-6, F16: 2e-3, BF16: 2e-2}
ROWS: dict[str, Callable[..., Module]] = {
    "softmax": kernels.softmax,
    "layer_norm": kernels.layer_norm,
    "elementwise": kernels.elementwise,
}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("dtype", ULPS, ids=str)
@pytest.mark.parametrize(("rows", "columns"), one_in(5, SIZES, unpack=True))
def test_row_and_map_kernels(name: str, dtype: DType, rows: int, columns: int) -> None:
    check(ROWS[name](rows, columns, dtype), ULPS[dtype])


@pytest.mark.parametrize(("rows", "columns"), SIZES)
def test_online_softmax_fold(rows: int, columns: int) -> None:
    check(kernels.softmax_fold(rows, columns), ULPS[F32])


@pytest.mark.parametrize(
    ("m", "n", "k"), one_in(2, [(12, 20, 16), (1, 1, 1), (7, 33, 5), (6, 16, 64)], unpack=True)
)
@pytest.mark.parametrize("dtype", one_in(2, [F32, F16, BF16]), ids=str)
def test_linear(m: int, n: int, k: int, dtype: DType) -> None:
    check(kernels.linear(m, n, k, dtype=dtype), ULPS[dtype])


def test_batched_linear() -> None:
    check(kernels.linear(5, 9, 7, batch=3, activation="tanh"), ULPS[F32])


def test_a_window_that_leaves_the_tensor_reads_the_fill() -> None:
    check(kernels.shifted_window(9), ULPS[F32])


def test_a_cache_update_writes_only_its_window() -> None:
    check(kernels.cache_update(), 0.0)


def test_index_values_and_select() -> None:
    check(kernels.causal_mask(7), 0.0)


def test_several_kernels() -> None:
    check(kernels.mlp(), ULPS[F32])
