"""Products of matrices."""

from __future__ import annotations

from weft.foundation.dtypes import SI64
from weft.interop.onnx.rules.elementwise import wrapped
from weft.interop.onnx.table import Call, rule
from weft.interop.onnx.values import Value, wf
from weft.ops import functional
from weft.ops.tensor import Tensor


def matrix_product(x: Tensor, y: Tensor) -> Value:
    """A product over the last two axes; that of integers wraps, as their sums do."""
    if not x.dtype.is_integer or x.dtype.bits > 32:
        return wf.matmul(x, y)
    # What wraps at 64 bits and then at fewer is what wraps at fewer all along.
    return wrapped(wf.matmul(wrapped(x, SI64), wrapped(y, SI64)), x.dtype)


@rule("MatMul")
def mat_mul(call: Call, x: Tensor, y: Tensor) -> Value:
    return matrix_product(x, y)


@rule("Gemm")
def gemm(call: Call, a: Tensor, b: Tensor, c: Tensor | None = None) -> Value:
    left = a.mT if call.attr("transA", 0) else a
    right = b.mT if call.attr("transB", 0) else b
    made = matrix_product(left, right)
    alpha, beta = call.attr("alpha", 1.0), call.attr("beta", 1.0)
    if made.dtype.is_float:
        made = made if alpha == 1.0 else made * alpha
        c = c if c is None or beta == 1.0 else c * beta
    else:
        made = made if alpha == 1.0 else made * int(alpha)
        c = c if c is None or beta == 1.0 else c * int(beta)
    return made if c is None else made + c


@rule("Einsum")
def einsum(call: Call, *x: Tensor) -> Value:
    return functional.einsum(call.need("equation").replace(" ", ""), *x)


@rule("Det")
def det(call: Call, x: Tensor) -> Value:
    return wf.linalg.det(x)
