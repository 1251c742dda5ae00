"""Convolutions. Their gradients are those of Weft's functions."""

from __future__ import annotations

from typing import Any

from weft.interop.torch.rules.table import F, pair, rule, w


def convolved(
    x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
    output_padding: Any, groups: int,
) -> Any:  # fmt: skip
    """A convolution over the axes that the weight has beside its two first ones."""
    spatial = weight.ndim - 2
    stride, padding, dilation, output_padding = (
        pair(value, spatial) for value in (stride, padding, dilation, output_padding)
    )
    single = x.ndim == spatial + 1
    x = x[None] if single else x
    if transposed:
        function = getattr(F, f"conv_transpose{spatial}d")
        made = function(x, weight, bias, stride, padding, output_padding, groups, dilation)
    else:
        made = getattr(F, f"conv{spatial}d")(x, weight, bias, stride, padding, dilation, groups)
    return made[0] if single else made


rule("aten.convolution", "aten._convolution")(lambda *args, **_: convolved(*args[:9]))


@rule("aten.convolution_backward")
def _(
    gradient: Any, x: Any, weight: Any, bias_sizes: Any, stride: Any, padding: Any, dilation: Any,
    transposed: bool, output_padding: Any, groups: int, output_mask: Any,
) -> Any:  # fmt: skip
    settings = (stride, padding, dilation, transposed, output_padding, groups)
    found: list[Any] = [None, None, None]
    asked = [at for at in (0, 1) if output_mask[at]]

    def forward(*given: Any) -> Any:
        own = dict(zip(asked, given, strict=True))
        return convolved(own.get(0, x), own.get(1, weight), None, *settings)

    if asked:
        _, back = w.vjp(forward, *[(x, weight)[at] for at in asked])
        made = back(gradient)
        for at, each in zip(asked, made if isinstance(made, tuple | list) else [made], strict=True):
            found[at] = each
    if output_mask[2]:
        found[2] = w.sum(gradient, axis=(0, *range(2, gradient.ndim)))
    return tuple(found)


@rule("aten.conv1d", "aten.conv2d", "aten.conv3d")
def _(
    x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
    groups: int = 1,
) -> Any:  # fmt: skip
    if isinstance(padding, str):
        spatial = weight.ndim - 2
        function = getattr(F, f"conv{spatial}d")
        return function(x, weight, bias, pair(stride, spatial), padding, dilation, groups)
    return convolved(x, weight, bias, stride, padding, dilation, False, 0, groups)


@rule("aten.conv_transpose1d", "aten.conv_transpose2d", "aten.conv_transpose3d")
def _(
    x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0,
    output_padding: Any = 0, groups: int = 1, dilation: Any = 1,
) -> Any:  # fmt: skip
    return convolved(x, weight, bias, stride, padding, dilation, True, output_padding, groups)


@rule("aten.im2col")
def _(x: Any, kernel_size: Any, dilation: Any, padding: Any, stride: Any) -> Any:
    made = F.unfold(x[None] if x.ndim == 3 else x, tuple(kernel_size), dilation, padding, stride)
    return made[0] if x.ndim == 3 else made


@rule("aten.col2im")
def _(x: Any, output_size: Any, kernel_size: Any, dilation: Any, padding: Any, stride: Any) -> Any:
    given = x[None] if x.ndim == 2 else x
    made = F.fold(given, tuple(output_size), tuple(kernel_size), dilation, padding, stride)
    return made[0] if x.ndim == 2 else made
