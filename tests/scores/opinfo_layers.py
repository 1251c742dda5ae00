"""torch's layers, activations and losses as Weft's. The names and the order of the arguments are
torch's."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import weft
from tests.scores.opinfo_forms import OPS, along, op, padded, tupled
from tests.scores.opinfo_numbers import named
from weft import functional

F: Any = functional
w: Any = weft
SAME = (
    "celu", "elu", "gelu", "hardsigmoid", "hardswish", "mish", "relu", "relu6", "selu",
    "silu", "softplus", "softsign", "tanhshrink", "linear", "conv1d", "conv2d", "conv3d",
    "threshold",
    "bilinear", "channel_shuffle", "local_response_norm",
)  # fmt: skip
OPS |= {f"nn.functional.{name}": named("functional", name) for name in SAME}


def _axis(x: Any, dim: Any) -> int:
    return dim if dim is not None else (0 if x.ndim in (0, 1, 3) else 1)


def softening(name: str) -> Callable[..., Any]:
    def call(x: Any, dim: Any = None, *, dtype: Any = None, **_: Any) -> Any:
        x = x if dtype is None else x.astype(dtype)
        return along(getattr(F, name), x, _axis(x, dim), True)

    return call


for _name in ("softmax", "log_softmax"):
    OPS[_name] = OPS[f"{_name}:with_dtype"] = softening(_name)
OPS["nn.functional.softmin"] = OPS["nn.functional.softmin:with_dtype"] = softening("softmin")


def pooling(name: str, spatial: int) -> Callable[..., Any]:
    def call(
        x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, *args: Any, **more: Any
    ) -> Any:
        stride = None if stride in ((), []) else stride
        names = ("ceil_mode", "count_include_pad", "divisor_override")
        more |= dict(zip(names, args, strict=False)) if name == "avg_pool" else {}
        divisor = more.pop("divisor_override", None)
        if divisor is not None:
            size = kernel_size if isinstance(kernel_size, tuple | list) else [kernel_size] * spatial
            more["count_include_pad"] = True
            assert not more.get("ceil_mode")
            found = getattr(F, f"{name}{spatial}d")(x, kernel_size, stride, padding, **more)
            return found * (math.prod(size) / divisor)
        return getattr(F, f"{name}{spatial}d")(x, kernel_size, stride, padding, **more)

    return call


def unpooling(spatial: int) -> Callable[..., Any]:
    def call(
        x: Any, indices: Any, kernel_size: Any, stride: Any = None, padding: Any = 0,
        output_size: Any = None,
    ) -> Any:  # fmt: skip
        size = None if output_size is None else tuple(output_size)[-spatial:]
        unpool = getattr(F, f"max_unpool{spatial}d")
        return unpool(x, indices, kernel_size, stride or None, padding, output_size=size)

    return call


for _spatial in (1, 2, 3):
    for _name in ("max_pool", "avg_pool"):
        OPS[f"nn.functional.{_name}{_spatial}d"] = pooling(_name, _spatial)
    _name = f"adaptive_avg_pool{_spatial}d"
    OPS[f"nn.functional.{_name}"] = lambda x, size, name=_name: getattr(F, name)(x, size)
    _name = f"adaptive_max_pool{_spatial}d"
    OPS[f"nn.functional.{_name}"] = lambda x, output_size, return_indices=False, name=_name: (
        getattr(F, name)(x, output_size, **({"return_indices": True} if return_indices else {}))
    )
    _name = f"conv_transpose{_spatial}d"
    OPS[f"nn.functional.{_name}"] = named("functional", _name)
    _name = f"max_unpool{_spatial}d"
    OPS[f"nn.functional.{_name}"] = OPS[f"nn.functional.{_name}:grad"] = unpooling(_spatial)


@op("nn.functional.glu")
def _(x: Any, dim: int = -1) -> Any:
    return F.glu(x, dim)


@op("nn.functional.leaky_relu")
def _(x: Any, negative_slope: float = 0.01, inplace: bool = False) -> Any:
    return F.leaky_relu(x, negative_slope)


OPS["nn.functional.hardtanh"] = lambda x, min_val=-1.0, max_val=1.0: F.hardtanh(x, min_val, max_val)
OPS["nn.functional.hardshrink"] = lambda x, lambd=0.5: F.hardshrink(x, lambd)
OPS["nn.functional.softshrink"] = lambda x, lambd=0.5: F.softshrink(x, lambd)
OPS["nn.functional.prelu"] = lambda x, weight: F.prelu(x, weight)
OPS["nn.functional.pixel_shuffle"] = lambda x, upscale_factor: F.pixel_shuffle(x, upscale_factor)
OPS["nn.functional.pixel_unshuffle"] = lambda x, downscale_factor: F.pixel_unshuffle(
    x, downscale_factor
)


@op("nn.functional.logsigmoid")
def _(x: Any) -> Any:
    return F.log_sigmoid(x)


@op("nn.functional.normalize")
def _(x: Any, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Any:
    return along(lambda x, axis: F.normalize(x, p, axis, eps), x, dim, True)


@op("nn.functional.embedding")
def _(table: Any, indices: Any, padding_idx: Any = None, **more: Any) -> Any:
    assert not more.get("max_norm")
    return F.embedding(indices, table)


@op("nn.functional.one_hot")
def _(x: Any, num_classes: int = -1) -> Any:
    count = num_classes if num_classes > 0 else int(w.max(x).item()) + 1
    return F.one_hot(x, count, dtype=w.int64)


def resampling(mode: str) -> Callable[..., Any]:
    def call(x: Any, size: Any = None, scale_factor: Any = None, **more: Any) -> Any:
        corners = bool(more.get("align_corners"))
        return F.interpolate(x, size, scale_factor, mode, align_corners=corners)

    return call


for _mode in ("area", "bicubic", "bilinear", "linear", "nearest", "nearest-exact", "trilinear"):
    OPS[f"nn.functional.interpolate:{_mode}"] = resampling(_mode)
OPS["nn.functional.upsample_nearest"] = resampling("nearest")
OPS["nn.functional.upsample_bilinear"] = lambda x, size=None, scale_factor=None: F.interpolate(
    x, size, scale_factor, "linear", align_corners=True
)


def padding(x: Any, pad: Any, mode: str = "constant", value: Any = None) -> Any:
    return padded(x, pad, 0.0 if value is None else value, mode)


for _mode in ("circular", "constant", "reflect", "replicate", "replicate_negative"):
    OPS[f"nn.functional.pad:{_mode}"] = padding

# -- normalisation -------------------------------------------------------------------------------


@op("nn.functional.batch_norm", "nn.functional.batch_norm:without_cudnn")
def _(
    x: Any, mean: Any, var: Any, weight: Any = None, bias: Any = None, training: bool = False,
    momentum: float = 0.1, eps: float = 1e-5,
) -> Any:  # fmt: skip
    held = (None, None) if training else (mean, var)
    return F.batch_norm(x, *held, weight, bias, eps)


@op("nn.functional.instance_norm")
def _(
    x: Any, running_mean: Any = None, running_var: Any = None, weight: Any = None, bias: Any = None,
    use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5,
) -> Any:  # fmt: skip
    if not use_input_stats:
        return F.batch_norm(x, running_mean, running_var, weight, bias, eps)
    return F.instance_norm(x, weight, bias, eps)


@op("nn.functional.group_norm")
def _(x: Any, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    return F.group_norm(x, groups, weight, bias, eps)


@op("nn.functional.layer_norm")
def _(x: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    if eps >= 0:
        return F.layer_norm(x, tupled(shape), weight, bias, eps)
    axes = tuple(range(x.ndim - len(shape), x.ndim))
    spread = w.rsqrt(w.var(x, axis=axes, keepdims=True) + eps)
    found = (x - w.mean(x, axis=axes, keepdims=True)) * spread
    found = found if weight is None else found * weight
    return found if bias is None else found + bias


@op("native_layer_norm")
def _(x: Any, shape: Any, weight: Any, bias: Any, eps: float) -> Any:
    axes = tuple(range(x.ndim - len(shape), x.ndim))
    mean = w.mean(x, axis=axes, keepdims=True)
    spread = w.rsqrt(w.var(x, axis=axes, keepdims=True) + eps)
    return F.layer_norm(x, tupled(shape), weight, bias, eps), mean, spread


@op("nn.functional.rms_norm")
def _(x: Any, shape: Any, weight: Any = None, eps: Any = None) -> Any:
    return F.rms_norm(x, tupled(shape), weight, w.finfo(x.dtype).eps if eps is None else eps)


# -- attention -----------------------------------------------------------------------------------


@op("nn.functional.scaled_dot_product_attention")
def _(
    q: Any, k: Any, v: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: Any = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    assert not dropout_p
    if (
        is_causal and q.shape[-2] != k.shape[-2]
    ):  # torch counts from the first key, Weft to the last
        attn_mask, is_causal = w.tril(w.ones((q.shape[-2], k.shape[-2]), dtype=w.bool)), False
    return F.attention(q, k, v, attn_mask, causal=is_causal, scale=scale)


# -- losses --------------------------------------------------------------------------------------


def pair_loss(name: str) -> Callable[..., Any]:
    def call(x: Any, target: Any, *args: Any, **more: Any) -> Any:
        if name == "l1_loss" and x.dtype.is_complex:
            raise AssertionError("complex")
        return getattr(F, name)(*w.broadcast_arrays(x, target), *args, **more)

    return call


for _name in ("l1_loss", "mse_loss", "huber_loss", "smooth_l1_loss", "soft_margin_loss"):
    OPS[f"nn.functional.{_name}"] = pair_loss(_name)


@op("nn.functional.kl_div")
def _(x: Any, target: Any, *, reduction: str = "mean", log_target: bool = False) -> Any:
    return F.kl_div(x, w.exp(target) if log_target else target, reduction)


@op("nn.functional.binary_cross_entropy")
def _(x: Any, target: Any, weight: Any = None, reduction: str = "mean", **_: Any) -> Any:
    return F.binary_cross_entropy(x, target, reduction, weight=weight)


@op("nn.functional.binary_cross_entropy_with_logits")
def _(
    x: Any,
    target: Any,
    weight: Any = None,
    reduction: str = "mean",
    pos_weight: Any = None,
    **_: Any,
) -> Any:
    given = {"weight": weight, "pos_weight": pos_weight}
    return F.binary_cross_entropy_with_logits(x, target, reduction, **given)


def class_loss(name: str) -> Callable[..., Any]:
    def call(x: Any, target: Any, weight: Any = None, **more: Any) -> Any:
        more = {k: v for k, v in more.items() if k not in ("size_average", "reduce")}
        return getattr(F, name)(x, target, weight=weight, axis=min(1, x.ndim - 1), **more)

    return call


for _name in ("nll_loss", "cross_entropy"):
    OPS[f"nn.functional.{_name}"] = class_loss(_name)

for _name in (
    "cosine_embedding_loss", "gaussian_nll_loss", "hinge_embedding_loss", "margin_ranking_loss",
    "multi_margin_loss", "multilabel_margin_loss", "multilabel_soft_margin_loss",
    "poisson_nll_loss", "triplet_margin_loss",
):  # fmt: skip
    OPS[f"nn.functional.{_name}"] = named("functional", _name)


@op("nn.functional.cosine_similarity")
def _(x: Any, y: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    return F.cosine_similarity(x, y, axis=dim, eps=eps)


@op("nn.functional.pairwise_distance")
def _(x: Any, y: Any, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Any:
    return F.pairwise_distance(x, y, p, eps, keepdims=keepdim)


@op("nn.functional.pdist")
def _(x: Any, p: float = 2.0) -> Any:
    rows = [(i, j) for i in range(x.shape[0]) for j in range(i + 1, x.shape[0])]
    if not rows:
        return w.zeros((0,), dtype=x.dtype)
    first, second = (w.asarray([r[k] for r in rows]) for k in (0, 1))
    return w.linalg.vector_norm(
        w.take(x, first, axis=0) - w.take(x, second, axis=0), axis=-1, ord=p
    )


@op("cdist")
def _(x: Any, y: Any, p: float = 2.0, *_: Any, **__: Any) -> Any:
    return w.linalg.vector_norm(x[..., :, None, :] - y[..., None, :, :], axis=-1, ord=p)


@op("nn.functional.unfold")
def _(x: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Any:
    return F.unfold(x, kernel_size, dilation, padding, stride)


@op("nn.functional.dropout")
def _(x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    assert not training or p in (0.0, 1.0), "drawn at random"
    return F.dropout(x, p, seed=0, training=training)
