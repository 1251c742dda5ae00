"""Lines of the GPU benchmark for `rows_backward` of `gpu2.json`: norms and their ways back, the
gradient of an embedding, optimisers; those of cross-entropy are in `gpu_losses`.

A way back gets what torch's gets: the input, the statistics that the way there stored in f32, and
the cotangent. Its torch functions are the ops that torch's derivatives call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Final

from benchmarks.gpu_line import Line, Tensor
from benchmarks.gpu_losses import loss_lines
from benchmarks.gpu_optimisers import optimiser_lines
from weft.ptir import Builder, Value

FAMILY: Final = "rows_backward"
EPSILON: Final = 1e-5
GROUPS: Final = 32
LAYER_NORMS: Final = ((16384, 4096), (65536, 768), (131072, 1024))
RMS_NORMS: Final = ((16384, 4096), (8192, 8192))
SOFTMAX: Final = (65536, 1024)
GROUP_NORMS: Final = ((16, 512, 64, 64), (4, 320, 64, 64))
IMAGES: Final = (64, 56, 56, 256)
TABLE: Final = (50304, 768)
TOKENS: Final = 16384


def wide(b: Builder, x: Value) -> Value:
    return b.cast(x, "f32")


def sized(x: Value) -> tuple[int, ...]:
    return tuple(x.type.static_shape)  # type: ignore[union-attr]


def _rows_back(b: Builder, x: Value, slope: Value, scale: Value, *, centred: bool) -> Value:
    """The gradient of a norm's input, x normalised and the cotangent times the weight given."""
    count = sized(x)[1]
    along = b.reduce_sum(slope * x, [1], keepdims=True) * (1.0 / count)
    found = slope - x * b.broadcast_to(along, x.shape)
    if centred:
        mean = b.reduce_sum(slope, [1], keepdims=True) * (1.0 / count)
        found = found - b.broadcast_to(mean, x.shape)
    return found * b.broadcast_to(scale, x.shape)


# -- norms of rows -------------------------------------------------------------------------------


def _layer_norm(
    b: Builder, x: Value, gamma: Value, mean: Value, scale: Value, back: Value
) -> tuple[Value, ...]:
    shape, narrow = x.shape, x.dtype
    steps = (wide(b, x) - b.broadcast_to(mean, shape)) * b.broadcast_to(scale, shape)
    grad = wide(b, back)
    dx = _rows_back(b, steps, grad * b.broadcast_to(wide(b, gamma), shape), scale, centred=True)
    sums = (b.reduce_sum(part, [0]) for part in (grad * steps, grad))
    return (b.cast(dx, narrow), *(b.cast(found, narrow) for found in sums))


def _torch_layer_norm(torch: Any, x: Any, gamma: Any, mean: Any, scale: Any, back: Any) -> Any:
    return torch.ops.aten.native_layer_norm_backward(
        back, x, x.shape[1:], mean, scale, gamma, gamma, [True, True, True]
    )


def _rms_norm(b: Builder, x: Value, gamma: Value, scale: Value, back: Value) -> tuple[Value, ...]:
    shape, narrow = x.shape, x.dtype
    steps, grad = wide(b, x) * b.broadcast_to(scale, shape), wide(b, back)
    dx = _rows_back(b, steps, grad * b.broadcast_to(wide(b, gamma), shape), scale, centred=False)
    return b.cast(dx, narrow), b.cast(b.reduce_sum(grad * steps, [0]), narrow)


def _torch_rms_norm(torch: Any, x: Any, gamma: Any, scale: Any, back: Any) -> Any:
    steps, grad = x.float() * scale, back.float()
    slope = grad * gamma.float()
    dx = (slope - steps * (slope * steps).mean(1, keepdim=True)) * scale
    return dx.to(x.dtype), (grad * steps).sum(0).to(x.dtype)


def _fused_rms_norm(torch: Any, x: Any, gamma: Any, scale: Any, back: Any) -> Any:
    op = torch.ops.aten._fused_rms_norm_backward
    return op(back, x, x.shape[1:], scale, gamma, [True, True])


def _norm_lines() -> Iterator[Line]:
    for rows, columns in LAYER_NORMS:
        x, one = Tensor((rows, columns), "bf16"), Tensor((rows, 1), "f32")
        inputs: tuple[Tensor, ...] = (x, Tensor((columns,), "bf16"), one, one, x)
        name = f"layer_norm backward {rows}x{columns}"
        yield Line(FAMILY, name, "bf16", inputs, _layer_norm, _torch_layer_norm)
    for rows, columns in RMS_NORMS:
        x, one = Tensor((rows, columns), "bf16"), Tensor((rows, 1), "f32")
        inputs = (x, Tensor((columns,), "bf16"), one, x)
        name = f"rms_norm backward {rows}x{columns}"
        library = {"fused": _fused_rms_norm}
        yield Line(FAMILY, name, "bf16", inputs, _rms_norm, _torch_rms_norm, library)


def _softmax(b: Builder, y: Value, back: Value) -> Value:
    shares, grad = wide(b, y), wide(b, back)
    total = b.reduce_sum(shares * grad, [1], keepdims=True)
    return b.cast(shares * (grad - b.broadcast_to(total, y.shape)), y.dtype)


def _softmax_line() -> Line:
    x = Tensor(SOFTMAX, "bf16")
    return Line(
        FAMILY, f"softmax backward {'x'.join(map(str, SOFTMAX))}", "bf16", (x, x), _softmax,
        lambda t, y, g: t.ops.aten._softmax_backward_data(g, y, 1, y.dtype),
    )  # fmt: skip


# -- norms of images -----------------------------------------------------------------------------


def _grouped(b: Builder, x: Value) -> Value:
    """Images as (image, group, channels of it, places)."""
    images, channels, *size = sized(x)
    return b.reshape(wide(b, x), [images, GROUPS, channels // GROUPS, math.prod(size)])


def _channels(b: Builder, vector: Value, shape: tuple[int, ...]) -> Value:
    """A number for each channel, at every place of grouped images."""
    return b.broadcast_to(b.reshape(wide(b, vector), [1, GROUPS, shape[2], 1]), list(shape))


def _group_norm(b: Builder, x: Value, gamma: Value, beta: Value) -> Value:
    cut = _grouped(b, x)
    shape = sized(cut)
    count = shape[2] * shape[3]
    mean = b.reduce_sum(cut, [2, 3], keepdims=True) * (1.0 / count)
    steps = cut - b.broadcast_to(mean, list(shape))
    spread = b.reduce_sum(steps * steps, [2, 3], keepdims=True) * (1.0 / count)
    steps = steps * b.broadcast_to(b.rsqrt(spread + EPSILON), list(shape))
    found = steps * _channels(b, gamma, shape) + _channels(b, beta, shape)
    return b.cast(b.reshape(b.silu(found), x.shape), x.dtype)


def _torch_group_norm(torch: Any, x: Any, gamma: Any, beta: Any) -> Any:
    functional = torch.nn.functional
    return functional.silu(functional.group_norm(x, GROUPS, gamma, beta, EPSILON))


def _group_norm_back(
    b: Builder, x: Value, gamma: Value, mean: Value, scale: Value, back: Value
) -> tuple[Value, ...]:
    cut, grad = _grouped(b, x), _grouped(b, back)
    shape = sized(cut)
    ones = [shape[0], GROUPS, 1, 1]
    centre, factor = (b.broadcast_to(b.reshape(v, ones), list(shape)) for v in (mean, scale))
    steps = (cut - centre) * factor
    slope = grad * _channels(b, gamma, shape)
    count = 1.0 / (shape[2] * shape[3])
    parts = (b.reduce_sum(part, [2, 3], keepdims=True) * count for part in (slope * steps, slope))
    along, total = (b.broadcast_to(part, list(shape)) for part in parts)
    dx = (slope - steps * along - total) * factor
    sums = (b.reduce_sum(part, [0, 3]) for part in (grad * steps, grad))
    flat = (b.cast(b.reshape(found, [sized(x)[1]]), x.dtype) for found in sums)
    return (b.cast(b.reshape(dx, x.shape), x.dtype), *flat)


def _torch_group_norm_back(torch: Any, x: Any, gamma: Any, mean: Any, scale: Any, back: Any) -> Any:
    images, channels, *size = x.shape
    # Of one dtype with the image, as the way there stores them.
    mean, scale = mean.to(x.dtype), scale.to(x.dtype)
    return torch.ops.aten.native_group_norm_backward(
        back, x, mean, scale, gamma, images, channels, math.prod(size), GROUPS, [True] * 3
    )


def _group_norm_lines() -> Iterator[Line]:
    for shape in GROUP_NORMS:
        vector = Tensor((shape[1],), "bf16")
        inputs = (Tensor(shape, "bf16"), vector, vector)
        name = f"group norm+silu {'x'.join(map(str, shape))}"
        yield Line(FAMILY, name, "bf16", inputs, _group_norm, _torch_group_norm)
    shape = GROUP_NORMS[0]
    x, each = Tensor(shape, "bf16"), Tensor((shape[0], GROUPS), "bf16")
    yield Line(
        FAMILY, f"group norm backward {'x'.join(map(str, shape))}", "bf16",
        (x, Tensor((shape[1],), "bf16"), each, each, x), _wide_statistics(_group_norm_back),
        _torch_group_norm_back,
    )  # fmt: skip


def _wide_statistics(norm: Callable[..., Any]) -> Callable[..., Any]:
    """A way back whose statistics were stored in the image's dtype."""

    def called(b: Builder, x: Value, gamma: Value, mean: Value, scale: Value, back: Value) -> Any:
        return norm(b, x, gamma, wide(b, mean), wide(b, scale), back)

    return called


# Over all places of all images, channels last.


def _batch_norm(b: Builder, x: Value, gamma: Value, beta: Value) -> tuple[Value, ...]:
    cut, count = wide(b, x), 1.0 / math.prod(IMAGES[:3])
    mean = b.reduce_sum(cut, [0, 1, 2]) * count
    steps = cut - b.broadcast_to(mean, x.shape)
    scale = b.rsqrt(b.reduce_sum(steps * steps, [0, 1, 2]) * count + EPSILON)
    steps = steps * b.broadcast_to(scale, x.shape)
    found = steps * b.broadcast_to(gamma, x.shape) + b.broadcast_to(beta, x.shape)
    return b.cast(found, x.dtype), mean, scale


def _torch_batch_norm(torch: Any, x: Any, gamma: Any, beta: Any) -> Any:
    image = x.movedim(-1, 1)
    made = torch.ops.aten.native_batch_norm(image, gamma, beta, None, None, True, 0.1, EPSILON)
    return (made[0].movedim(1, -1), *made[1:])


def _cudnn_batch_norm(torch: Any, x: Any, gamma: Any, beta: Any) -> Any:
    op = torch.ops.aten.cudnn_batch_norm
    return op(x.movedim(-1, 1), gamma, beta, None, None, True, 0.1, EPSILON)


def _batch_norm_back(
    b: Builder, x: Value, gamma: Value, mean: Value, scale: Value, back: Value
) -> tuple[Value, ...]:
    count, grad = 1.0 / math.prod(IMAGES[:3]), wide(b, back)
    steps = (wide(b, x) - b.broadcast_to(mean, x.shape)) * b.broadcast_to(scale, x.shape)
    along, total = (b.reduce_sum(part, [0, 1, 2]) for part in (grad * steps, grad))
    less = steps * b.broadcast_to(along * count, x.shape) + b.broadcast_to(total * count, x.shape)
    dx = (grad - less) * b.broadcast_to(gamma * scale, x.shape)
    return b.cast(dx, x.dtype), along, total


def _torch_batch_norm_back(torch: Any, x: Any, gamma: Any, mean: Any, scale: Any, back: Any) -> Any:
    made = torch.ops.aten.native_batch_norm_backward(
        back.movedim(-1, 1), x.movedim(-1, 1), gamma, None, None, mean, scale, True, EPSILON,
        [True, True, True],
    )  # fmt: skip
    return (made[0].movedim(1, -1), *made[1:])


def _batch_norm_lines() -> Iterator[Line]:
    x, vector = Tensor(IMAGES, "bf16"), Tensor((IMAGES[3],), "f32")
    name = f"batch norm training {'x'.join(map(str, IMAGES))}"
    yield Line(
        FAMILY, f"{name} forward", "bf16", (x, vector, vector), _batch_norm, _torch_batch_norm,
        {"cudnn": _cudnn_batch_norm},
    )  # fmt: skip
    inputs = (x, vector, vector, vector, x)
    yield Line(FAMILY, f"{name} backward", "bf16", inputs, _batch_norm_back, _torch_batch_norm_back)


# -- the gradient of an embedding ----------------------------------------------------------------


def _embedding(b: Builder, places: Value, rows: Value) -> Value:
    return b.scatter_add(
        b.full(list(TABLE), 0.0, rows.dtype), b.reshape(places, [TOKENS, 1]), rows,
        update_window_dims=[1], inserted_window_dims=[0], scatter_dims_to_operand_dims=[0],
        index_vector_dim=1,
    )  # fmt: skip


def _embedding_line() -> Line:
    inputs = (Tensor((TOKENS,), "si64", below=TABLE[0]), Tensor((TOKENS, TABLE[1]), "bf16"))
    return Line(
        FAMILY, f"embedding gradient {TOKENS} rows of {TABLE[1]} into {TABLE[0]}", "bf16", inputs,
        _embedding,
        lambda t, i, g: t.ops.aten.embedding_dense_backward(g, i, TABLE[0], -1, False),
    )  # fmt: skip


def rows_backward_lines() -> Iterator[Line]:
    yield from _norm_lines()
    yield _softmax_line()
    yield from loss_lines()
    yield from _group_norm_lines()
    yield from _batch_norm_lines()
    yield _embedding_line()
    yield from optimiser_lines()
