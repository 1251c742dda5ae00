"""`weft.random`: random numbers as functions of a key, in and out of `jit`.

The generator is Philox4x32-10, which PTIR specifies. Bits, uniform numbers, integers, booleans,
orders and choices without weights are the same on every backend; all else up to a few ulp.
"""

from weft.ops.random.continuous import categorical, exponential, gumbel, laplace, normal
from weft.ops.random.default import rand, randn, seed
from weft.ops.random.keys import bits, fold_in, key, split
from weft.ops.random.orders import choice, permutation, shuffle
from weft.ops.random.uniform import bernoulli, randint, uniform

__all__ = [
    "bernoulli",
    "bits",
    "categorical",
    "choice",
    "exponential",
    "fold_in",
    "gumbel",
    "key",
    "laplace",
    "normal",
    "permutation",
    "rand",
    "randint",
    "randn",
    "seed",
    "shuffle",
    "split",
    "uniform",
]


def __dir__() -> list[str]:
    return __all__
