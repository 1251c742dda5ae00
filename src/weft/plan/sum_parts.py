"""Split-K: into how many parts a plan divides the sums of a contraction, and how the parts become
one.

split_k N                            serial: each part is added to the ones before it, in turn
algo_choice matmul splitk_serial_N   the same
algo_choice matmul splitk_parallel_N whoever comes last adds up all parts, the first one first
"""

from __future__ import annotations

import re
from typing import Final

from weft.foundation.records import dataclass
from weft.plan.ir import MmaPlan

SPLITTING: Final = re.compile(r"splitk_(serial|parallel)_([1-9]\d*)")


@dataclass(frozen=True)
class SumParts:
    """So many parts, which wait for one another (serial) or do not (parallel)."""

    count: int
    parallel: bool = False


def sum_parts(plan: MmaPlan) -> SumParts:
    """What a plan says; where it names an algorithm, that has the word."""
    named = SPLITTING.fullmatch(plan.algo_choice.get("matmul", ""))
    if named is None:
        return SumParts(plan.split_k)
    return SumParts(int(named[2]), parallel=named[1] == "parallel")


def contradiction(plan: MmaPlan) -> str:
    """Why the fields that speak of parts do not agree; empty where they do."""
    chosen = plan.algo_choice.get("matmul", "")
    if plan.split_k in (1, sum_parts(plan).count):
        return ""
    return f"split_k={plan.split_k} and algo_choice.matmul={chosen} do not agree"
