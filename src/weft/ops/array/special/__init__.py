"""`weft.special`: functions of mathematical physics and statistics, element by element.

They are formulas in the other functions, so that every backend has them, and they are
differentiated as those are. All are computed in f64 and rounded once.
"""

from typing import TYPE_CHECKING

from weft.ops.array.special.bessel import i0, i0e, i1, i1e
from weft.ops.array.special.errors import erfc, erfcx, erfinv, log_ndtr, ndtr, ndtri
from weft.ops.array.special.gammas import digamma, lgamma, polygamma, zeta
from weft.ops.array.special.incomplete import betainc, igamma, igammac
from weft.ops.array.special.logs import entr, logit, sinc, xlog1py, xlogy
from weft.ops.other_names import missing

__all__ = [
    "betainc", "digamma", "entr", "erfc", "erfcx", "erfinv", "i0", "i0e", "i1", "i1e", "igamma",
    "igammac", "lgamma", "log_ndtr", "logit", "ndtr", "ndtri", "polygamma", "sinc", "xlog1py",
    "xlogy", "zeta",
]  # fmt: skip


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise missing("weft.special", name, __all__)


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)
