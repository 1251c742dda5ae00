"""trunc, floor, ceil and round to even: exact, with the sign of zeros kept."""

from __future__ import annotations

from weft.codegen.cpu.code import Val
from weft.codegen.cpu.math.writer import Writer


def trunc(w: Writer, x: Val) -> Val:
    """x without its fraction: through an integer where x has a fraction at all."""
    small = w.test("olt", w.abs(x), 2.0 ** w.form(x).mantissa)
    whole = w.as_float(w.whole(w.choose(small, x, 0.0)))
    return w.choose(small, w.copysign(whole, x), x)


def floor(w: Writer, x: Val) -> Val:
    return _toward(w, x, "ogt", -1.0)


def ceil(w: Writer, x: Val) -> Val:
    return _toward(w, x, "olt", 1.0)


def _toward(w: Writer, x: Val, side: str, step: float) -> Val:
    """The truncated x, moved one step where that lies on the wrong side of x."""
    whole = trunc(w, x)
    moved = w.choose(w.test(side, whole, x), w.add(whole, step), whole)
    return w.copysign(moved, x)


def round_to_even(w: Writer, x: Val) -> Val:
    """The nearest whole number, halves to the even one."""
    size = w.abs(x)
    limit = 2.0 ** w.form(x).mantissa
    # Numbers from 2^mantissa on have no digits behind the point: the addition rounds to a whole
    # number, halves to even.
    near = w.exact_sub(w.exact_add(size, limit), limit)
    return w.copysign(w.choose(w.test("olt", size, limit), near, size), x)
