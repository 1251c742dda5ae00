"""Elementary functions as machine code of the processor, and where they are tried."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.special

from tests.support.kernels import Rows, body_over, identity, module_of
from tests.support.native_kernels import Array, run_native
from weft.foundation.dtypes import ALL, F32, DType
from weft.plan.ir import Header, MapPlan
from weft.region.ir import Kernel, KernelAxis, Output, Pattern, Tensor
from weft.target import cpu

LANES = cpu.host().limits.vector_bits // 32
HOST = cpu.host().features
"""Instructions that the processor has beside those that every one has."""

REAL = [dtype for dtype in ALL if not dtype.is_complex]

SPECIAL = [
    0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 1.5, 2.0, -2.0, 3.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40,
    1e-310, 5e-324, 3e38, -3e38, 1.7e308, 2.0**24, 2.0**52 + 1, -(2.0**53), np.pi / 2, np.pi,
]  # fmt: skip

UNARY: dict[str, tuple[Any, float, float]] = {
    "exp": (np.exp, 2, 3),
    "exp2": (np.exp2, 2, 3),
    "expm1": (np.expm1, 2, 3),
    "log": (np.log, 2, 3),
    "log2": (np.log2, 2, 3),
    "log10": (np.log10, 2, 3),
    "log1p": (np.log1p, 2, 3),
    "sin": (np.sin, 2, 3),
    "cos": (np.cos, 2, 3),
    "tan": (np.tan, 2, 3),
    "asin": (np.arcsin, 2, 3),
    "acos": (np.arccos, 2, 3),
    "atan": (np.arctan, 2, 3),
    "sinh": (np.sinh, 2, 3),
    "cosh": (np.cosh, 2, 3),
    "tanh": (np.tanh, 2, 3),
    "asinh": (np.arcsinh, 2, 3),
    "acosh": (np.arccosh, 2, 3),
    "atanh": (np.arctanh, 2, 3),
    "erf": (scipy.special.erf, 2, 3),
    "sqrt": (np.sqrt, 0.51, 0.51),
    "recip": (lambda x: 1 / x, 0.51, 0.51),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 1.5, 1.5),
    "floor": (np.floor, 0, 0),
    "ceil": (np.ceil, 0, 0),
    "trunc": (np.trunc, 0, 0),
    "round": (np.rint, 0, 0),
    "neg": (np.negative, 0, 0),
    "abs": (np.abs, 0, 0),
    "relu": (lambda x: np.maximum(x, 0), 0, 0),
}
"""The function in more than 53 bits where there is one, and the bounds in ulp for f32 and f64."""

PAIRS: dict[str, tuple[Any, float, float]] = {
    "pow": (np.power, 2, 3),
    "atan2": (np.arctan2, 2, 3),
    "hypot": (np.hypot, 2, 3),
    "fmod": (np.fmod, 0, 0),
    "copysign": (np.copysign, 0, 0),
}


def compute(
    dtype: DType,
    arrays: Sequence[Array],
    build: Callable[[Rows, list[str]], list[str]],
    features: frozenset[str] = frozenset(),
    lanes: int = LANES,
) -> list[Array]:
    """What `build` makes of reads of arrays, through one map kernel with vectors and a tail."""
    axes = (KernelAxis("i", arrays[0].size),)
    body = body_over(axes)
    values = build(body, [body.plain(f"x{n}", dtype, "i") for n in range(len(arrays))])
    outputs = tuple(Output(f"y{n}", value, identity("i")) for n, value in enumerate(values))
    kernel = Kernel("k", Pattern.MAP, axes, tuple(body.lets), outputs)
    tensors = [Tensor(f"x{n}", dtype, x.shape, "input") for n, x in enumerate(arrays)]
    given = {f"x{n}": x for n, x in enumerate(arrays)}
    for n, value in enumerate(values):
        made = Tensor(f"y{n}", body.dtype(value), arrays[0].shape, "output")
        tensors.append(made)
        given[made.name] = np.full(made.shape, 1).astype(made.dtype.numpy)
    module = module_of(kernel, tensors=tensors)
    run_native(module.kernels[0], module, MapPlan(Header("cpu", ""), lanes), given, features)
    return [given[f"y{n}"] for n in range(len(values))]


def apply(
    fn: str,
    dtype: DType,
    *arrays: Array,
    features: frozenset[str] = frozenset(),
    lanes: int = LANES,
) -> Array:
    """One function."""

    def build(body: Rows, reads: list[str]) -> list[str]:
        return [body.unary(fn, *reads) if len(reads) == 1 else body.binary(fn, *reads)]

    return compute(dtype, arrays, build, features, lanes)[0]


def points(dtype: DType, count: int = 10_000) -> Array:
    """Dense near 0 and 1, over all exponents, at multiples of pi/2, and the special values."""
    rng = np.random.default_rng(0)
    far = 80 if dtype is F32 else 700
    parts = [
        rng.standard_normal(count) * np.exp(rng.uniform(-far, far, count)),
        np.linspace(-20, 20, count + 1),
        rng.uniform(-1.1, 1.1, count),
        rng.uniform(0.5, 2, count),
        rng.uniform(-120, 120, count),
        rng.uniform(-760, 760, count),
        np.arange(1, count) * (np.pi / 2),
        rng.integers(1, 1 << 60, count) * (np.pi / 2),
        np.array([87.3, 88.72, 88.73, -87.4, -103.97, -104.1, 709.7, 709.8, -745.2, -708.5]),
        np.array(SPECIAL),
    ]
    with np.errstate(all="ignore"):
        return np.concatenate(parts).astype(dtype.numpy)
