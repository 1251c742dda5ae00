"""Elementary functions as generated code: accuracy over the whole range, and the special values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.special

from tests.agree.test_cpu_kernels import Array, run_native
from tests.kernels import body_over, identity, module_of
from tests.support import assert_ulp, bits
from weft.foundation.dtypes import BF16, F16, F32, F64, I1, SI8, SI32, SI64, UI8, DType
from weft.foundation.numeric import cast
from weft.plan.ir import Header, MapPlan
from weft.region.ir import Kernel, KernelAxis, Output, Pattern, Tensor

SPECIAL = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 1e-310, 3e38, -3e38]
FUNCTIONS: dict[str, tuple[Any, float]] = {
    "exp": (np.exp, 1.5),
    "exp2": (np.exp2, 1.5),
    "log": (np.log, 2),
    "log2": (np.log2, 3),
    "tanh": (np.tanh, 3),
    "erf": (scipy.special.erf, 3),
    "sqrt": (np.sqrt, 0.51),
    "recip": (lambda x: 1 / x, 0.51),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 1.5),
    "floor": (np.floor, 0),
    "ceil": (np.ceil, 0),
    "trunc": (np.trunc, 0),
    "neg": (np.negative, 0),
    "abs": (np.abs, 0),
    "relu": (lambda x: np.maximum(x, 0), 0),
}


def apply_unary(fn: str, x: Array, source: DType, target: DType | None = None) -> Array:
    """One function through a map kernel with vectors and a tail."""
    axes = (KernelAxis("i", x.size),)
    body = body_over(axes)
    read = body.plain("x", source, "i")
    value = body.cast(read, target) if target else body.unary(fn, read)
    out = target or source
    kernel = Kernel("k", Pattern.MAP, axes, tuple(body.lets), (Output("y", value, identity("i")),))
    tensors = [Tensor("x", source, x.shape, "input"), Tensor("y", out, x.shape, "output")]
    arrays = {"x": x, "y": np.full(x.shape, 3).astype(out.numpy)}
    run_native(kernel, module_of(kernel, tensors=tensors), MapPlan(Header("cpu", ""), 4, 2), arrays)
    return arrays["y"]


def points(dtype: DType) -> Array:
    rng = np.random.default_rng(0)
    wide = rng.standard_normal(20000) * np.exp(rng.uniform(-60, 60, 20000))
    near = np.linspace(-20, 20, 20001)
    edges = np.array([87.3, 88.72, 88.73, -87.4, -103.97, -104.1, 709.7, 709.8, -745.2, -708.5])
    with np.errstate(all="ignore"):
        return np.concatenate([wide, near, edges, np.array(SPECIAL)]).astype(dtype.numpy)


@pytest.mark.parametrize("fn", FUNCTIONS)
@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_functions_are_accurate(fn: str, dtype: DType) -> None:
    exact, ulps = FUNCTIONS[fn]
    x = points(dtype)
    # What IEEE arithmetic rounds correctly must not be rounded twice by the oracle.
    rounded = fn in ("erf", "sqrt", "recip") and dtype is F64
    with np.errstate(all="ignore"):
        want = exact(x.astype(np.float64 if rounded or fn == "erf" else np.longdouble))
        assert_ulp(apply_unary(fn, x, dtype), want.astype(np.float64), ulps)


@pytest.mark.parametrize("source", [F32, F64, F16, BF16, SI8, SI32, SI64, UI8, I1], ids=str)
@pytest.mark.parametrize("target", [F32, F64, F16, BF16, SI8, SI32, SI64, UI8, I1], ids=str)
def test_casts_are_those_of_the_contract(source: DType, target: DType) -> None:
    wide = source in (F64, SI32, SI64) and target in (F16, BF16)
    if wide:
        pytest.skip("generated code refuses casts that need a rounding to odd")
    with np.errstate(all="ignore"):
        base = np.concatenate([points(F64)[::97], np.arange(-300, 300, 0.5), np.array(SPECIAL)])
        x = cast(base, F64, source)
        want = cast(x, source, target)
        got = apply_unary("cast", x, source, target)
    same = np.array([bits(a) == bits(b) for a, b in zip(got, want, strict=True)])
    nan = np.isnan(got.astype(np.float64)) & np.isnan(want.astype(np.float64))
    assert (same | nan).all()


@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_every_half_survives_a_round_trip(dtype: DType) -> None:
    x = np.arange(1 << 16, dtype=np.uint16).view(dtype.numpy)
    got = apply_unary("cast", x, dtype, F32)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(got, x.astype(np.float32))
        again = apply_unary("cast", got, F32, dtype)
    number = ~np.isnan(got)
    assert bits(again[number]) == bits(x[number])
