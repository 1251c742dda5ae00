"""A prover for the verifier: integer sets where interval arithmetic does not suffice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.foundation.index_expr import Guard, axes_of, constant, params_of
from weft.poly.sets import Domain, IslBudget, is_empty

_FAR = 1 << 40
"""Beyond every index: guards with it are bounded on one side only."""


def holds(wanted: Guard, guards: Sequence[Guard], ranges: Mapping[str, tuple[int, int]]) -> bool:
    """Whether `wanted` holds wherever `guards` do; False also where that is not known."""
    every = (wanted, *guards)
    axes = sorted({name for guard in every for name in axes_of(guard.expr)})
    params = sorted({name for guard in every for name in params_of(guard.expr)})
    domain = Domain(
        tuple((name, *ranges[name]) for name in axes),
        tuple((name, *ranges[name]) for name in params),
        tuple(guards),
    )
    # 0 <= e < n fails where e < 0, which is 0 <= -1 - e, or where 0 <= e - n. It holds if neither
    # set has a point; a set that isl could not measure proves nothing.
    below = Guard(constant(-1) - wanted.expr, _FAR)
    above = Guard(wanted.expr - wanted.size, _FAR)
    try:
        return is_empty(domain.where(below)) and is_empty(domain.where(above))
    except IslBudget:
        return False
