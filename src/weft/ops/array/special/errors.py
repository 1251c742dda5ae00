"""The complement of the error function, the normal distribution, and their inverses.

`erfcx`, the complement without its decay, is a polynomial in `(x - 4) / (x + 4)` for all x from 0
on, divided by `1 + 2x`: interpolated at Chebyshev nodes, relative error below 2e-15. The inverses
are M. Wichura's rational functions (algorithm AS 241, 1988), relative error below 1e-15.
"""

from __future__ import annotations

import math

from weft.ops.array.special.formulas import choose, computed, polynomial
from weft.ops.recipes import recorded
from weft.ops.session import Handle

_TAIL = (
    1.232995118625553, -0.1396211168405565, 0.015379652102601435, 0.06809705425414868,
    -0.10103906603579912, 0.09373283501237578, -0.06633036581873684, 0.03716751537002361,
    -0.01619773400753711, 0.005031971094903922, -0.0007577735405321232, -0.0001992612697047385,
    0.0001506225119548225, -2.4387113892660665e-05, -1.122385211272639e-05, 5.688627125602911e-06,
    2.963485772799526e-07, -8.01271404038691e-07, 7.250684845557336e-08, 9.261023622112867e-08,
    -1.6986432716190447e-08, -6.925499036401301e-09, 1.69337293824124e-09,
)  # fmt: skip
_CENTRE = (
    (3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3,
     1.3731693765509461125e4, 4.5921953931549871457e4, 6.7265770927008700853e4,
     3.3430575583588128105e4, 2.5090809287301226727e3),
    (1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3,
     2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4,
     5.2264952788528545610e3),
)  # fmt: skip
_SIDE = (
    (1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0,
     3.64784832476320460504e0, 1.27045825245236838258e0, 2.41780725177450611770e-1,
     2.27238449892691845833e-2, 7.74545014278341407640e-4),
    (1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1,
     1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4,
     1.05075007164441684324e-9),
)  # fmt: skip
_END = (
    (6.65790464350110377720e0, 5.46378491116411436990e0, 1.78482653991729133580e0,
     2.96560571828504891230e-1, 2.65321895265761230930e-2, 1.24266094738807843860e-3,
     2.71155556874348757815e-5, 2.01033439929228813265e-7),
    (1.0, 5.99832206555887937690e-1, 1.36929880922735805310e-1, 1.48753612908506148525e-2,
     7.86869131145613259100e-4, 1.84631831751005468180e-5, 1.42151175831644588870e-7,
     2.04426310338993978564e-15),
)  # fmt: skip


@recorded
def erfc(x: Handle, /) -> Handle:
    """`1 - erf(x)`, accurate where that is small."""
    return computed(complement, x)


def complement(x: Handle) -> Handle:
    size = x.abs()
    near = size.compare("less", 0.5)
    # Beyond 40 all of them are 0, and differences of infinities would be NaN.
    far = choose(near, 1.0, x.session.emit("minimum", size, 40.0))
    tail = _bell(far) * scaled_complement(far)
    beyond = choose(x.compare("less", 0.0), 2.0 - tail, tail)
    return choose(near, 1.0 - x.erf(), beyond)


def _bell(x: Handle, sign: float = -1.0) -> Handle:
    """`exp(-x^2)`, or `exp(x^2)`; the square of a rounded x is exact, and the rest small."""
    rough = (x * 256.0).round() * (1.0 / 256.0)
    return (rough * rough * sign).exp() * ((x - rough) * (x + rough) * sign).exp()


def scaled_complement(x: Handle) -> Handle:
    """`exp(x^2) * erfc(x)` for x from 0 on."""
    bounded = x.session.emit("minimum", x, 1e300)
    return polynomial(_TAIL, (bounded - 4.0) / (bounded + 4.0)) / (x * 2.0 + 1.0)


@recorded
def erfcx(x: Handle, /) -> Handle:
    """`exp(x^2) * erfc(x)`, without the decay of either."""
    return computed(_erfcx, x)


def _erfcx(x: Handle) -> Handle:
    left = x.compare("less", 0.0)
    right = scaled_complement(choose(left, -x, x))
    # From -26.6 on it is infinite, and so is its slope: infinity times a difference is NaN.
    deep = x.compare("less", -26.5)
    low = choose(deep, x, 0.0)
    rise = choose(deep, (low * low).exp(), _bell(choose(left, choose(deep, 0.0, x), 0.0), 1.0))
    return choose(left, rise * 2.0 - right, right)


@recorded
def ndtr(x: Handle, /) -> Handle:
    """The normal distribution: the share of a normal variable that lies below x."""
    return computed(lambda x: complement(x * -math.sqrt(0.5)) * 0.5, x)


@recorded
def log_ndtr(x: Handle, /) -> Handle:
    """The logarithm of `ndtr`, accurate on both sides."""
    return computed(_log_ndtr, x)


def _log_ndtr(x: Handle) -> Handle:
    z = x * math.sqrt(0.5)
    low = x.compare("less", -1.0)
    deep = choose(low, -z, 1.0)
    left = (scaled_complement(deep) * 0.5).log() - deep * deep
    return choose(low, left, (complement(choose(low, 0.0, z)) * -0.5).log1p())


@recorded
def ndtri(x: Handle, /) -> Handle:
    """The inverse of `ndtr`: below which number a share x of a normal variable lies."""
    return computed(lambda p: _quantile(p - 0.5, p.minimum(1.0 - p)), x)


@recorded
def erfinv(x: Handle, /) -> Handle:
    """The inverse of `erf`, from -1 to 1."""
    return computed(lambda y: _quantile(y * 0.5, (1.0 - y.abs()) * 0.5) * math.sqrt(0.5), x)


def _quantile(from_half: Handle, rest: Handle) -> Handle:
    """The number that a share `1/2 + from_half` of a normal variable lies below; `rest` is the
    smaller share, below it or above."""
    centre = from_half.abs().compare("less_equal", 0.425)
    q = choose(centre, from_half, 0.0)
    inner = q * _ratio(_CENTRE, 0.180625 - q * q)
    end = rest.compare("equal", 0.0)
    share = choose(centre.bitwise_or(end), 0.05, rest)
    depth = (-share.log()).sqrt()
    side = depth.compare("less_equal", 5.0)
    outer = choose(
        side,
        _ratio(_SIDE, choose(side, depth - 1.6, 0.0)),
        _ratio(_END, choose(side, 0.0, depth - 5.0)),
    )
    # A logarithm is infinite there as well, and so is its slope.
    outer = choose(end, -choose(end, rest, 1.0).log(), outer)
    outer = choose(from_half.compare("less", 0.0), -outer, outer)
    return choose(centre, inner, outer)


def _ratio(table: tuple[tuple[float, ...], tuple[float, ...]], x: Handle) -> Handle:
    return polynomial(table[0], x) / polynomial(table[1], x)
