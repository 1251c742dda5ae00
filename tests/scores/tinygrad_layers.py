"""tinygrad's layers and losses as Weft's functions. Padding is written from the last axis on."""

from __future__ import annotations

from typing import Any

import weft
from tests.scores.tinygrad_face import Refused
from tests.scores.tinygrad_methods import METHODS, listed, method
from weft import functional

F: Any = functional


def _around(padding: Any, spatial: int) -> Any:
    """Padding from the last axis on, as pairs from the first."""
    if isinstance(padding, int) or len(padding) != 2 * spatial:
        return padding
    return list(zip(padding[::2], padding[1::2], strict=True))[::-1]


@method
def conv2d(
    x: Any, weight: Any, bias: Any = None, groups: int = 1, stride: Any = 1, dilation: Any = 1,
    padding: Any = 0,
) -> Any:  # fmt: skip
    spatial = weight.ndim - 2
    conv = (F.conv1d, F.conv2d, F.conv3d)[spatial - 1]
    return conv(x, weight, bias, stride, _around(padding, spatial), dilation, groups)


@method
def conv_transpose2d(
    x: Any, weight: Any, bias: Any = None, groups: int = 1, stride: Any = 1, dilation: Any = 1,
    padding: Any = 0, output_padding: Any = 0,
) -> Any:  # fmt: skip
    spatial = weight.ndim - 2
    conv = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[spatial - 1]
    return conv(x, weight, bias, stride, padding, output_padding, groups, dilation)


@method
def max_pool2d(
    x: Any, kernel_size: Any = (2, 2), stride: Any = None, dilation: Any = 1, padding: Any = 0,
    ceil_mode: bool = False, return_indices: bool = False,
) -> Any:  # fmt: skip
    spatial = len(kernel_size) if isinstance(kernel_size, tuple) else 2
    given = (x, kernel_size, stride, _around(padding, spatial), dilation)
    if not return_indices:
        return F.max_pool2d(*given, ceil_mode=ceil_mode)
    values, places = F.max_pool2d(*given, ceil_mode=ceil_mode, return_indices=True)
    return values, places.astype(weft.int32)


@method
def max_unpool2d(
    x: Any, indices: Any, kernel_size: Any = (2, 2), stride: Any = None, padding: Any = 0,
    output_size: Any = None,
) -> Any:  # fmt: skip
    size = output_size if output_size is None else output_size[-2:]
    return F.max_unpool2d(x, indices, kernel_size, stride, padding, output_size=size)


@method
def avg_pool2d(
    x: Any, kernel_size: Any = (2, 2), stride: Any = None, padding: Any = 0,
    ceil_mode: bool = False, count_include_pad: bool = True,
) -> Any:  # fmt: skip
    spatial = len(kernel_size) if isinstance(kernel_size, tuple) else 2
    pool = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[spatial - 1]
    return pool(
        x, kernel_size, stride, _around(padding, spatial), ceil_mode=ceil_mode,
        count_include_pad=count_include_pad,
    )  # fmt: skip


@method
def interpolate(x: Any, size: Any, mode: str = "linear", align_corners: bool = False) -> Any:
    return F.interpolate(x, size, mode=mode, align_corners=align_corners)


@method
def scaled_dot_product_attention(
    q: Any, k: Any, v: Any, attn_mask: Any = None, is_causal: bool = False, enable_gqa: bool = False
) -> Any:
    if is_causal and attn_mask is not None:
        raise Refused("causal, and a mask")
    return F.attention(q, k, v, attn_mask, causal=is_causal)


@method
def einsum(formula: str, *operands: Any) -> Any:
    return weft.einsum(formula, *listed(operands))


METHODS["logsigmoid"] = F.log_sigmoid
METHODS["swish"] = F.silu
METHODS["binary_crossentropy"] = F.binary_cross_entropy
METHODS["binary_crossentropy_logits"] = F.binary_cross_entropy_with_logits


@method
def cross_entropy(x: Any, y: Any, reduction: str = "mean", label_smoothing: float = 0.0) -> Any:
    given = {"reduction": reduction, "label_smoothing": label_smoothing}
    return F.cross_entropy(x, y, axis=1 if x.ndim > 1 else 0, **given)


@method
def sparse_categorical_crossentropy(
    x: Any, y: Any, ignore_index: int = -1, label_smoothing: float = 0.0, reduction: str = "mean"
) -> Any:
    given = {"ignore_index": ignore_index, "label_smoothing": label_smoothing}
    return F.cross_entropy(x, y, reduction, axis=-1, **given)


@method
def nll_loss(
    x: Any, y: Any, weight: Any = None, ignore_index: int = -100, reduction: str = "mean"
) -> Any:
    return F.nll_loss(x, y, reduction, weight=weight, ignore_index=ignore_index, axis=1)
