"""Products of groups in steps."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from weft.driver.stages.opaque import run_opaque
from weft.foundation.dtypes import BY_NAME, SI32, DType
from weft.foundation.whole_ops import Order, WholeOp, op_text, read_op
from weft.region.fitting.whole_ops import whole_in_parts
from weft.region.interp import run_kernel
from weft.region.ir import Kernel, OpaqueCall, Output, Pattern, Tensor

Array = NDArray[Any]


def in_steps(op: WholeOp, operands: list[Array], result: DType) -> tuple[list[WholeOp], Array]:
    """The ops of the steps, and what they make."""
    arrays = {f"in{n}": array for n, array in enumerate(operands)}
    tensors = {name: Tensor(name, _dtype(array), array.shape) for name, array in arrays.items()}
    whole = run_opaque(op, operands)[0]
    tensors["out"] = Tensor("out", result, whole.shape)
    tensors["work"] = Tensor("work", SI32, (5,))
    base = "in0" if op.base == 0 else None
    outputs, results = [Output("out", "", (), base)], [0]
    if isinstance(op, Order):
        outputs.append(Output("work", "", ()))
        results.append(-1)
    call = OpaqueCall(op, tuple(arrays), tuple(results))
    kernel = Kernel("op", Pattern.OPAQUE, (), (), tuple(outputs), opaque=call)
    kernels, between = whole_in_parts(kernel, tensors)
    tensors |= {tensor.name: tensor for tensor in between}
    for step in kernels:
        arrays |= run_kernel(step, tensors, arrays, opaque=run_opaque)
    ops = [step.opaque.op for step in kernels if step.opaque is not None]
    found = [made for made in ops if isinstance(made, WholeOp)]
    assert [read_op(op_text(made)) for made in found] == found
    return found, arrays["out"]


def _dtype(array: Array) -> DType:
    return next(dtype for dtype in BY_NAME.values() if dtype.numpy == array.dtype)
