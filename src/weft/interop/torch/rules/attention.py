"""Attention as one op. torch's causal mask counts from the first key, Weft's to the last one."""

from __future__ import annotations

from typing import Any

from weft.foundation.dims import UNKNOWN
from weft.foundation.dtypes import I1
from weft.foundation.errors import Unimplemented
from weft.interop.torch.rules.casts import cast
from weft.interop.torch.rules.table import F, rule, w


@rule("aten.scaled_dot_product_attention", "weft.attention")
def attended(
    q: Any, k: Any, v: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: Any = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    if dropout_p:
        raise Unimplemented("scaled_dot_product_attention", "dropout inside attention")
    if is_causal and (q.shape[-2] != k.shape[-2] or q.shape[-2] == UNKNOWN):
        attn_mask, is_causal = w.tril(w.ones((q.shape[-2], k.shape[-2]), dtype=I1)), False
    if attn_mask is not None and attn_mask.dtype is not I1:
        attn_mask = cast(attn_mask, q.dtype)
    front = w.broadcast_shapes(*(x.shape[:-3] for x in (q, k, v))) if q.ndim > 3 else ()
    if q.ndim <= 4 and all(x.shape[:-3] == tuple(front) for x in (q, k, v)) and _plain(attn_mask):
        return F.attention(q, k, v, attn_mask, causal=is_causal, scale=scale)
    return _flattened(q, k, v, attn_mask, is_causal, scale)


def _plain(mask: Any) -> bool:
    return mask is None or mask.ndim <= 4


def _flattened(q: Any, k: Any, v: Any, mask: Any, causal: bool, scale: Any) -> Any:
    """More leading axes than two are one."""
    front = tuple(w.broadcast_shapes(*(x.shape[:-2] for x in (q, k, v))))
    flat = [
        w.reshape(w.broadcast_to(x, (*front, *x.shape[-2:])), (-1, 1, *x.shape[-2:]))
        for x in (q, k, v)
    ]
    if mask is not None:
        sizes = (q.shape[-2], k.shape[-2])
        mask = w.reshape(w.broadcast_to(mask, (*front, *sizes)), (-1, 1, *sizes))
    made = F.attention(*flat, mask, causal=causal, scale=scale)
    return w.reshape(made, (*front, q.shape[-2], v.shape[-1]))


@rule("weft.attention_backward")
def _(
    gradient: Any, q: Any, k: Any, v: Any, attn_mask: Any = None, is_causal: bool = False,
    scale: Any = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    settings = (0.0, is_causal, scale, enable_gqa)
    _, back = w.vjp(lambda q, k, v: attended(q, k, v, attn_mask, *settings), q, k, v)
    return tuple(back(gradient))


@rule("aten._scaled_dot_product_flash_attention_for_cpu_backward")
def _(
    gradient: Any, q: Any, k: Any, v: Any, out: Any, logsumexp: Any, dropout_p: float,
    is_causal: bool, *, attn_mask: Any = None, scale: Any = None,
) -> Any:  # fmt: skip
    """Of the forward part only its operands are needed: the rest is computed again."""
    _, back = w.vjp(
        lambda *given: attended(*given, attn_mask, dropout_p, is_causal, scale), q, k, v
    )
    return tuple(back(gradient))
