"""Scatters that add narrow floats: in f32, rounded once, where a machine has one dtype for all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from weft.driver.stages.opaque import run_opaque
from weft.foundation.dtypes import BF16, F16, F32, SI32, DType
from weft.foundation.whole_ops import Scatter
from weft.region.fitting.gathers_and_scatters import with_wide_sums
from weft.region.interp import run_kernel
from weft.region.ir import Kernel, OpaqueCall, Output, Pattern, Tensor

Array = NDArray[Any]


def scatter(fn: str, dtype: DType) -> tuple[Kernel, dict[str, Tensor]]:
    tensors = {
        "x": Tensor("x", dtype, (2, 3)),
        "at": Tensor("at", SI32, (4,)),
        "new": Tensor("new", dtype, (4, 3)),
        "out": Tensor("out", dtype, (2, 3)),
    }
    call = OpaqueCall(Scatter(fn, 1, 2, 3, 4), ("x", "at", "new"), (0,))
    out = Output("out", "", (), base="x")
    return Kernel("op", Pattern.OPAQUE, (), (), (out,), opaque=call), tensors


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
def test_sums_are_rounded_once(dtype: DType) -> None:
    """256 + 1 + 1 in eight digits: each addition by itself would change nothing."""
    kernel, tensors = scatter("add", dtype)
    kernels, between = with_wide_sums(kernel, tensors)
    assert [made.pattern for made in kernels] == [
        Pattern.MAP, Pattern.MAP, Pattern.OPAQUE, Pattern.MAP,
    ]  # fmt: skip
    assert {tensor.dtype for tensor in between} == {F32}
    tensors |= {tensor.name: tensor for tensor in between}
    large = 2.0**dtype.precision
    arrays: dict[str, Array] = {
        "x": np.full((2, 3), large, dtype.numpy),
        "at": np.array([1, 1, 1, 1], np.int32),
        "new": np.ones((4, 3), dtype.numpy),
    }
    for made in kernels:
        arrays |= run_kernel(made, tensors, arrays, opaque=run_opaque)
    assert arrays["out"].dtype == dtype.numpy
    want = [[large] * 3, [large + 4] * 3]
    assert arrays["out"].astype(np.float64).reshape(2, 3).tolist() == want


@pytest.mark.parametrize(("fn", "dtype"), [("max", BF16), ("add", F32), ("replace", F16)])
def test_others_stay_as_they_are(fn: str, dtype: DType) -> None:
    kernel, tensors = scatter(fn, dtype)
    assert with_wide_sums(kernel, tensors) == ((kernel,), ())
