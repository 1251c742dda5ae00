"""The complement of the error function, the normal distribution, and their inverses.

`erfcx`, the complement without its decay, is a polynomial in `(x - 4) / (x + 4)` for all x from 0
on, divided by `1 + 2x`: interpolated at Chebyshev nodes, relative error below 2e-15. The inverses
are M. Wichura's rational functions (algorithm AS 241, 1988), relative error below 1e-15: of each a
line is taken out that is most of it, so that the rounding of the ratio counts for little.
"""

from __future__ import annotations

import math

from weft.ops.array.special.formulas import choose, computed, of_pair, polynomial
from weft.ops.capture_recipes import recorded
from weft.ops.session import Handle
from weft.ops.tensor import Tensor

_TAIL = (
    1.232995118625553, -0.1396211168405565, 0.015379652102601435, 0.06809705425414868,
    -0.10103906603579912, 0.09373283501237578, -0.06633036581873684, 0.03716751537002361,
    -0.01619773400753711, 0.005031971094903922, -0.0007577735405321232, -0.0001992612697047385,
    0.0001506225119548225, -2.4387113892660665e-05, -1.122385211272639e-05, 5.688627125602911e-06,
    2.963485772799526e-07, -8.01271404038691e-07, 7.250684845557336e-08, 9.261023622112867e-08,
    -1.6986432716190447e-08, -6.925499036401301e-09, 1.69337293824124e-09,
)  # fmt: skip
_ERF = (
    1.1283791670955126, -0.37612638903182893, 0.11283791670875191, -0.02686617061644049,
    0.005223977108911068, -0.0008548274774244644, 0.00012052229657793273, -1.4818204900522826e-05,
    1.444544611073081e-06,
)  # fmt: skip
"""`erf(x) / x` in `x^2`, up to 1/2."""
_EXP = tuple(1 / math.factorial(k) for k in range(9))
_CENTRE = (
    (0.8871328727963667, 27.358341137782098, 253.62343157640666, 246.20371194758334,
     -7112.5318224166185, -31003.968573223076, -38392.138755716725, -10557.157268402014),
    (1.0, 42.31333070160091, 687.1870074920579, 5394.196021424751, 21213.794301586597,
     39307.89580009271, 28729.085735721943, 5226.495278852854),
)  # fmt: skip
_SIDE = (
    (0.17343711074968357, 0.5638483128593468, 0.5942287437742984, 0.27106191075612385,
     0.05067727944036828, 0.0006264273317099283, -0.0007586471167799194, -4.684701190854989e-05,
     -1.5761251074666253e-09),
    (1.0, 2.053191626637759, 1.6763848301838038, 0.6897673349851, 0.14810397642748008,
     0.015198666563616457, 0.0005475938084995345, 1.0507500716444169e-09),
)  # fmt: skip
_END = (
    (0.15790464350110378, 0.12737556855084278, 0.03252351699541969, 0.0030340196115431744,
     3.420831853187806e-05, -8.474119271894175e-06, -3.492527696778501e-07,
     -3.3088886164704553e-09, -2.9386282111230383e-15),
    (1.0, 0.599832206555888, 0.1369298809227358, 0.014875361290850615, 0.0007868691311456133,
     1.8463183175100548e-05, 1.421511758316446e-07, 2.0442631033899397e-15),
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
    small = choose(near, x, 0.0)
    return choose(near, 1.0 - small * polynomial(_ERF, small * small), beyond)


def _bell(x: Handle, sign: float = -1.0) -> Handle:
    """`exp(-x^2)`, or `exp(x^2)`, for an x of up to 40; the square of a rounded x is exact, and the
    rest at most 0.04."""
    rough = (x * 1024.0).round() * (1.0 / 1024.0)
    rest = (x - rough) * (x + rough) * sign
    return (rough * rough * sign).exp() * polynomial(_EXP, rest)


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


def normal_quantile(from_half: Tensor, rest: Tensor) -> Tensor:
    """`ndtri(1/2 + from_half)` in f64, of shares that are exact to their last bit near a half and
    near 0 or 1: `rest` is the smaller share, below or above."""
    return of_pair(_quantile, from_half, rest)


def _quantile(from_half: Handle, rest: Handle) -> Handle:
    """The number that a share `1/2 + from_half` of a normal variable lies below; `rest` is the
    smaller share, below it or above."""
    centre = from_half.abs().compare("less_equal", 0.425)
    q = choose(centre, from_half, 0.0)
    inner = q * (2.5 + _ratio(_CENTRE, 0.180625 - q * q))
    end = rest.compare("equal", 0.0)
    share = choose(centre.bitwise_or(end), 0.05, rest)
    depth = (-share.log()).sqrt()
    side = depth.compare("less_equal", 5.0)
    near, deep = choose(side, depth - 1.6, 0.0), choose(side, 0.0, depth - 5.0)
    outer = choose(
        side,
        near * 1.5 + (1.25 + _ratio(_SIDE, near)),
        deep * 1.4375 + (6.5 + _ratio(_END, deep)),
    )
    # A logarithm is infinite there as well, and so is its slope.
    outer = choose(end, -choose(end, rest, 1.0).log(), outer)
    outer = choose(from_half.compare("less", 0.0), -outer, outer)
    return choose(centre, inner, outer)


def _ratio(table: tuple[tuple[float, ...], tuple[float, ...]], x: Handle) -> Handle:
    return polynomial(table[0], x) / polynomial(table[1], x)
