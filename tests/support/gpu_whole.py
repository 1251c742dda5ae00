"""Ops that stay whole as kernels of the GPU dialect, interpreted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.codegen.gpu import ir
from weft.codegen.gpu.interp import run
from weft.codegen.gpu.verify import verify
from weft.codegen.gpu.whole import templates as whole
from weft.foundation.dtypes import as_dtype
from weft.foundation.whole_ops import WholeOp
from weft.region.ir import Kernel, OpaqueCall, Output, Pattern, Tensor
from weft.target.sm90 import SM90

Array = NDArray[Any]


def kernel_of(op: WholeOp, arrays: Sequence[Array], result: Array) -> ir.Kernel:
    """The dialect kernel of an op on such operands."""
    kinds = {f"in{n}": array for n, array in enumerate(arrays)} | {"out": result}
    tensors = {n: Tensor(n, as_dtype(array.dtype), array.shape) for n, array in kinds.items()}
    inputs = tuple(f"in{n}" for n in range(len(arrays)))
    output = Output("out", "", (), base="in0" if op.base == 0 else None)
    call = OpaqueCall(op, inputs, (0,))
    kernel = Kernel("opaque0", Pattern.OPAQUE, (), (), (output,), opaque=call)
    assert whole.accepts(op, kernel, tensors) == []
    made = whole.build(op, kernel, tensors, SM90, "k_whole")
    verify(made, SM90)
    return made


def carried_out(kernel: ir.Kernel, arrays: Sequence[Array], result: Array, seed: int = 0) -> Array:
    """What a kernel makes of its operands; a scatter begins with the first of them."""
    out = np.array(arrays[0] if "in0" not in kernel.buffers else result).reshape(-1)
    given = {f"in{n}": array.reshape(-1) for n, array in enumerate(arrays)} | {"out": out}
    run(kernel, {name: given[name] for name in kernel.buffers}, seed=seed)
    return out
