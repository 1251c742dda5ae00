"""Gradients of norms as programs."""

from __future__ import annotations

from weft.ptir import Builder, Program
from weft.ptir.gradient import vjp


def norm_back(
    rows: int, columns: int, dtype: str = "bf16", *, shift: bool = True, read: bool = False
) -> Program:
    """The gradients of a layer norm, or of an RMS norm; `read` with a sum of the first's columns,
    as that of a bias before it."""
    b = Builder("norm_back")
    x, back = (b.param(dtype, [rows, columns]) for _ in "ab")
    gamma, scale = b.param("f32", [columns]), b.param("f32", [rows, 1])
    shape = [rows, columns]
    steps = b.cast(x, "f32") * b.broadcast_to(scale, shape)
    grad = b.cast(back, "f32")
    slope = grad * b.broadcast_to(gamma, shape)
    along = b.reduce_sum(slope * steps, [1], keepdims=True) * (1.0 / columns)
    dx = slope - steps * b.broadcast_to(along, shape)
    if shift:
        dx = dx - b.broadcast_to(b.reduce_sum(slope, [1], keepdims=True) * (1 / columns), shape)
    dx = b.cast(dx * b.broadcast_to(scale, shape), dtype)
    sums = [b.reduce_sum(grad * steps, [0]), *([b.reduce_sum(grad, [0])] if shift else [])]
    if read:
        sums.append(b.reduce_sum(b.cast(dx, "f32"), [0]))
    return b.build(dx, *(b.cast(found, dtype) for found in sums))


def trained_norm(*shape: int) -> Program:
    """A layer norm of a sum of two tensors, with all its gradients."""
    b, last, sizes = Builder("trained_norm"), len(shape) - 1, list(shape)
    x, gamma, beta = b.param("f32", sizes), *(b.param("f32", sizes[-1:]) for _ in "ab")
    x = x + b.param("f32", sizes)
    mean = b.reduce_sum(x, [last], keepdims=True) * (1 / shape[-1])
    steps = x - b.broadcast_to(mean, sizes)
    spread = b.reduce_sum(steps * steps, [last], keepdims=True) * (1 / shape[-1])
    steps = steps * b.broadcast_to(b.rsqrt(spread + 1e-5), sizes)
    scaled = steps * b.broadcast_to(gamma, sizes) + b.broadcast_to(beta, sizes)
    return vjp(b.build(scaled), (0, 1, 2))
