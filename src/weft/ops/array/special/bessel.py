"""Modified Bessel functions of the first kind, of order 0 and 1.

Up to 8 the power series, all of whose terms are positive; beyond, `sqrt(x) * exp(-x)` times the
function is a polynomial in 1/x, interpolated at Chebyshev nodes; relative error below 3e-15.
"""

from __future__ import annotations

import math

from weft.ops.array.special.formulas import choose, computed, polynomial
from weft.ops.capture_recipes import recorded
from weft.ops.session import Handle

BORDER = 8.0
_NEAR_0 = tuple(1.0 / math.factorial(k) ** 2 for k in range(24))
_NEAR_1 = tuple(0.5 / (math.factorial(k) * math.factorial(k + 1)) for k in range(24))
# In 16 / x - 1, for x from 8 on.
_FAR_0 = (
    0.4021765094450083, 0.00336055198366679, 0.00013621607437796425, 1.1143033865990556e-05,
    1.4838481632361102e-06, 2.97358213987747e-07, 8.871247262526447e-08, 3.934253440866681e-08,
    2.162902204574057e-08, 7.461103338268415e-09, -7.138925239078409e-09, -1.3090745247997727e-08,
    -4.2094468199549034e-09, 6.864061373301433e-09, 5.0427347562867595e-09,
    -2.5393691861378474e-09, -2.7955828285607272e-09, 6.462014011253829e-10, 9.033957396181186e-10,
    -8.295200769459326e-11, -1.3320608326748495e-10,
)  # fmt: skip
_FAR_1 = (
    0.3893984590258724, -0.009749577193235196, -0.00021923576382256666, -1.5038547244712669e-05,
    -1.834910602760118e-06, -3.483845633425782e-07, -1.0000515483279065e-07,
    -4.3139898858127426e-08, -2.343980809921288e-08, -8.364510202548635e-09,
    7.0658594225425395e-09, 1.3806473884636546e-08, 4.9206843183040595e-09, -7.118903033091128e-09,
    -5.695228019040045e-09, 2.6463498374053563e-09, 3.2244071182169055e-09, -6.939936392589193e-10,
    -1.084751127439188e-09, 9.388483171998606e-11, 1.6833653790205113e-10,
)  # fmt: skip


@recorded
def i0(x: Handle, /) -> Handle:
    """The modified Bessel function of order 0."""
    return computed(lambda x: _grow_by_exp(_scaled_0(x), x, x.abs()), x)


@recorded
def i0e(x: Handle, /) -> Handle:
    """The modified Bessel function of order 0, times `exp(-|x|)`."""
    return computed(_scaled_0, x)


@recorded
def i1(x: Handle, /) -> Handle:
    """The modified Bessel function of order 1."""
    return computed(lambda x: _grow_by_exp(_scaled_1(x), x, x), x)


@recorded
def i1e(x: Handle, /) -> Handle:
    """The modified Bessel function of order 1, times `exp(-|x|)`."""
    return computed(_scaled_1, x)


def _scaled_0(x: Handle) -> Handle:
    size = x.abs()
    near = size.compare("less", BORDER)
    small = choose(near, x, 0.0)
    # Where a branch is not chosen its argument is one at which it is finite, slope included.
    return choose(near, polynomial(_NEAR_0, small * small * 0.25), 1.0) * choose(
        near, (-size).exp(), _far_from_zero(_FAR_0, size, near)
    )


def _scaled_1(x: Handle) -> Handle:
    size = x.abs()
    near = size.compare("less", BORDER)
    small = choose(near, x, 0.0)
    series = small * polynomial(_NEAR_1, small * small * 0.25)
    far = _far_from_zero(_FAR_1, size, near)
    return choose(near, series * (-size).exp(), choose(x.compare("less", 0.0), -far, far))


def _far_from_zero(coefficients: tuple[float, ...], size: Handle, near: Handle) -> Handle:
    large = choose(near, BORDER, size)
    return polynomial(coefficients, large.reciprocal() * (2 * BORDER) - 1.0) * large.rsqrt()


def _grow_by_exp(x: Handle, argument: Handle, infinite: Handle) -> Handle:
    """Times `exp(|x|)`, in two steps: the first may be in range where the whole is not."""
    half = (argument.abs() * 0.5).exp()
    return choose(argument.isinf(), infinite, x * half * half)
