"""Hand-built kernels through CPU code generation, against playback of the same kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support import kernels
from weft.codegen.cpu.accept import PACKED
from weft.codegen.cpu.compile import accepts, lower
from weft.codegen.cpu.llvm import emit_module
from weft.foundation.dtypes import BF16, F16, F32, F64, DType
from weft.memory.ir import Buffer, MemRef, Space
from weft.plan.ir import Header, MapPlan, MmaPlan, Plan, RowPlan, Vectorize
from weft.plan.kept_rows import kept_values
from weft.region.interp import run_kernel
from weft.region.ir import Kernel, Module, Pattern, Tensor
from weft.region.structure import buffers
from weft.runtime.jit import Library, compile_object

Array = NDArray[Any]
HEADER = Header("cpu", "")


def row_major(tensors: dict[str, Tensor]) -> dict[str, MemRef]:
    refs = {}
    for number, tensor in enumerate(tensors.values()):
        strides = tuple(prod(tensor.shape[axis + 1 :]) for axis in range(len(tensor.shape)))
        buffer = Buffer(Space.INPUT, number, 0, 0)
        refs[tensor.name] = MemRef(tensor.name, buffer, tensor.shape, strides, 128, noalias=False)
    return refs


def run_native(kernel: Kernel, module: Module, plan: Plan, arrays: dict[str, Array]) -> None:
    """Runs the kernel on the arrays, in place, in two ranges of pieces."""
    refs = row_major(module.tensors)
    assert accepts(kernel, module.tensors, plan) == []
    routine = lower(kernel, module.tensors, refs, plan, "k0")
    library = Library([compile_object(emit_module([routine]))], ["k0"])
    signature = ctypes.CFUNCTYPE(
        None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64
    )
    function = signature(library.address("k0"))
    names = buffers(kernel)
    table = (ctypes.c_void_p * len(names))(*(arrays[name].ctypes.data for name in names))
    error = ctypes.c_int64(0)
    middle = routine.pieces // 2
    for first, last in ((middle, routine.pieces), (0, middle)):
        function(ctypes.addressof(table), ctypes.addressof(error), first, last)


def tiled(rows: int, columns: int, depth: int, lanes: Vectorize) -> MmaPlan:
    """A register tile over all of the sum."""
    tile = (rows, columns)
    return MmaPlan(
        HEADER, (*tile, depth), warp_tile=tile, vectorize=lanes, arch="cpu", roles="single"
    )


def plans_for(kernel: Kernel) -> list[Plan]:
    if kernel.pattern is Pattern.MATMUL:
        assert kernel.roles is not None
        depth = prod(kernel.sizes[name] for name in kernel.roles.k)
        plain = [
            tiled(rows, columns, depth, Vectorize("n", lanes))
            for rows, columns, lanes in ((4, 8, 4), (1, 1, 1), (6, 16, 8))
        ]
        packed = replace(plain[0], tile=(5, 8, depth), cache=PACKED)
        summed = tiled(2, 3, depth - depth % 4, Vectorize("k.i.i", 4))
        return [*plain, packed, summed]
    if kernel.pattern is Pattern.ROW:
        keeps = {False, bool(kept_values(kernel))}
        return [
            RowPlan(HEADER, lanes, accumulators=partial, keep_row=keep)
            for lanes, partial in ((4, 4), (1, 1), (4, 3))
            for keep in sorted(keeps)
        ]
    return [MapPlan(HEADER, 4, unroll=2), MapPlan(HEADER, 1)]


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
@pytest.mark.parametrize(("rows", "columns"), SIZES)
def test_row_and_map_kernels(name: str, dtype: DType, rows: int, columns: int) -> None:
    check(ROWS[name](rows, columns, dtype), ULPS[dtype])


@pytest.mark.parametrize(("rows", "columns"), SIZES)
def test_online_softmax_fold(rows: int, columns: int) -> None:
    check(kernels.softmax_fold(rows, columns), ULPS[F32])


@pytest.mark.parametrize(("m", "n", "k"), [(12, 20, 16), (1, 1, 1), (7, 33, 5), (6, 16, 64)])
@pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=str)
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
