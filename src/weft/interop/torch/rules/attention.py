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
    if (
        q.ndim <= 4
        and all(x.shape[:-3] == tuple(front) for x in (q, k, v))
        and _is_mask_supported(attn_mask)
    ):
        return F.attention(q, k, v, attn_mask, causal=is_causal, scale=scale)
    return _flatten_leading(q, k, v, attn_mask, is_causal, scale)


def _is_mask_supported(mask: Any) -> bool:
    return mask is None or mask.ndim <= 4


def _flatten_leading(q: Any, k: Any, v: Any, mask: Any, causal: bool, scale: Any) -> Any:
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


def _find_seen(mask: Any, kind: int | None) -> Any:
    """torch's mask of a layer, of rows, keys or both, as what is seen in [B, H, Q, K]."""
    if mask is None:
        return None
    hidden = cast(mask, I1)
    if kind == 1:
        hidden = w.reshape(hidden, (hidden.shape[0], 1, 1, hidden.shape[1]))
    return w.logical_not(hidden)


def _attended_by_heads(given: Any, heads: int, weight: Any, bias: Any, mask: Any) -> Any:
    """Attention of queries, keys and values [B, S, D], each through its third of the weight."""
    thirds = zip(given, w.split(weight, 3), w.split(bias, 3), strict=True)
    parts = []
    for x, matrix, row in thirds:
        made = F.linear(x, matrix, row)
        shape = (*made.shape[:2], heads, made.shape[2] // heads)
        parts.append(w.permute_dims(w.reshape(made, shape), (0, 2, 1, 3)))
    mixed = w.permute_dims(attended(*parts, mask), (0, 2, 1, 3))
    return w.reshape(mixed, (*mixed.shape[:2], heads * mixed.shape[3]))


@rule("aten._native_multi_head_attention")
def _(
    query: Any, key: Any, value: Any, embed_dim: int, num_head: int, qkv_weight: Any, qkv_bias: Any,
    proj_weight: Any, proj_bias: Any, mask: Any = None, need_weights: bool = True,
    average_attn_weights: bool = True, mask_type: int | None = None,
) -> Any:  # fmt: skip
    if need_weights:
        raise Unimplemented("_native_multi_head_attention", "the weights of attention as a result")
    seen = _find_seen(mask, mask_type)
    mixed = _attended_by_heads((query, key, value), num_head, qkv_weight, qkv_bias, seen)
    return F.linear(mixed, proj_weight, proj_bias), None


@rule("aten._transformer_encoder_layer_fwd")
def _(
    x: Any, embed_dim: int, num_heads: int, qkv_weight: Any, qkv_bias: Any, proj_weight: Any,
    proj_bias: Any, use_gelu: bool, norm_first: bool, eps: float, norm_weight_1: Any,
    norm_bias_1: Any, norm_weight_2: Any, norm_bias_2: Any, ffn_weight_1: Any, ffn_bias_1: Any,
    ffn_weight_2: Any, ffn_bias_2: Any, mask: Any = None, mask_type: int | None = None,
) -> Any:  # fmt: skip
    seen = _find_seen(mask, mask_type)

    def mixed(x: Any) -> Any:
        made = _attended_by_heads((x, x, x), num_heads, qkv_weight, qkv_bias, seen)
        return F.linear(made, proj_weight, proj_bias)

    def grown(x: Any) -> Any:
        hidden = F.linear(x, ffn_weight_1, ffn_bias_1)
        return F.linear(F.gelu(hidden) if use_gelu else F.relu(hidden), ffn_weight_2, ffn_bias_2)

    def first(x: Any) -> Any:
        return F.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def second(x: Any) -> Any:
        return F.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    if norm_first:
        x = x + mixed(first(x))
        return x + grown(second(x))
    x = first(x + mixed(x))
    return second(x + grown(x))
