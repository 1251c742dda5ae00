"""The conformance kit: does a backend carry out what PTIR says?

    from weft.driver.backends import get_backend
    from weft.testing.conformance import run_cases, select

    for result in run_cases(select("dot_general/*"), get_backend("mine")):
        print(result.id, result.outcome, result.reason)

A case is a program, its inputs, and what must come of it: tensors with a tolerance, a property, or
a rejection with its code. Expected values come from `oracles`, which run nothing of Weft. On the
command line this is `weft conformance --backend mine`.
"""

from weft.testing.conformance.case import Case, Holds, Refused, Rejected, Trial, Values, Wanted
from weft.testing.conformance.matrix import Cell, Matrix, State
from weft.testing.conformance.run import Failure, Outcome, Result, run_case, run_cases
from weft.testing.conformance.table import all_cases, parse_shard, select

__all__ = [
    "Case",
    "Cell",
    "Failure",
    "Holds",
    "Matrix",
    "Outcome",
    "Refused",
    "Rejected",
    "Result",
    "State",
    "Trial",
    "Values",
    "Wanted",
    "all_cases",
    "parse_shard",
    "run_case",
    "run_cases",
    "select",
]
