"""Optimal fusion of a window of blocks, as a mixed-integer program.

    minimise    sum of seconds(c) * taken(c)                             over candidates c
    subject to  sum of taken(c) over c of root r   = stored(r)           1 for roots outside
                sum of taken(c) over c of root r that reads b from memory <= stored(b)
                sum of taken(c) over c of root r that computes b          <= 1 - stored(b)
                sum of taken(c) over c that compute the heavy block h     <= 1

A candidate is one kernel: a root, and which blocks of the window it computes on the way and which
it reads. A solution stores every block or computes it wherever it is read, never both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Final, TypeVar

import highspy
import numpy as np

from weft.foundation.records import dataclass
from weft.region.fusion.windows import TIME_LIMIT

_Key = TypeVar("_Key")
_MICRO: Final = 1e6
"""Times are given to the solver in microseconds: its tolerances are absolute."""


@dataclass(frozen=True)
class Candidate:
    """A kernel that stores `root`. Blocks of the window are numbers; a root beyond them is a block
    outside, which is stored in any case. `heavy` numbers what may be computed once."""

    root: int
    computed: tuple[int, ...]
    read: tuple[int, ...]
    heavy: tuple[int, ...]
    seconds: float


@dataclass(frozen=True)
class Window:
    """Blocks 0 to `blocks` - 1, of which each is stored or not, and the kernels there could be."""

    blocks: int
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True)
class Solution:
    """Which blocks are stored, what the kernels then take, and whether nothing takes less."""

    stored: frozenset[int]
    seconds: float
    proved: bool


@dataclass
class _Rows:
    """Constraints, as the solver reads them."""

    starts: list[int] = field(default_factory=lambda: [0])
    columns: list[int] = field(default_factory=list)
    factors: list[float] = field(default_factory=list)
    lower: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)

    def add(self, terms: Mapping[int, float], lower: float, upper: float) -> None:
        self.columns += terms.keys()
        self.factors += terms.values()
        self.starts.append(len(self.columns))
        self.lower.append(lower)
        self.upper.append(upper)


def solve(window: Window, time_limit: float = TIME_LIMIT) -> Solution | None:
    """The cheapest choice; None where the solver found none in time."""
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("time_limit", time_limit)
    solver.setOptionValue("mip_rel_gap", 0.0)
    solver.passModel(_model(window))
    solver.run()
    status = solver.getModelStatus()
    proved = status == highspy.HighsModelStatus.kOptimal
    if not proved and not np.isfinite(solver.getInfo().objective_function_value):
        return None
    taken = np.asarray(solver.getSolution().col_value) > 0.5
    if len(taken) == 0:
        return None
    seconds = sum(
        c.seconds for c, is_taken in zip(window.candidates, taken, strict=False) if is_taken
    )
    stored = frozenset(np.flatnonzero(taken[len(window.candidates) :]).tolist())
    return Solution(stored, seconds, proved)


def _model(window: Window) -> highspy.HighsLp:
    rows, count = _constraints(window), len(window.candidates) + window.blocks
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = count, len(rows.lower)
    costs = [_MICRO * c.seconds for c in window.candidates]
    model.col_cost_ = np.array(costs + [0.0] * window.blocks)
    model.col_lower_, model.col_upper_ = np.zeros(count), np.ones(count)
    model.integrality_ = [highspy.HighsVarType.kInteger] * count
    model.row_lower_, model.row_upper_ = np.array(rows.lower), np.array(rows.upper)
    model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    model.a_matrix_.start_ = np.array(rows.starts, np.int32)
    model.a_matrix_.index_ = np.array(rows.columns, np.int32)
    model.a_matrix_.value_ = np.array(rows.factors)
    return model


def _constraints(window: Window) -> _Rows:
    rows, first = _Rows(), len(window.candidates)
    of_root = _group_by_key((c.root, n) for n, c in enumerate(window.candidates))
    for root in sorted({*range(window.blocks), *of_root}):
        own = of_root.get(root, [])
        if root < window.blocks:
            rows.add({**_ones(own), first + root: -1.0}, 0.0, 0.0)
        else:
            rows.add(_ones(own), 1.0, 1.0)
        read = _group_by_key((b, n) for n in own for b in window.candidates[n].read)
        computed = _group_by_key((b, n) for n in own for b in window.candidates[n].computed)
        # At most one candidate of a root is taken, so that all that read a block share one
        # constraint: fewer rows than one for each, and a tighter relaxation.
        for block, there in read.items():
            rows.add({**_ones(there), first + block: -1.0}, -np.inf, 0.0)
        for block, there in computed.items():
            rows.add({**_ones(there), first + block: 1.0}, -np.inf, 1.0)
    heavy = _group_by_key((block, n) for n, c in enumerate(window.candidates) for block in c.heavy)
    for there in heavy.values():
        rows.add(_ones(there), -np.inf, 1.0)
    return rows


def _group_by_key(pairs: Iterable[tuple[_Key, int]]) -> dict[_Key, list[int]]:
    found: dict[_Key, list[int]] = {}
    for key, number in pairs:
        found.setdefault(key, []).append(number)
    return found


def _ones(columns: Sequence[int]) -> dict[int, float]:
    return dict.fromkeys(columns, 1.0)
