"""Attention: as one op where that says the same, else by ONNX's own description."""

from __future__ import annotations

from typing import Any

from weft.foundation.dtypes import F32
from weft.interop.onnx.table import Call, rule
from weft.interop.onnx.values import Value
from weft.ops import functional
from weft.ops.tensor import Tensor


@rule("Attention", raw=True)
def attention(call: Call, q: Value, k: Value, v: Value, mask: Value = None, *more: Value) -> Any:
    """f32 heads of rank 4 with nothing else to give back; anything else by the description, which
    says where each step is rounded."""
    if any(each is not None for each in more) or call.results != 1:
        return NotImplemented
    if not all(
        isinstance(each, Tensor) and each.ndim == 4 and each.dtype is F32 for each in (q, k, v)
    ):
        return NotImplemented
    if mask is not None and not (isinstance(mask, Tensor) and mask.ndim == 4):
        return NotImplemented
    windows = call.attr("left_window_size", -1) >= 0 or call.attr("right_window_size", -1) >= 0
    if windows or call.attr("softcap", 0.0) or "softmax_precision" in call.node.attributes:
        return NotImplemented
    causal = bool(call.attr("is_causal", 0))
    if causal and q.shape[2] != k.shape[2]:
        return NotImplemented
    if mask is not None and mask.shape[-1] != k.shape[2]:
        return NotImplemented
    return functional.attention(q, k, v, mask, causal=causal, scale=call.attr("scale"))
