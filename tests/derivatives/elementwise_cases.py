"""Elementwise arithmetic and functions, selection and casts."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.derivatives.case import (
    between,
    case,
    complex_normal,
    distinct,
    emitted,
    in_torch,
    normal,
    whole,
)
from weft.ptir import Builder
from weft.ptir.text import print_program

# name, range of inputs, whether it is defined for complex numbers
UNARY: list[tuple[str, float, float, bool]] = [
    ("neg", -2, 2, True),
    ("abs", 0.2, 2, True),
    ("exp", -2, 2, True),
    ("log", 0.3, 3, True),
    ("tanh", -2, 2, True),
    ("erf", -2, 2, False),
    ("rsqrt", 0.3, 3, True),
    ("reciprocal", 0.3, 3, True),
    ("sqrt", 0.3, 3, True),
    ("sin", -3, 3, True),
    ("cos", -3, 3, True),
    ("tan", -1, 1, True),
    ("asin", -0.8, 0.8, True),
    ("acos", -0.8, 0.8, True),
    ("atan", -2, 2, True),
    ("sinh", -2, 2, True),
    ("cosh", -2, 2, True),
    ("asinh", -2, 2, True),
    ("acosh", 1.3, 3, True),
    ("atanh", -0.8, 0.8, True),
    ("expm1", -2, 2, True),
    ("log1p", -0.5, 2, True),
    ("exp2", -2, 2, True),
    ("log2", 0.3, 3, True),
    ("log10", 0.3, 3, True),
]
for name, low, high, has_complex in UNARY:
    case(name, emitted(name), between(low, high, 2, 3), torch=in_torch(name))
    case(name, emitted(name), between(low, high), label="scalar")
    case(name, emitted(name), between(low, high, 0, 2), label="empty", order=1)
    if has_complex:
        points = complex_normal(3, 2) * 0.5 + (1.5 if low > 0 else 0.0)
        like = None if name == "abs" else in_torch(name)  # torch's abs is real
        case(name, emitted(name), points, label="complex", torch=like)

BINARY: list[tuple[str, float, float, bool]] = [
    ("add", -2, 2, True),
    ("sub", -2, 2, True),
    ("mul", -2, 2, True),
    ("div", 0.3, 2, True),
    ("pow", 0.3, 2, True),
    ("atan2", 0.3, 2, False),
    ("hypot", 0.3, 2, False),
    ("logaddexp", -2, 2, False),
    ("copysign", 0.3, 2, False),
]

for name, low, high, has_complex in BINARY:
    pair = between(low, high, 2, 3), between(low, high, 2, 3, seed=1)
    case(name, emitted(name), *pair, torch=in_torch(name))
    case(name, lambda b, x, n=name: b.emit(n, x, x), pair[0], label="same")
    images = between(low, high, 2, 1, 3, 2), between(low, high, 2, 1, 3, 2, seed=1)
    case(name, emitted(name), *images, label="images")
    if has_complex:
        both = complex_normal(2, 3) * 0.3 + 1.2, complex_normal(2, 3, seed=1) * 0.3 + 1.2
        case(name, emitted(name), *both, label="complex", torch=in_torch(name))

case("fmod", emitted("fmod"), np.array([7.3, -7.3, 2.2]), np.array([2.1, 2.1, 3.4]),
     torch=in_torch("fmod"))  # fmt: skip
dims: tuple[int, ...]
for dims in ((), (2, 3), (2, 1, 3, 2)):
    divisor = between(1, 2, *dims)
    case("fmod", emitted("fmod"), divisor * (2 + between(0.2, 0.8, *dims)), divisor,
         label=f"rank{len(dims)}", torch=in_torch("fmod"))  # fmt: skip
case("copysign", emitted("copysign"), np.array([1.5, -2.0, 3.0]), np.array([-1.0, -2.0, 0.5]),
     label="signs", torch=in_torch("copysign"))  # fmt: skip
case("pow", lambda b, x: b.pow(x, 3.0), np.array([-1.5, 0.0, 2.0]), label="number", order=3)
case("pow", lambda b, x: b.pow(x, 0.0), np.array([-1.5, 0.0, 2.0]), label="zeroth")
case("pow", lambda b, x: b.pow(x, 1.0), np.array([-1.5, 0.0, 2.0]), label="first")

for name in ("maximum", "minimum"):
    for dims in ((), (5,), (4, 3), (3, 1, 2), (2, 1, 3, 2)):
        case(name, emitted(name), distinct(*dims), distinct(*dims, seed=5) + 0.13,
             label=f"rank{len(dims)}", torch=in_torch(name))  # fmt: skip

case("select", lambda b, x, y: b.select(b.compare(x, y, "less"), x * x, y), distinct(5),
     distinct(5, seed=1) + 0.13)  # fmt: skip
case("select", lambda b, x: b.select(b.compare(x, 0.0, "greater"), x, 0.0 * x), distinct(6),
     label="relu", torch=lambda t, x: t.relu(x))  # fmt: skip
case("select", lambda b, x, y: b.select(b.compare(x, y, "less"), x, y * y), distinct(2, 1, 3, 2),
     distinct(2, 1, 3, 2, seed=1) + 0.13, label="images",
     torch=lambda t, x, y: t.where(x < y, x, y * y))  # fmt: skip
case("clamp", lambda b, x: b.clamp(x, b.full([9], -0.7, "f64"), b.full([9], 0.8, "f64")),
     distinct(9), label="constant", torch=lambda t, x: t.clamp(x, -0.7, 0.8))  # fmt: skip
case("clamp", lambda b, x, lo, hi: b.clamp(x, lo, hi), np.array([0.0, 3.0, -3.0, 0.2]),
     np.array([-1.0, -1.0, -1.0, 2.0]), np.array([1.0, 1.0, 1.0, -2.0]),
     torch=lambda t, x, lo, hi: t.clamp(x, lo, hi))  # fmt: skip
case("clamp", lambda b, x, lo, hi: b.clamp(x, lo, hi), distinct(2, 1, 3, 2),
     -between(1.0, 1.1, 2, 1, 3, 2, seed=1), between(1.0, 1.1, 2, 1, 3, 2), label="images",
     torch=lambda t, x, lo, hi: t.clamp(x, lo, hi))  # fmt: skip
case("sign", lambda b, x: b.sign(x), distinct(4, 1), label="real", torch=lambda t, x: t.sgn(x))


def _own_gradient(b: Any, x: Any) -> Any:
    """A sine whose derivative is given: the cosine that was kept."""
    rule = Builder()
    kept, cotangent = rule.param(x.dtype, x.shape), rule.param(x.dtype, x.shape)
    backward = print_program(rule.build(kept * cotangent))
    return b.custom_gradient(b.sin(x), b.cos(x), x, results=1, kept=1, inputs=1, backward=backward)


for dims in ((), (2, 3), (2, 1, 3, 2)):
    rank = f"rank{len(dims)}"
    point, first, second = complex_normal(*dims), normal(*dims), normal(*dims, seed=1)
    case("sign", emitted("sign"), point, label=rank, torch=in_torch("sgn"))
    case("real", emitted("real"), point, label=rank, torch=in_torch("real"))
    case("imag", emitted("imag"), point, label=rank, torch=in_torch("imag"))
    case("conj", emitted("conj"), point, label=rank, torch=in_torch("conj"))
    case("complex", emitted("complex"), first, second, label=rank, torch=in_torch("complex"))
    case("cast", lambda b, x: b.cast(x, "cf64"), first, label=f"real-to-complex-{rank}",
         torch=lambda t, x: x.to(t.complex128))  # fmt: skip
    case("cast", lambda b, z: b.cast(z, "f64"), point, label=f"complex-to-real-{rank}",
         torch=lambda t, z: t.real(z))  # fmt: skip
    case("stop_gradient", lambda b, x, y: b.stop_gradient(x) * y, first, second, wrt=[1],
         label=rank, torch=lambda t, x, y: x.detach() * y)  # fmt: skip
    case("barrier", lambda b, x, y: b.barrier(b.sin(x), y) * y, first, second, label=rank,
         torch=lambda t, x, y: t.sin(x) * y)  # fmt: skip
    case("custom_gradient", _own_gradient, first, label=rank, torch=lambda t, x: t.sin(x))
    case("make_tuple", lambda b, x, y: [v * 2.0 for v in b.make_tuple(x, y)], first, normal(3),
         label=rank, torch=lambda t, x, y: (x * 2, y * 2))  # fmt: skip

case("dequantize", lambda b, q, s: b.dequantize(q, s), np.array([[3, -7], [100, 0]], np.int8),
     np.array(0.3), torch=lambda t, q, s: q * s)  # fmt: skip
case("dequantize", lambda b, q, s, z: b.dequantize(q, s, z, axis=1),
     np.array([[3, -7], [100, 0]], np.int8), between(0.3, 2, 2), np.array([3, -4], np.int8),
     label="per-axis", torch=lambda t, q, s, z: (q.to(s.dtype) - z) * s)  # fmt: skip
case("dequantize", lambda b, q, s, z: b.dequantize(q, s, z, axis=2),
     whole(200, 2, 1, 3, 2, dtype=np.uint8), between(0.3, 2, 3), np.array([3, 40, 0], np.uint8),
     label="images",
     torch=lambda t, q, s, z: (q.to(s.dtype) - z[:, None]) * s[:, None])  # fmt: skip
