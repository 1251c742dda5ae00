"""`weft.random`: random numbers as functions of a key, in and out of `jit`.

The generator is Philox4x32-10, which PTIR specifies. Bits, uniform numbers, integers, booleans,
orders and choices without weights are the same on every backend; all else up to a few ulp.
"""

from typing import TYPE_CHECKING

from weft.ops.other_names import missing
from weft.ops.random.continuous import (
    categorical,
    exponential,
    gumbel,
    laplace,
    normal,
    truncated_normal,
)
from weft.ops.random.default import rand, randn, seed
from weft.ops.random.keys import bits, fold_in, key, split
from weft.ops.random.orders import choice, permutation, shuffle
from weft.ops.random.rejection import beta, dirichlet, gamma, poisson
from weft.ops.random.uniform import bernoulli, randint, uniform

__all__ = [
    "bernoulli",
    "beta",
    "bits",
    "categorical",
    "choice",
    "dirichlet",
    "exponential",
    "fold_in",
    "gamma",
    "gumbel",
    "key",
    "laplace",
    "normal",
    "permutation",
    "poisson",
    "rand",
    "randint",
    "randn",
    "seed",
    "shuffle",
    "split",
    "truncated_normal",
    "uniform",
]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise missing("weft.random", name, __all__)


def __dir__() -> list[str]:
    return __all__
