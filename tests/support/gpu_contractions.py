"""Contractions on the dialect's interpreter: plans, kernels, data, and an f64 result to compare
with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from benchmarks.gemm_kernels import (
    Contraction,
    load_plan,
    plan_names,
    references,
    region_kernel,
)
from weft.codegen.gpu import ir
from weft.codegen.gpu.interp import Timing, run
from weft.codegen.gpu.products import sm80, sm90
from weft.foundation.dtypes import F16, F32
from weft.plan.ir import Header, MmaPlan
from weft.target.sm80 import SM80
from weft.target.sm90 import SM90
from weft.target.target import Target

Array = NDArray[Any]
TWO_UNITS: Target = replace(SM90, limits=replace(SM90.limits, units=2))
"""A machine small enough that every block takes several tiles."""


def sm90_plan(**fields: Any) -> MmaPlan:
    """A small SM90 plan."""
    defaults: dict[str, Any] = {"tile": (128, 64, 64), "warp_tile": (64, 64), "stages": 3}
    return MmaPlan(Header("sm90", "gemm"), arch="sm90", **{**defaults, **fields})


def sm90_kernel(shape: Contraction, plan: MmaPlan) -> ir.Kernel:
    plan = replace(plan, operand_layouts=shape.layouts)
    return sm90.build(region_kernel(shape), references(shape), plan, TWO_UNITS, "gemm")


def sm80_plan(**fields: Any) -> MmaPlan:
    """A small SM80 plan: two warps by one."""
    defaults: dict[str, Any] = {"tile": (32, 32, 32), "warp_tile": (16, 32), "stages": 3}
    return MmaPlan(Header("sm80", "gemm"), arch="sm80", roles="single", **{**defaults, **fields})


def sm80_kernel(shape: Contraction, plan: MmaPlan) -> ir.Kernel:
    sizes = zip("mnk", (shape.m, shape.n, shape.k), plan.tile, strict=True)
    tails = tuple(f"{axis}.i.i" for axis, size, step in sizes if size % step)
    # A contraction of one step has no layout: operands lie along k.
    layouts = shape.layouts if shape.k > 1 else ("row", "col")
    plan = replace(plan, operand_layouts=layouts, predicate_tail=tails)
    return sm80.build(region_kernel(shape), references(shape), plan, SM80, "gemm")


def ragged(seed: int) -> tuple[Contraction, MmaPlan]:
    """A random shape that no tile divides, with a plan of the benchmarks."""
    rng = np.random.default_rng(seed)
    names = plan_names()
    layouts = [("row", "col"), ("row", "row"), ("col", "col"), ("col", "row")][seed % 4]
    shape = Contraction(
        int(rng.integers(1, 160)) * 8,
        int(rng.integers(1, 160)) * 8,
        int(rng.integers(1, 100)) * 8,
        layouts=layouts,
        epilogue=((), ("bias",), ("bias", "gelu"), ("residual",))[seed // 4 % 4],
    )
    return shape, _with_room(shape, load_plan(names[seed % len(names)]))


def _with_room(shape: Contraction, plan: MmaPlan) -> MmaPlan:
    """The plan with as many of its stages as there is room for: columns that lie along n take whole
    panels, for which the plans of the benchmarks were not made."""
    plan = replace(plan, operand_layouts=shape.layouts)
    kernel, refs = region_kernel(shape), references(shape)
    while any(f.code == "SharedMemory" for f in sm90.accepts(kernel, refs, plan, SM90)):
        plan = replace(plan, stages=plan.stages - 1)
    return plan


def random_tensors(shape: Contraction, seed: int = 0) -> dict[str, Array]:
    """Every tensor that a contraction may read, and a result full of NaN."""
    rng = np.random.default_rng(seed)
    kinds = {
        "a": (shape.a_shape, shape.dtype),
        "b": (shape.b_shape, shape.dtype),
        "bias": ((shape.n,), shape.dtype),
        "residual": (shape.y_shape, shape.out_dtype),
    }
    found = {
        name: rng.standard_normal(sizes).astype(dtype.numpy)
        for name, (sizes, dtype) in kinds.items()
    }
    found["rows"] = rng.standard_normal(shape.m).astype(np.float32)
    found["y"] = np.full(shape.y_shape, np.nan, shape.out_dtype.numpy)
    return found


def expected(shape: Contraction, tensors: Mapping[str, Array]) -> Array:
    """The result in f64."""
    wide = {name: value.astype(np.float64) for name, value in tensors.items()}
    a = wide["a"] if shape.layouts[0] == "row" else np.swapaxes(wide["a"], -1, -2)
    b = wide["b"] if shape.layouts[1] == "row" else np.swapaxes(wide["b"], -1, -2)
    result = a @ b
    for step in shape.epilogue:
        result = _step(step, result, wide)
    return np.asarray(result)


def error_of(shape: Contraction, kernel: ir.Kernel, timing: Timing, seed: int) -> float:
    """How far a kernel is off on random tensors."""
    tensors = random_tensors(shape, seed)
    flat = {name: value.reshape(-1) for name, value in tensors.items()}
    run(kernel, flat, timing, seed)
    return relative_error(tensors["y"], expected(shape, tensors))


def _step(step: str, x: Array, wide: Mapping[str, Array]) -> Array:
    match step:
        case "bias":
            return np.asarray(x + wide["bias"])
        case "rows":
            return np.asarray(x * wide["rows"][:, None])
        case "residual":
            return np.asarray(x + wide["residual"])
        case "gelu":
            return np.asarray(x * special.ndtr(x))
        case "silu":
            return np.asarray(x * special.expit(x))
        case "relu":
            return np.maximum(x, 0)
        case "tanh":
            return np.tanh(x)
        case _:
            raise ValueError(step)


def relative_error(result: Array, exact: Array) -> float:
    """The distance of the results over the size of the exact one; NaN counts as infinite."""
    error = np.linalg.norm(result.astype(np.float64) - exact) / np.linalg.norm(exact)
    return float("inf") if np.isnan(error) else float(error)


def split(plan: MmaPlan, parts: int, form: str = "serial") -> MmaPlan:
    """A plan that makes sums in parts."""
    return replace(plan, algo_choice={"matmul": f"splitk_{form}_{parts}"})


COOPERATIVE = sm90_plan()
DEFERRED = sm90_plan(deferred_epilogue=True)
PINGPONG = sm90_plan(tile=(64, 64, 64), roles="pingpong")
COLUMNS = sm90_plan(tile=(64, 128, 64), stages=2)
SINGLE = sm90_plan(tile=(64, 96, 64), warp_tile=(64, 96), consumers=1, registers=(0, 0))
AT_ONCE = sm90_plan(in_flight=0)
SWAPPED = sm90_plan(
    swap_ab=True, tile=(64, 16, 64), warp_tile=(64, 16), consumers=1, registers=(0, 0)
)
SWAPPED_WIDE = sm90_plan(swap_ab=True, tile=(128, 8, 64), warp_tile=(64, 8))
NARROW, NARROW_WIDE = (replace(plan, swap_ab=False) for plan in (SWAPPED, SWAPPED_WIDE))
NARROWER = replace(NARROW, tile=(64, 32, 64), warp_tile=(64, 32))

SM90_CASES: dict[str, tuple[Contraction, MmaPlan]] = {
    "nt": (Contraction(136, 72, 72), COOPERATIVE),
    "nn": (Contraction(136, 72, 72, layouts=("row", "row")), COOPERATIVE),
    "tn": (Contraction(136, 72, 72, layouts=("col", "col")), COOPERATIVE),
    "tt": (Contraction(136, 72, 72, layouts=("col", "row")), PINGPONG),
    "columns split": (
        Contraction(70, 136, 200, layouts=("row", "row"), epilogue=("bias", "relu")),
        COLUMNS,
    ),
    "batched": (Contraction(72, 72, 72, batch=3), COOPERATIVE),
    "batched residual": (
        Contraction(72, 72, 72, batch=3, epilogue=("residual", "silu")),
        PINGPONG,
    ),
    "residual, several tiles": (Contraction(264, 136, 72, epilogue=("residual",)), COOPERATIVE),
    "residual, odd panels": (
        Contraction(200, 200, 72, epilogue=("bias", "residual")),
        sm90_plan(tile=(64, 96, 64), warp_tile=(64, 96), roles="pingpong", store_buffers=2),
    ),
    "residual, f16": (
        Contraction(136, 72, 72, dtype=F16, out_dtype=F16, epilogue=("residual", "relu")),
        COLUMNS,
    ),
    "f32 result": (Contraction(130, 72, 64, out_dtype=F32), COOPERATIVE),
    "f32 rows": (Contraction(130, 72, 64, out_dtype=F32, epilogue=("residual", "rows")), PINGPONG),
    "odd columns": (Contraction(70, 75, 64), COOPERATIVE),
    "even columns": (Contraction(70, 74, 64, epilogue=("bias", "rows")), PINGPONG),
    "odd f32": (Contraction(70, 75, 64, out_dtype=F32, epilogue=("bias",)), COLUMNS),
    "odd panels": (Contraction(135, 203, 72, epilogue=("bias",)), SINGLE),
    "odd, one buffer": (Contraction(135, 141, 72), replace(COOPERATIVE, store_buffers=1)),
    "odd, deferred": (Contraction(200, 141, 136, epilogue=("bias",)), DEFERRED),
    "odd, batched": (Contraction(71, 73, 72, batch=3), PINGPONG),
    "f16": (Contraction(70, 200, 64, dtype=F16, out_dtype=F16, epilogue=("bias",)), SINGLE),
    "deferred": (Contraction(136, 136, 72, epilogue=("bias", "gelu")), DEFERRED),
    "deferred, long": (Contraction(136, 72, 328, epilogue=("bias",)), DEFERRED),
    "at once": (Contraction(136, 72, 200, epilogue=("tanh",)), AT_ONCE),
    "one row": (Contraction(1, 136, 8), COOPERATIVE),
    "one element": (Contraction(1, 1, 8), COOPERATIVE),
    "hilbert": (Contraction(200, 200, 64), sm90_plan(order="hilbert")),
    "narrow": (Contraction(136, 16, 136, epilogue=("bias", "gelu")), NARROW),
    "narrow nn": (
        Contraction(72, 8, 72, layouts=("row", "row"), epilogue=("residual",)),
        NARROW,
    ),
    "narrow column": (Contraction(200, 1, 264, epilogue=("bias",)), NARROW_WIDE),
    "narrow tn": (Contraction(136, 8, 72, layouts=("col", "col"), epilogue=("rows",)), NARROW),
    "narrow tt": (Contraction(136, 32, 72, layouts=("col", "row"), batch=2), NARROWER),
    "narrow batch": (Contraction(72, 3, 72, batch=3, out_dtype=F32), NARROW_WIDE),
    "swapped": (Contraction(16, 136, 136, epilogue=("bias", "gelu")), SWAPPED),
    "swapped nn": (
        Contraction(11, 72, 72, layouts=("row", "row"), epilogue=("residual",)),
        SWAPPED,
    ),
    "swapped row": (Contraction(1, 200, 264, epilogue=("bias",)), SWAPPED_WIDE),
    "swapped tn": (Contraction(8, 136, 72, layouts=("col", "col"), epilogue=("rows",)), SWAPPED),
    "swapped batch": (Contraction(3, 72, 72, batch=3, out_dtype=F32), SWAPPED_WIDE),
    "pairs of rows": (
        Contraction(200, 136, 200, epilogue=("bias",)),
        replace(COLUMNS, cluster=(2, 1)),
    ),
    "pairs of columns": (Contraction(136, 200, 200), replace(COOPERATIVE, cluster=(1, 2))),
    "pairs, ping-pong": (
        Contraction(200, 72, 136, batch=2, epilogue=("residual",)),
        replace(PINGPONG, cluster=(2, 1)),
    ),
    "pairs, deferred": (
        Contraction(304, 200, 136, layouts=("col", "col"), epilogue=("bias",)),
        replace(DEFERRED, cluster=(2, 1)),
    ),
    "two parts": (Contraction(136, 72, 200, epilogue=("bias", "gelu")), split(COOPERATIVE, 2)),
    "three parts": (Contraction(136, 136, 456), split(PINGPONG, 3)),
    "parts of one step": (Contraction(70, 75, 136, epilogue=("rows",)), split(PINGPONG, 3)),
    "parts, batched": (
        Contraction(72, 72, 136, batch=3, epilogue=("residual", "silu")),
        split(PINGPONG, 2),
    ),
    "parts, deferred": (
        Contraction(136, 136, 392, epilogue=("bias",)),
        split(replace(DEFERRED, order="hilbert"), 3),
    ),
    "parts, swapped": (Contraction(11, 200, 264, epilogue=("bias", "gelu")), split(SWAPPED, 4)),
    "parts, pairs": (
        Contraction(200, 136, 328, epilogue=("residual",)),
        split(replace(COLUMNS, cluster=(2, 1)), 2),
    ),
    "parts at once": (
        Contraction(136, 136, 456, epilogue=("bias", "gelu")),
        split(COOPERATIVE, 3, "parallel"),
    ),
    "parts at once, batched": (
        Contraction(72, 72, 328, batch=3, epilogue=("residual",)),
        split(PINGPONG, 5, "parallel"),
    ),
    "parts at once, deferred": (Contraction(136, 141, 328), split(DEFERRED, 2, "parallel")),
    "parts at once, pairs": (
        Contraction(136, 200, 200, out_dtype=F32, epilogue=("bias",)),
        split(replace(COOPERATIVE, cluster=(1, 2)), 4, "parallel"),
    ),
}


TWO_BY_TWO = sm80_plan(tile=(64, 64, 32), warp_tile=(32, 32))
DOCUMENTED = sm80_plan(tile=(128, 64, 64), warp_tile=(64, 64), stages=2)
TWO_STAGES = sm80_plan(stages=2)
SM80_CASES: dict[str, tuple[Contraction, MmaPlan]] = {
    "nt": (Contraction(40, 40, 72), sm80_plan()),
    "nn": (Contraction(40, 40, 72, layouts=("row", "row")), sm80_plan()),
    "tn": (Contraction(40, 40, 72, layouts=("col", "col")), sm80_plan()),
    "tt": (Contraction(40, 40, 72, layouts=("col", "row")), TWO_STAGES),
    "whole tiles": (Contraction(64, 64, 64, layouts=("row", "row")), TWO_BY_TWO),
    "the document's tile": (Contraction(136, 72, 72, epilogue=("bias", "relu")), DOCUMENTED),
    "batched": (Contraction(40, 24, 40, batch=3), sm80_plan()),
    "batched residual": (Contraction(24, 40, 40, batch=2, epilogue=("residual",)), TWO_BY_TWO),
    "f32 result": (Contraction(40, 40, 32, out_dtype=F32, epilogue=("rows",)), sm80_plan()),
    "odd": (Contraction(37, 35, 41, layouts=("row", "row"), epilogue=("bias",)), sm80_plan()),
    "odd, turned": (Contraction(37, 35, 41, layouts=("col", "col")), TWO_BY_TWO),
    "odd, f32": (Contraction(5, 3, 70, out_dtype=F32), TWO_STAGES),
    "f16": (Contraction(40, 72, 40, dtype=F16, out_dtype=F16, epilogue=("bias",)), sm80_plan()),
    "one step": (Contraction(40, 24, 1, layouts=("row", "row")), sm80_plan()),
    "one row": (Contraction(1, 40, 40), TWO_STAGES),
    "one element": (Contraction(1, 1, 8), sm80_plan()),
    "many stages": (Contraction(40, 40, 200, epilogue=("bias", "gelu")), sm80_plan(stages=5)),
    "hilbert": (Contraction(100, 100, 40), sm80_plan(order="hilbert")),
    "two parts": (Contraction(40, 40, 136, epilogue=("bias", "gelu")), split(sm80_plan(), 2)),
    "three parts": (
        Contraction(37, 35, 201, layouts=("row", "row")),
        split(sm80_plan(stages=5), 3),
    ),
    "parts at once": (
        Contraction(40, 24, 200, batch=3, epilogue=("residual",)),
        split(sm80_plan(), 4, "parallel"),
    ),
}


def bound(shape: Contraction) -> float:
    """The relative error that rounding the result explains."""
    return {F32: 1e-6, F16: 1e-3}.get(shape.out_dtype, 3e-3)
