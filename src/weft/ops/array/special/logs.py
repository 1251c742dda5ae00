"""Logarithms beside factors that may be 0, and `sinc`."""

from __future__ import annotations

import math
from typing import Any

from weft.ops.array.special.formulas import choose, computed, of_pair, sine
from weft.ops.calls import public
from weft.ops.capture_recipes import recorded
from weft.ops.session import Handle
from weft.ops.tensor import Tensor


@public
def xlogy(x: Any, y: Any, /) -> Tensor:
    """`x * log(y)`, and 0 where x is 0 unless y is NaN."""
    return of_pair(_xlogy, x, y)


def _xlogy(x: Handle, y: Handle) -> Handle:
    none = _no_product(x, y)
    return choose(none, 0.0, x * choose(none, 1.0, y).log())


@public
def xlog1py(x: Any, y: Any, /) -> Tensor:
    """`x * log(1 + y)`, and 0 where x is 0 unless y is NaN."""
    return of_pair(_xlog1py, x, y)


def _xlog1py(x: Handle, y: Handle) -> Handle:
    none = _no_product(x, y + 1.0)
    return choose(none, 0.0, x * choose(none, 0.0, y).log1p())


def _no_product(x: Handle, y: Handle) -> Handle:
    """Where x is 0 and the logarithm of y is no finite number. Elsewhere the product is 0 by
    itself, and has its slope in x."""
    outside = y.compare("less_equal", 0.0).bitwise_or(y.compare("equal", math.inf))
    return x.compare("equal", 0.0).bitwise_and(outside)


@recorded
def entr(x: Handle, /) -> Handle:
    """`-x * log(x)`, 0 at 0, and -Inf below."""
    return computed(_entropy, x)


def _entropy(x: Handle) -> Handle:
    positive = x.compare("greater", 0.0)
    inside = -(x * choose(positive, x, 1.0).log())
    zero = x.compare("equal", 0.0)
    # A root is 0 at 0 as well, and as steep.
    start = choose(zero, choose(zero, x, 1.0).sqrt(), -math.inf)
    return choose(x.isnan(), x, choose(positive, inside, start))


@recorded
def logit(x: Handle, /) -> Handle:
    """`log(x / (1 - x))`, the inverse of the sigmoid."""
    return computed(lambda x: x.log() - (-x).log1p(), x)


@recorded
def sinc(x: Handle, /) -> Handle:
    """`sin(pi x) / (pi x)`, and 1 at 0."""
    return computed(_sinc, x)


def _sinc(x: Handle) -> Handle:
    zero = x.compare("equal", 0.0)
    safe = choose(zero, 1.0, x)
    return choose(zero, 1.0, sine(safe) / (safe * math.pi))
