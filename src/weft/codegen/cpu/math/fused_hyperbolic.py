"""asinh and acosh of floats for machines that have fused multiply-adds: polynomials near zero and
near one, and the logarithm of x + sqrt(x^2 +- 1) elsewhere, to which is added what the root and the
sum lost."""

from __future__ import annotations

import math
from typing import Final

from weft.codegen.cpu.code import Val
from weft.codegen.cpu.math.logarithm import inner_log
from weft.codegen.cpu.math.writer import Writer

_ASINH: Final = (-0.1666664332151413, 0.07498640567064285, -0.04438294097781181,
                 0.02816092222929001, -0.013223163783550262)  # fmt: skip
"""(asinh x / x - 1) / x^2 in x^2, up to 1/2."""
_ACOSH: Final = (-0.08333321660757065, 0.018746601417660713, -0.0055478704161942005,
                 0.0017600628780201077, -0.0004132190370000899)  # fmt: skip
"""(acosh(1 + t) / sqrt(2 t) - 1) / t in t, up to 1/2."""
_TINY: Final = 2.0**-13
_HUGE: Final = 2.0**11
"""From here on x^2 is x^2 + 1 to half the last place of the logarithm."""


def asinh(w: Writer, x: Val) -> Val:
    size = w.abs(x)
    held = w.code.intrinsic("llvm.minnum", size, w.like(_HUGE, x))
    grown = w.exact_fma(held, held, 1.0)
    far = _log_of_sum(w, size, held, grown, w.exact_fma(held, held, w.exact_sub(1.0, grown)))
    held = w.choose(w.test("olt", size, _TINY), _TINY, size)
    square = w.mul(held, held)
    near = w.fma(w.mul(held, square), w.poly(_ASINH, square), held)
    near = w.choose(w.test("olt", size, _TINY), size, near)
    return w.copysign(w.choose(w.test("olt", size, 0.5), near, far), x)


def acosh(w: Writer, x: Val) -> Val:
    """NaN below 1."""
    over = w.sub(x, 1.0)
    held = w.code.intrinsic("llvm.minnum", x, w.like(_HUGE, x))
    far = _log_of_sum(w, x, held, w.exact_fma(held, held, -1.0), w.like(0.0, x))
    root = w.sqrt(w.add(over, over))
    near = w.fma(root, w.mul(over, w.poly(_ACOSH, over)), root)
    return w.choose(w.test("olt", over, 0.5), near, far)


def _log_of_sum(w: Writer, x: Val, held: Val, square: Val, lost: Val) -> Val:
    """ln(x + sqrt(square + lost)), or ln x + ln 2 beyond what is held."""
    root = w.sqrt(square)
    left = w.add(w.exact_fma(w.neg(root), root, square), lost)
    total = w.exact_add(root, held)
    # The root may be the smaller one by little, which leaves its error as small.
    low = w.fma(left, w.div(0.5, root), w.exact_add(w.exact_sub(root, total), held))
    # The reciprocal of the sum is the difference.
    more = w.mul(low, w.abs(w.exact_sub(root, held)))
    huge = w.test("ogt", x, _HUGE)
    found = w.add(inner_log(w, w.choose(huge, x, total)), w.choose(huge, math.log(2), more))
    return w.choose(w.test("olt", x, math.inf), found, x)
