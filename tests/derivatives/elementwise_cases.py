"""Elementwise arithmetic and functions, selection and casts."""

from __future__ import annotations

import numpy as np

from tests.derivatives.case import (
    between,
    case,
    complex_normal,
    distinct,
    emitted,
    in_torch,
    normal,
)

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
    if has_complex:
        both = complex_normal(2, 3) * 0.3 + 1.2, complex_normal(2, 3, seed=1) * 0.3 + 1.2
        case(name, emitted(name), *both, label="complex", torch=in_torch(name))

case("fmod", emitted("fmod"), np.array([7.3, -7.3, 2.2]), np.array([2.1, 2.1, 3.4]),
     torch=in_torch("fmod"))  # fmt: skip
case("copysign", emitted("copysign"), np.array([1.5, -2.0, 3.0]), np.array([-1.0, -2.0, 0.5]),
     label="signs", torch=in_torch("copysign"))  # fmt: skip
case("pow", lambda b, x: b.pow(x, 3.0), np.array([-1.5, 0.0, 2.0]), label="number", order=3)
case("pow", lambda b, x: b.pow(x, 0.0), np.array([-1.5, 0.0, 2.0]), label="zeroth")
case("pow", lambda b, x: b.pow(x, 1.0), np.array([-1.5, 0.0, 2.0]), label="first")

for name in ("maximum", "minimum"):
    case(name, emitted(name), distinct(4, 3), distinct(4, 3, seed=5) + 0.13, torch=in_torch(name))

case("select", lambda b, x, y: b.select(b.compare(x, y, "less"), x * x, y), distinct(5),
     distinct(5, seed=1) + 0.13)  # fmt: skip
case("select", lambda b, x: b.select(b.compare(x, 0.0, "greater"), x, 0.0 * x), distinct(6),
     label="relu", torch=lambda t, x: t.relu(x))  # fmt: skip
case("clamp", lambda b, x: b.clamp(x, b.full([9], -0.7, "f64"), b.full([9], 0.8, "f64")),
     distinct(9), label="constant", torch=lambda t, x: t.clamp(x, -0.7, 0.8))  # fmt: skip
case("clamp", lambda b, x, lo, hi: b.clamp(x, lo, hi), np.array([0.0, 3.0, -3.0, 0.2]),
     np.array([-1.0, -1.0, -1.0, 2.0]), np.array([1.0, 1.0, 1.0, -2.0]),
     torch=lambda t, x, lo, hi: t.clamp(x, lo, hi))  # fmt: skip
case("sign", lambda b, x: b.sign(x), complex_normal(3, 2), label="complex",
     torch=lambda t, x: t.sgn(x))  # fmt: skip
case("stop_gradient", lambda b, x, y: b.stop_gradient(x) * y, normal(3), normal(3, seed=1), wrt=[1])

case("cast", lambda b, x: b.cast(x, "cf64"), normal(2, 3), label="real-to-complex")
case("cast", lambda b, z: b.cast(z, "f64"), complex_normal(2, 3), label="complex-to-real")

case("real", lambda b, z: b.real(z), complex_normal(2, 3), torch=lambda t, z: t.real(z))
case("imag", lambda b, z: b.imag(z), complex_normal(2, 3), torch=lambda t, z: t.imag(z))
case("conj", lambda b, z: b.conj(z), complex_normal(2, 3), torch=lambda t, z: t.conj(z))
case("complex", lambda b, x, y: b.complex(x, y), normal(2, 3), normal(2, 3, seed=1),
     torch=lambda t, x, y: t.complex(x, y))  # fmt: skip

case("dequantize", lambda b, q, s: b.dequantize(q, s), np.array([[3, -7], [100, 0]], np.int8),
     np.array(0.3))  # fmt: skip
case("dequantize", lambda b, q, s, z: b.dequantize(q, s, z, axis=1),
     np.array([[3, -7], [100, 0]], np.int8), between(0.3, 2, 2), np.array([3, -4], np.int8),
     label="per-axis")  # fmt: skip
case("barrier", lambda b, x, y: b.barrier(b.sin(x), y) * y, normal(3), normal(3, seed=1))
case("make_tuple", lambda b, x, y: [v * 2.0 for v in b.make_tuple(x, y)], normal(2), normal(3))
