"""Contractions of 8-bit, 32-bit and 64-bit numbers: cases, data, exact results and error bounds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.gemm_kernels import Contraction
from tests.support.gpu_contractions import sm80_plan, sm90_plan, split
from weft.foundation.dtypes import (
    BF16,
    F16,
    F32,
    F64,
    FP8_E4M3,
    FP8_E5M2,
    SI8,
    SI32,
    UI8,
    UI32,
    DType,
)
from weft.plan.ir import MmaPlan

Array = NDArray[Any]
Case = tuple[Contraction, MmaPlan]

WHOLE = sm90_plan(tile=(128, 64, 128))
PROMOTED = sm90_plan(tile=(128, 64, 128), precision="promoted", in_flight=0)
TURNS: dict[str, Any] = {"roles": "pingpong", "tile": (64, 64, 128)}
NARROW: dict[str, Any] = {
    "swap_ab": True,
    "tile": (64, 16, 128),
    "warp_tile": (64, 16),
    "consumers": 1,
}
BYTES = sm80_plan(tile=(32, 32, 64))
DOUBLES = sm80_plan(tile=(32, 32, 16))
SPLIT = sm80_plan(precision="3xtf32")


def integers(m: int, n: int, k: int, **more: Any) -> Contraction:
    fields = {"dtype": SI8, "total": SI32, "out_dtype": SI32, **more}
    return Contraction(m, n, k, **fields)


def doubles(m: int, n: int, k: int, **more: Any) -> Contraction:
    return Contraction(m, n, k, **{"dtype": F64, "total": F64, "out_dtype": F64, **more})


def singles(m: int, n: int, k: int, **more: Any) -> Contraction:
    return Contraction(m, n, k, **{"dtype": F32, "out_dtype": F32, **more})


def tiny(m: int, n: int, k: int, **more: Any) -> Contraction:
    return Contraction(m, n, k, **{"dtype": FP8_E4M3, "out_dtype": F32, **more})


SM90_TYPES: dict[str, Case] = {
    "si8": (integers(136, 80, 272), WHOLE),
    "si8, ping-pong, bias": (integers(136, 80, 272, epilogue=("bias",)), replace(WHOLE, **TURNS)),
    "si8 by ui8": (integers(70, 80, 144, b_dtype=UI8), WHOLE),
    "ui8 by si8": (integers(70, 80, 144, dtype=UI8, b_dtype=SI8), replace(WHOLE, in_flight=0)),
    "ui8": (integers(130, 72, 144, dtype=UI8, total=UI32, out_dtype=UI32), WHOLE),
    "si8 to si8": (integers(136, 80, 16, out_dtype=SI8), WHOLE),
    "si8 to bf16": (integers(136, 80, 272, out_dtype=BF16, epilogue=("scale",)), WHOLE),
    "si8, odd columns": (integers(70, 75, 144), WHOLE),
    "si8, swapped": (integers(9, 136, 272), replace(WHOLE, **NARROW, registers=(0, 0))),
    "si8, batched": (integers(70, 72, 144, batch=3), WHOLE),
    "e4m3": (tiny(136, 80, 528), PROMOTED),
    "e4m3 to bf16": (tiny(136, 80, 528, out_dtype=BF16, epilogue=("bias",)), PROMOTED),
    "e5m2": (tiny(136, 80, 272, dtype=FP8_E5M2), replace(PROMOTED, **TURNS)),
    "e4m3 by e5m2": (tiny(70, 80, 272, b_dtype=FP8_E5M2, out_dtype=F16), PROMOTED),
    "e4m3 to e4m3": (tiny(70, 80, 272, out_dtype=FP8_E4M3), PROMOTED),
    "e4m3 to e4m3, many steps": (tiny(200, 144, 1040, out_dtype=FP8_E4M3), PROMOTED),
    "e4m3 to e4m3, batched": (tiny(70, 80, 144, out_dtype=FP8_E4M3, batch=3), PROMOTED),
    "e4m3 to e4m3, swapped": (
        tiny(9, 136, 272, out_dtype=FP8_E4M3),
        replace(PROMOTED, **NARROW, registers=(0, 0)),
    ),
    "e5m2 to e5m2, ping-pong": (
        tiny(136, 80, 272, dtype=FP8_E5M2, out_dtype=FP8_E5M2),
        replace(PROMOTED, **TURNS),
    ),
    "e4m3, swapped": (
        tiny(9, 136, 272, out_dtype=BF16),
        replace(PROMOTED, **NARROW, registers=(0, 0)),
    ),
    "si8, three parts": (integers(264, 48, 528), split(WHOLE, 3)),
    "e4m3, parts at once": (tiny(264, 48, 528), split(PROMOTED, 3, "parallel")),
}
SM80_TYPES: dict[str, Case] = {
    "si8": (integers(40, 48, 144), BYTES),
    "si8 nn": (integers(40, 48, 144, layouts=("row", "row"), epilogue=("bias",)), BYTES),
    "si8 tt": (integers(40, 48, 80, layouts=("col", "row")), BYTES),
    "si8 by ui8": (integers(40, 48, 80, b_dtype=UI8, out_dtype=BF16, epilogue=("scale",)), BYTES),
    "ui8, odd": (integers(37, 41, 77, dtype=UI8, total=UI32, out_dtype=UI32), BYTES),
    "si8 to si8": (integers(40, 43, 16, out_dtype=SI8), BYTES),
    "f64 nt": (doubles(40, 48, 72), DOUBLES),
    "f64 nn": (doubles(40, 48, 72, layouts=("row", "row")), DOUBLES),
    "f64 tn": (doubles(40, 48, 72, layouts=("col", "col"), epilogue=("bias",)), DOUBLES),
    "f64 tt": (doubles(40, 48, 72, layouts=("col", "row")), replace(DOUBLES, stages=2)),
    "f64, odd": (doubles(37, 41, 35), DOUBLES),
    "f64, few rows": (
        doubles(3, 136, 72),
        replace(DOUBLES, tile=(16, 128, 16), warp_tile=(16, 32), stages=4),
    ),
    "f64, few columns": (
        doubles(136, 3, 72, layouts=("row", "row")),
        replace(DOUBLES, tile=(128, 16, 16), warp_tile=(32, 16), stages=4),
    ),
    "f64, batched": (doubles(24, 40, 20, batch=3), DOUBLES),
    "f32 nt": (singles(40, 48, 136), SPLIT),
    "f32 nn": (singles(40, 48, 136, layouts=("row", "row"), epilogue=("bias",)), SPLIT),
    "f32 tn": (singles(40, 48, 72, layouts=("col", "col")), SPLIT),
    "f32, odd": (singles(37, 41, 35, out_dtype=BF16), SPLIT),
    "ui8, parts at once": (
        integers(37, 41, 205, dtype=UI8, total=UI32, out_dtype=UI32),
        split(BYTES, 3, "parallel"),
    ),
    "f64, three parts": (doubles(40, 48, 72), split(DOUBLES, 3)),
    "f64, parts at once": (doubles(37, 41, 83), split(DOUBLES, 4, "parallel")),
    "f32, two parts": (singles(40, 48, 136), split(SPLIT, 2)),
}


def bound(shape: Contraction) -> float:
    """The largest error over the largest result that rounding explains; none for integers."""
    result = {BF16: 2**-8, F16: 2**-11, FP8_E4M3: 2**-4, FP8_E5M2: 2**-3}
    rounding = result.get(shape.out_dtype, 0.0)
    kept = {F64: 1e-14, F32: 2e-6}.get(shape.dtype, 0.0)
    if shape.dtype in (FP8_E4M3, FP8_E5M2):
        kept = 2**-11
    return rounding + kept


def tensors(shape: Contraction, seed: int = 0) -> dict[str, Array]:
    """Everything that a contraction may read, and a result full of ones' bits."""
    rng = np.random.default_rng(seed)
    other = shape.b_dtype or shape.dtype
    found = {
        "a": drawn(rng, shape.dtype, shape.a_shape),
        "b": drawn(rng, other, shape.b_shape),
        "bias": drawn(rng, shape.dtype, (shape.n,)),
        "rows": rng.standard_normal(shape.m).astype(np.float32),
        "y": np.zeros(shape.y_shape, shape.out_dtype.numpy),
    }
    found["y"].reshape(-1).view(np.uint8)[...] = 0xFF
    return found


def drawn(rng: np.random.Generator, dtype: DType, sizes: tuple[int, ...]) -> Array:
    """Integers of the whole range, or normal numbers."""
    if dtype.is_integer:
        return rng.integers(int(dtype.lowest), int(dtype.highest) + 1, sizes).astype(dtype.numpy)
    return np.asarray(rng.standard_normal(sizes)).astype(dtype.numpy)


def exact(shape: Contraction, given: dict[str, Array]) -> Array:
    """The result in f64, saturated where integers are stored in fewer bits."""
    a, b = (given[name].astype(np.float64) for name in ("a", "b"))
    a = a if shape.layouts[0] == "row" else np.swapaxes(a, -1, -2)
    b = b if shape.layouts[1] == "row" else np.swapaxes(b, -1, -2)
    result = a @ b
    if "bias" in shape.epilogue:
        result = result + given["bias"].astype(np.float64)
    if "scale" in shape.epilogue:
        result = result * given["rows"].astype(np.float64)[:, None]
    out = shape.out_dtype
    return np.clip(result, out.lowest, out.highest) if out.is_integer else result


def error(shape: Contraction, given: dict[str, Array], result: Array) -> float:
    """How far a result is off, over the largest exact one; NaN counts as infinite."""
    wanted = exact(shape, given)
    found = np.abs(result.astype(np.float64) - wanted).max() / np.abs(wanted).max()
    return float("inf") if np.isnan(found) else float(found)
