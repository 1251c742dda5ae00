"""Kernels as machine code of the processor: their plans, and calls of them on arrays."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from math import prod
from typing import Any

from numpy.typing import NDArray

from weft.codegen.cpu.accept import PACKED
from weft.codegen.cpu.compile import accepts, lower
from weft.codegen.cpu.llvm import emit_module
from weft.memory.ir import Buffer, MemRef, Space
from weft.plan.cpu_rows import kept_values
from weft.plan.ir import Header, MapPlan, MmaPlan, Plan, RowPlan, Vectorize
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


def run_native(
    kernel: Kernel,
    module: Module,
    plan: Plan,
    arrays: dict[str, Array],
    features: frozenset[str] = frozenset(),
) -> None:
    """Runs the kernel on the arrays, in place, in two ranges of pieces, with the instructions that
    `features` names."""
    refs = row_major(module.tensors)
    assert accepts(kernel, module.tensors, plan) == []
    routine = lower(kernel, module.tensors, refs, plan, "k0")
    library = Library([compile_object(emit_module([routine], features=features))], ["k0"])
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
