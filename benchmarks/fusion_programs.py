"""Twelve programs that fusion decides about, each as one function for Weft, JAX and PyTorch, and
filters of which a GPU keeps rows in shared memory, or whose rows have columns and channels.

A function takes `f`, which has what the libraries call by other names, and arrays. Sizes are those
of a CPU with a few cores; programs 5 and 12 are 1024 cubed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp
from typing import Any, TypeAlias

Program: TypeAlias = Callable[..., Any]


def blur(x: Any) -> Any:
    h = (x[:, :-2] + x[:, 1:-1] + x[:, 2:]) / 3
    return (h[:-2] + h[1:-1] + h[2:]) / 3


def blur4(f: Any, x: Any) -> Any:
    return blur(blur(blur(blur(x))))


def step(x: Any) -> Any:
    around = x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:]
    return (around + x[1:-1, 1:-1]) * 0.2


def jacobi4(f: Any, x: Any) -> Any:
    return step(step(step(step(x))))


def taps(x: Any, along_rows: bool) -> Any:
    count, total = (x.shape[1] if along_rows else x.shape[0]) - 4, None
    for place, weight in enumerate((0.0625, 0.25, 0.375, 0.25, 0.0625)):
        end = place + count
        part = (x[:, place:end] if along_rows else x[place:end]) * weight
        total = part if total is None else total + part
    return total


def unsharp(f: Any, x: Any) -> Any:
    v, c = taps(taps(x, along_rows=True), along_rows=False), x[2:-2, 2:-2]
    d = c - v
    return c + 1.5 * d * (d * d / (d * d + 0.01))


def box(p: Any) -> Any:
    rows = p[:-2] + p[1:-1] + p[2:]
    return rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:]


def harris(f: Any, x: Any) -> Any:
    right, left, down, up = x[:, 2:], x[:, :-2], x[2:], x[:-2]
    gx = (right - left)[:-2] + 2 * (right - left)[1:-1] + (right - left)[2:]
    gy = (down - up)[:, :-2] + 2 * (down - up)[:, 1:-1] + (down - up)[:, 2:]
    a, b, c = box(gx * gx), box(gx * gy), box(gy * gy)
    return a * c - b * b - 0.04 * (a + c) * (a + c)


GAUSS = tuple(exp(-((place - 15) ** 2) / 50) for place in range(31))


def gauss31(f: Any, x: Any) -> Any:
    """A separable blur of 31 taps."""
    return weighted(weighted(x, 1, GAUSS), 0, GAUSS)


def weighted(x: Any, axis: int, weights: Sequence[float], apart: int = 1) -> Any:
    """Sums along an axis, with weights, of elements that are so far apart."""
    count, total = x.shape[axis] - (len(weights) - 1) * apart, None
    for place, weight in enumerate(weights):
        at = (slice(None),) * axis + (slice(place * apart, place * apart + count),)
        part = x[at] * weight
        total = part if total is None else total + part
    return total


def blur_nhwc(f: Any, x: Any) -> Any:
    """Two blurs of 3 by 3 of images whose channels lie side by side."""
    for _ in range(2):
        x = weighted(weighted(x, 2, (0.25, 0.5, 0.25)), 1, (0.25, 0.5, 0.25))
    return x


def gauss31_nhwc(f: Any, x: Any) -> Any:
    return weighted(weighted(x, 2, GAUSS), 1, GAUSS)


def far_apart(f: Any, x: Any) -> Any:
    """Two dilated filters, whose taps are 12 rows and columns from one another."""
    for axis in (1, 0):
        x = weighted(x, axis, (0.125, 0.25, 0.25, 0.25, 0.125), 12)
    return x


def norm_product(f: Any, x: Any, g: Any, w: Any) -> Any:
    return (x * f.rsqrt(f.mean(x * x) + 1e-5) * g) @ w


def product_softmax(f: Any, x: Any, w: Any) -> Any:
    return f.softmax(x @ w)


def product_norm(f: Any, x: Any, w: Any, b: Any, r: Any) -> Any:
    return f.layer_norm(x @ w + b + r)


def conv_pool(f: Any, x: Any, w: Any) -> Any:
    return f.max_pool2d(f.relu(f.conv2d(x, w)))


def conv_conv(f: Any, x: Any, w: Any, v: Any) -> Any:
    return f.conv2d(f.relu(f.conv2d(x, w)), v)


def mlp(f: Any, x: Any, w: Any, v: Any) -> Any:
    return f.gelu(x @ w) @ v


def product_logsumexp(f: Any, x: Any, w: Any) -> Any:
    return f.logsumexp(x @ w)


def two_results(f: Any, x: Any, w: Any) -> Any:
    y = x @ w
    return y, f.gelu(y)


@dataclass(frozen=True)
class Line:
    """A program and the shapes of what it is given."""

    program: Program
    shapes: tuple[tuple[int, ...], ...]


PROGRAMS: dict[str, Line] = {
    "blur4": Line(blur4, ((1500, 1500),)),
    "jacobi4": Line(jacobi4, ((1500, 1500),)),
    "unsharp": Line(unsharp, ((1500, 1500),)),
    "harris": Line(harris, ((1500, 1500),)),
    "norm, product": Line(norm_product, ((1024, 1024), (1024,), (1024, 1024))),
    "product, softmax": Line(product_softmax, ((8192, 1024), (1024, 128))),
    "product, layer norm": Line(product_norm, ((2048, 1024), (1024, 1024), (1024,), (2048, 1024))),
    "convolution, pooling": Line(conv_pool, ((2, 64, 112, 112), (64, 64, 3, 3))),
    "two convolutions": Line(conv_conv, ((2, 32, 112, 112), (32, 32, 3, 3), (32, 32, 3, 3))),
    "product, gelu, product": Line(mlp, ((16384, 64), (64, 256), (256, 64))),
    "product, log-sum-exp": Line(product_logsumexp, ((512, 256), (256, 8192))),
    "product and its gelu": Line(two_results, ((1024, 1024), (1024, 1024))),
}
FILTERS: dict[str, Line] = {
    "gauss31": Line(gauss31, ((1500, 1500),)),
    "edges far apart": Line(far_apart, ((1500, 1500),)),
    "blur of NHWC rows": Line(blur_nhwc, ((8, 512, 512, 3),)),
    "gauss31 of NHWC rows": Line(gauss31_nhwc, ((2, 512, 512, 4),)),
}
