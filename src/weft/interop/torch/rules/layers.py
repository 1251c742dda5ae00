"""Normalisation, dropout's gradient, embedding bags, a loss: what torch has as one op."""

from __future__ import annotations

from typing import Any

from weft.foundation.dtypes import F32, SI64
from weft.foundation.errors import Unimplemented
from weft.interop.torch.rules.casts import cast
from weft.interop.torch.rules.indices import scattered
from weft.interop.torch.rules.table import F, product, rule, w


def _widen(x: Any) -> Any:
    """Narrow floats in f32."""
    return cast(x, F32) if x.dtype.is_float and x.dtype.bits < 32 else x


def _beside_channels(row: Any, rank: int) -> Any:
    """A number for each channel, beside [N, C, ...]."""
    return w.reshape(row, (1, -1) + (1,) * (rank - 2))


@rule("aten.native_layer_norm")
def _(x: Any, normalized_shape: Any, weight: Any, bias: Any, eps: float) -> Any:
    axes = tuple(range(x.ndim - len(normalized_shape), x.ndim))
    wide = _widen(x)
    mean = w.mean(wide, axis=axes, keepdims=True)
    apart = wide - mean
    spread = w.rsqrt(w.mean(apart * apart, axis=axes, keepdims=True) + eps)
    made = apart * spread
    made = made if weight is None else made * weight
    return cast(made if bias is None else made + bias, x.dtype), mean, spread


@rule("aten.layer_norm")
def _(
    x: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Any:  # fmt: skip
    return F.layer_norm(x, tuple(normalized_shape), weight, bias, eps)


@rule("aten.native_group_norm")
def _(x: Any, weight: Any, bias: Any, n: int, c: int, hxw: int, group: int, eps: float) -> Any:
    wide = w.reshape(_widen(x), (n, group, -1))
    mean = w.mean(wide, axis=-1)
    apart = wide - mean[..., None]
    spread = w.rsqrt(w.mean(apart * apart, axis=-1) + eps)
    made = w.reshape(apart * spread[..., None], x.shape)
    made = made if weight is None else made * _beside_channels(weight, x.ndim)
    made = made if bias is None else made + _beside_channels(bias, x.ndim)
    return cast(made, x.dtype), cast(mean, x.dtype), cast(spread, x.dtype)


def _statistics(x: Any) -> tuple[Any, Any]:
    """The mean and the variance of every channel."""
    axes = (0, *range(2, x.ndim))
    mean = w.mean(x, axis=axes)
    apart = x - _beside_channels(mean, x.ndim)
    return mean, w.mean(apart * apart, axis=axes)


def _normalise_by(x: Any, mean: Any, spread: Any, weight: Any, bias: Any) -> Any:
    made = (_widen(x) - _beside_channels(mean, x.ndim)) * _beside_channels(spread, x.ndim)
    made = made if weight is None else made * _beside_channels(weight, x.ndim)
    return cast(made if bias is None else made + _beside_channels(bias, x.ndim), x.dtype)


@rule("aten._native_batch_norm_legit_no_training")
def _(x: Any, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float) -> Any:
    made = _normalise_by(x, mean, w.rsqrt(_widen(var) + eps), weight, bias)
    nothing = w.zeros((0,), dtype=x.dtype)
    return made, nothing, nothing


@rule("aten._native_batch_norm_legit_functional", "aten._batch_norm_with_update_functional")
def batch_norm(
    x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: Any, momentum: Any = None,
    eps: Any = None,
) -> Any:  # fmt: skip
    """Training: the result, the statistics of the batch, and the running ones moved."""
    reserved = eps is None
    if reserved:
        training, momentum, eps = True, training, momentum
    if not training:
        made = _normalise_by(x, mean, w.rsqrt(_widen(var) + eps), weight, bias)
        return made, w.zeros((0,), dtype=x.dtype), w.zeros((0,), dtype=x.dtype), mean, var
    own, spread = _statistics(_widen(x))
    count = product([size for axis, size in enumerate(x.shape) if axis != 1])
    unbiased = spread * (count / max(count - 1, 1))
    root = w.rsqrt(spread + eps)
    moved = [
        cast(old * (1 - momentum) + new * momentum, old.dtype)
        for old, new in ((mean, own), (var, unbiased))
    ]
    made = (_normalise_by(x, own, root, weight, bias), own, root)
    return (*made, w.zeros((0,), dtype=w.uint8), *moved) if reserved else (*made, *moved)


@rule("aten.binary_cross_entropy")
def _(x: Any, target: Any, weight: Any = None, reduction: int = 1) -> Any:
    how = ("none", "mean", "sum")[reduction]
    return F.binary_cross_entropy(x, target, how, weight=weight)


@rule("aten._native_batch_norm_legit.no_stats")
def _(x: Any, weight: Any, bias: Any, training: bool, momentum: float, eps: float) -> Any:
    own, spread = _statistics(_widen(x))
    root = w.rsqrt(spread + eps)
    return _normalise_by(x, own, root, weight, bias), own, root


@rule("aten.native_batch_norm_backward")
def _(
    gradient: Any, x: Any, weight: Any, mean: Any, var: Any, save_mean: Any, save_invstd: Any,
    train: bool, eps: float, output_mask: Any,
) -> Any:  # fmt: skip
    axes = (0, *range(2, x.ndim))
    count = product([x.shape[a] for a in axes])
    own, root = (save_mean, save_invstd) if train else (mean, w.rsqrt(_widen(var) + eps))
    unit = (_widen(x) - _beside_channels(own, x.ndim)) * _beside_channels(root, x.ndim)
    slope = _widen(gradient)
    total, along = w.sum(slope, axis=axes), w.sum(slope * unit, axis=axes)
    inner = slope
    if train:
        inner = (
            slope
            - (_beside_channels(total, x.ndim) + unit * _beside_channels(along, x.ndim)) / count
        )
    inner = inner * _beside_channels(root if weight is None else root * weight, x.ndim)
    made = (cast(inner, x.dtype), along, total)
    return tuple(each if wanted else None for each, wanted in zip(made, output_mask, strict=True))


@rule("aten.native_dropout_backward")
def _(gradient: Any, mask: Any, scale: float) -> Any:
    return gradient * cast(mask, gradient.dtype) * scale


@rule("aten._weight_norm_interface_backward")
def _(gradient: Any, v: Any, g: Any, norms: Any, dim: int) -> Any:
    """Of v * g / norms, the norms of v along all axes but one."""
    axes = tuple(axis for axis in range(v.ndim) if axis != dim)
    slope, direction = _widen(gradient), _widen(v)
    share = w.sum(slope * direction, axis=axes, keepdims=True) / norms
    inner = (slope - direction * share / norms) * g / norms
    return cast(inner, v.dtype), cast(share, g.dtype)


@rule("aten._embedding_bag", "aten._embedding_bag_forward_only")
def _(
    table: Any, indices: Any, offsets: Any, scale_grad_by_freq: bool = False, mode: int = 0,
    sparse: bool = False, per_sample_weights: Any = None, include_last_offset: bool = False,
    padding_idx: int = -1,
) -> Any:  # fmt: skip
    """Rows of a table, each bag of which becomes one row: its sum, mean (1) or maximum (2). What
    torch keeps beside it for its own way back is not computed."""
    indices, starts = cast(indices, SI64), cast(offsets, SI64)
    if include_last_offset:
        starts = starts[: starts.shape[0] - 1]
    bags, width = starts.shape[0], table.shape[1]
    number = w.searchsorted(starts, w.arange(indices.shape[0]), side="right") - 1
    rows = w.take(table, indices, axis=0)
    rows = rows if per_sample_weights is None else rows * per_sample_weights[:, None]
    counted = w.ones(indices.shape, dtype=SI64)
    if padding_idx >= 0:
        counted = cast(indices != padding_idx, SI64)
        rows = w.where((counted == 0)[:, None], 0.0, rows)
    sizes = scattered(w.zeros((bags,), dtype=SI64), 0, number, counted, "add")
    places = w.broadcast_to(number[:, None], rows.shape)
    if mode == 2:
        if padding_idx >= 0:
            raise Unimplemented("_embedding_bag", "the maximum of bags with padding")
        made = scattered(w.zeros((bags, width), dtype=table.dtype), 0, places, rows, "max", False)
        return made, None, None, None
    made = scattered(w.zeros((bags, width), dtype=table.dtype), 0, places, rows, "add")
    if mode == 1:
        made = made / cast(w.maximum(sizes, 1), table.dtype)[:, None]
    return made, None, None, None


@rule("aten._embedding_bag_dense_backward")
def _(
    gradient: Any, indices: Any, offset2bag: Any, bag_size: Any, maximum_indices: Any,
    num_weights: int, scale_grad_by_freq: bool, mode: int, per_sample_weights: Any,
    padding_idx: int = -1,
) -> Any:  # fmt: skip
    if mode == 2 or scale_grad_by_freq:
        raise Unimplemented("_embedding_bag_dense_backward", "sums and means only")
    rows = w.take(gradient, cast(offset2bag, SI64), axis=0)
    if mode == 1:
        sizes = cast(w.maximum(cast(bag_size, SI64), 1), gradient.dtype)
        rows = rows / w.take(sizes, cast(offset2bag, SI64), axis=0)[:, None]
    rows = rows if per_sample_weights is None else rows * per_sample_weights[:, None]
    flat = cast(indices, SI64)
    if padding_idx >= 0:
        rows = w.where((flat == padding_idx)[:, None], 0.0, rows)
    table = w.zeros((num_weights, gradient.shape[1]), dtype=gradient.dtype)
    return scattered(table, 0, w.broadcast_to(flat[:, None], rows.shape), rows, "add")
