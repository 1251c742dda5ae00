"""Attention as an op of our own, so that AOTAutograd leaves it whole in both directions."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.nn.functional import scaled_dot_product_attention

_NAMES: Final = (
    "query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa",
)  # fmt: skip


def _attend_heads(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float | None,
    gqa: bool,
) -> Tensor:  # fmt: skip
    return scaled_dot_product_attention(
        q, k, v, mask, is_causal=causal, scale=scale, enable_gqa=gqa
    )


@torch.library.custom_op("weft::attention", mutates_args=())  # type: ignore[untyped-decorator]
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """What torch's attention gives, where this runs in torch."""
    made = _attend_heads(q, k, v, attn_mask, is_causal, scale, enable_gqa)
    return made.contiguous().clone()


@torch.library.custom_op(  # type: ignore[untyped-decorator]
    "weft::attention_backward", mutates_args=()
)
def attention_backward(
    gradient: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of the same."""
    with torch.enable_grad():
        own = [x.detach().requires_grad_() for x in (q, k, v)]
        made = _attend_heads(own[0], own[1], own[2], attn_mask, is_causal, scale, enable_gqa)
        found = torch.autograd.grad(made, own, gradient)
    first, second, third = (x.contiguous().clone() for x in found)
    return first, second, third


def _fake(q: Any, k: Any, v: Any, *_: Any, **__: Any) -> Any:
    front = torch.broadcast_shapes(q.shape[:-3], k.shape[:-3], v.shape[:-3])
    return q.new_empty((*front, *q.shape[-3:-1], v.shape[-1]))


def _fake_backward(gradient: Any, q: Any, k: Any, v: Any, *_: Any, **__: Any) -> Any:
    return tuple(x.new_empty(x.shape) for x in (q, k, v))


def _remember(ctx: Any, inputs: Any, output: Any) -> None:
    q, k, v, mask, _, *settings = inputs
    ctx.save_for_backward(q, k, v, mask)
    ctx.settings = settings


def _backward(ctx: Any, gradient: Any) -> Any:
    q, k, v, mask = ctx.saved_tensors
    found = torch.ops.weft.attention_backward(gradient, q, k, v, mask, *ctx.settings)
    return *found, None, None, None, None, None


attention.register_fake(_fake)
attention.register_autograd(_backward, setup_context=_remember)
attention_backward.register_fake(_fake_backward)


def keep_attention(module: GraphModule) -> GraphModule:
    """A graph of Dynamo with our op where torch's attention was. Where it drops elements at random,
    its mask is learnt, or autocast is on, torch takes it apart instead."""
    nodes = list(module.graph.nodes)
    if any("autocast" in str(node.target) for node in nodes):
        return module
    for node in nodes:
        if node.op == "call_function" and node.target in (
            scaled_dot_product_attention, torch._C._nn.scaled_dot_product_attention,
        ):  # fmt: skip
            _replace(node)
    module.recompile()
    return module


def _replace(node: Node) -> None:
    given = dict(zip(_NAMES, node.args, strict=False)) | dict(node.kwargs)
    mask = given.get("attn_mask")
    learnt = isinstance(mask, Node) and _example_value(mask).requires_grad
    shapes = [_example_value(given[name]).shape for name in _NAMES[:3]]
    if given.get("dropout_p", 0.0) != 0.0 or learnt or not _have_matching_heads(*shapes):
        return
    values = [given.get(name) for name in _NAMES[:4]]
    more = (0.0, given.get("is_causal", False), given.get("scale"), given.get("enable_gqa", False))
    node.target = torch.ops.weft.attention.default
    node.args, node.kwargs = (*values, *more), {}


def _have_matching_heads(q: Any, k: Any, v: Any) -> bool:
    """Whether batches are the same, and heads are the same or shared in groups."""
    if not len(q) == len(k) == len(v) or len(q) < 3 or q[:-3] != k[:-3] or k[:-3] != v[:-3]:
        return False
    return bool(k[-3] == v[-3] and q[-3] % k[-3] == 0)


def _example_value(node: Node) -> Any:
    return node.meta["example_value"]
