"""Places that only sums in bins read: 32 bits, once they are checked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from weft.driver.pipeline import run_pipeline
from weft.driver.signature import make_signature
from weft.driver.stages.compilation import Compilation
from weft.driver.stages.opaque import run_opaque
from weft.foundation.dtypes import BY_NAME
from weft.foundation.errors import SpecViolation
from weft.foundation.radix_sort import UpdatesMoved, UpperDigits
from weft.foundation.whole_ops import Binned
from weft.ptir import Builder, Program
from weft.region.interp import run_kernel
from weft.region.ir import Cast, Module
from weft.target.known import target_named

Array = NDArray[Any]
ROWS, COUNT = 1500, 1100


def region(program: Program) -> Module:
    signature = make_signature(program)
    made = run_pipeline(Compilation(program, target_named("sm90"), signature), until="region")
    module = made["region"]
    assert isinstance(module, Module)
    return module


def summed(dtype: str, columns: int = 1) -> Program:
    b = Builder()
    x, new = b.param("f32", [ROWS, columns]), b.param("f32", [COUNT, columns])
    at = b.param(dtype, [COUNT, columns])
    return b.build(b.scatter_reduce(x, at, new, axis=0, reduce="add"))


def place_dtypes(module: Module) -> set[str]:
    """Of the places that sorting begins with."""
    calls = [kernel.opaque for kernel in module.kernels if kernel.opaque is not None]
    assert any(isinstance(call.op, Binned) for call in calls)
    sorting = [call for call in calls if isinstance(call.op, UpperDigits | UpdatesMoved)]
    return {str(module.tensors[call.inputs[0]].dtype) for call in sorting}


@pytest.mark.parametrize("dtype", ["si64", "si32"])
@pytest.mark.parametrize("columns", [1, 3])
def test_places_are_short(dtype: str, columns: int) -> None:
    module = region(summed(dtype, columns))
    assert place_dtypes(module) == {"si32"}
    casts = [let for kernel in module.kernels for let in kernel.body if isinstance(let.expr, Cast)]
    assert len(casts) == (dtype == "si64")
    rng = np.random.default_rng(columns)
    x, new = (rng.integers(-9, 9, (n, columns)).astype(np.float32) for n in (ROWS, COUNT))
    at = rng.integers(0, ROWS, (COUNT, columns)).astype(BY_NAME[dtype].numpy)
    arrays: dict[str, Array] = {"in0": x, "in1": new, "in2": at}
    for kernel in module.kernels:
        arrays |= run_kernel(kernel, module.tensors, arrays, opaque=run_opaque)
    want = x.copy()
    np.add.at(want, (at.astype(np.int64), np.arange(columns)), new)
    assert (arrays["out0"].reshape(want.shape) == want).all()


@pytest.mark.parametrize("number", [-1, ROWS, (1 << 32) + 3, -(1 << 32)])
def test_places_are_checked_before_they_are_cut(number: int) -> None:
    module = region(summed("si64"))
    at = np.zeros((COUNT, 1), np.int64)
    at[7] = number
    arrays: dict[str, Array] = {"in1": np.ones((COUNT, 1), np.float32), "in2": at}
    maker = next(k for k in module.kernels if any(isinstance(let.expr, Cast) for let in k.body))
    with pytest.raises(SpecViolation, match=f"the index {number} at element 7 "):
        run_kernel(maker, module.tensors, arrays, opaque=run_opaque)


def test_places_that_others_read_stay_as_they_are() -> None:
    b = Builder()
    floats, integers = (b.param(dtype, [ROWS]) for dtype in ("f32", "si32"))
    new, counts = (b.param(dtype, [COUNT]) for dtype in ("f32", "si32"))
    at = b.param("si64", [COUNT])
    added = b.scatter_reduce(floats, at, new, axis=0, reduce="add")
    module = region(b.build(added, b.scatter_reduce(integers, at, counts, axis=0, reduce="add")))
    assert place_dtypes(module) == {"si64"}
