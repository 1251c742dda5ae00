"""For authors of backends and ops: random programs, comparison with the reference, reduction of
failing programs. Strategies for property tests are in `weft.testing.strategies`, which needs
Hypothesis.
"""

from weft.testing.check import Checked, check_results
from weft.testing.compare import Deviation, Report, compare, disagrees
from weft.testing.data import random_inputs
from weft.testing.derivatives import DerivativeErrors, derivative_errors
from weft.testing.generators.registry import GENERATORS, generates
from weft.testing.random_programs import RandomCase, random_program
from weft.testing.reduce import reduce_program
from weft.testing.reproduce import array_of, reproducer
from weft.testing.tolerance import Comparison, compare_results
from weft.testing.widen import widen_arrays, widen_program

__all__ = [
    "GENERATORS",
    "Checked",
    "Comparison",
    "DerivativeErrors",
    "Deviation",
    "RandomCase",
    "Report",
    "array_of",
    "check_results",
    "compare",
    "compare_results",
    "derivative_errors",
    "disagrees",
    "generates",
    "random_inputs",
    "random_program",
    "reduce_program",
    "reproducer",
    "widen_arrays",
    "widen_program",
]
