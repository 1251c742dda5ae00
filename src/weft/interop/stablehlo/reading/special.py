"""Functions that PTIR has no op for, made of those that it has, in f64 throughout."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from weft.foundation.dtypes import F64, SI64, UI64
from weft.interop.stablehlo.reading.bits import wrapped
from weft.interop.stablehlo.reading.site import Lowering, Site
from weft.ptir.builder import Value

_TAIL: Final = (
    1.6720454516122038e-10, -4.828284405742845e-10, -1.9003052667885853e-09, 5.289952243748756e-09,
    1.4853075398374262e-08, -3.606755442681984e-08, -1.0562986495836924e-07, 2.3867682399638495e-07,
    7.243099069802927e-07, -1.91217478234648e-06, -4.577507429611809e-06, 1.8862604665248126e-05,
    1.747919088744914e-05, -0.00019788742212688724, 0.0002474037462300813, 0.0013920612171996634,
    -0.00807360393612049, 0.022801799602419175, -0.04180651066507966, 0.04665458534655082,
    -0.0034960135133747655, -0.12216847723548949, 1.2329951186255528,
)  # fmt: skip
"""A polynomial in s = (7 t - 1) / 6, t = (x - 3) / (x + 3), highest power first: what
(1 + 2 x) exp(x^2) erfc(x) is for x from 0.5 on, within 2e-15. It was fitted at Chebyshev nodes."""
_NEAR: Final = 0.5
"""From here on the tail is used; before, one minus erf is as good."""


def _erfc(at: Site) -> Value:
    (x,) = at.x
    wide = at.b.cast(x, F64)
    beyond = _complement(at, abs(wide))
    return at.b.cast(at.b.emit("select", wide < 0, 2.0 - beyond, beyond), x.dtype)


def _complement(at: Site, x: Value) -> Value:
    """erfc of numbers that are not negative."""
    far = at.b.emit("maximum", x, at.full(_NEAR, x))
    # The square is taken of few digits, and what they leave out separately: both are exact.
    head = at.b.emit("trunc", far * 16.0) / 16.0
    decay = at.b.emit("exp", -(head * head)) * at.b.emit("exp", -((far - head) * (far + head)))
    tail = decay * _polynomial(at, far) / (1.0 + 2.0 * far)
    ended = at.b.emit("select", far > 30.0, at.full(0.0, far), tail)
    found = at.b.emit("select", x < _NEAR, 1.0 - at.b.emit("erf", x), ended)
    return at.b.emit("select", at.b.emit("isnan", x), x, found)


def _polynomial(at: Site, x: Value) -> Value:
    bounded = at.b.emit("minimum", x, at.full(1e6, x))
    s = ((bounded - 3.0) / (bounded + 3.0) * 7.0 - 1.0) / 6.0
    total = at.full(_TAIL[0], s)
    for coefficient in _TAIL[1:]:
        total = total * s + coefficient
    return total


_SLOPE: Final = math.sqrt(math.pi) / 2


def _erf_inv(at: Site) -> Value:
    """A closed form within 0.2 % (Winitzki's), and two of Halley's steps, each of which triples the
    number of right digits. Near 1, where erf is flat, they go by erfc."""
    (x,) = at.x
    size = abs(at.b.cast(x, F64))
    rest = 1.0 - size
    y = _guess(at, size, rest)
    for _ in range(2):
        over = at.b.emit(
            "select", size < 0.5, at.b.emit("erf", y) - size, rest - _complement(at, y)
        )
        step = over * at.b.emit("exp", y * y) * _SLOPE
        y = y - step / (1.0 + y * step)
    y = at.b.emit("select", size == 1.0, at.full(math.inf, y), y)
    return at.b.emit("copysign", at.b.cast(y, x.dtype), x)


def _guess(at: Site, size: Value, rest: Value) -> Value:
    a = 0.147
    log = at.b.emit("log", rest) + at.b.emit("log1p", size)
    half = log / 2.0 + 2 / (math.pi * a)
    return at.b.emit("sqrt", at.b.emit("sqrt", half * half - log / a) - half)


def _mulhi(at: Site) -> Value:
    """The upper half of the product of integers."""
    x, y = at.aligned(at.x)
    if x.dtype.bits < 64:
        wide = SI64 if x.dtype.is_signed else UI64
        product = at.b.cast(x, wide) * at.b.cast(y, wide)
        upper = at.b.emit("shift_right", product, at.full(x.dtype.bits, product))
        return wrapped(at, upper, x.dtype)
    found = _upper(at, *(wrapped(at, value, UI64) for value in (x, y)))
    if not x.dtype.is_signed:
        return found
    # As unsigned numbers, negative ones count 2^64 too much.
    signed, zero = wrapped(at, found, x.dtype), at.full(0, x)
    for one, other in ((x, y), (y, x)):
        signed = signed - at.b.emit("select", one < 0, other, zero)
    return signed


def _upper(at: Site, x: Value, y: Value) -> Value:
    """The upper 64 bits of 128, from the products of halves."""
    shift, low = at.full(32, x), (1 << 32) - 1
    (a, b), (c, d) = ((at.b.emit("shift_right", v, shift), v & low) for v in (x, y))
    inner = at.b.emit("shift_right", b * d, shift) + ((a * d) & low) + ((b * c) & low)
    carried = [at.b.emit("shift_right", v, shift) for v in (a * d, b * c, inner)]
    return a * c + carried[0] + carried[1] + carried[2]


SPECIAL: Final[Mapping[str, Lowering]] = {"erfc": _erfc, "erf_inv": _erf_inv, "mulhi": _mulhi}
