"""Document 2's check of a compiled program (section 9): against the reference, which computes in
f32 at least and rounds where the program says, at rtol = atol = 1e-3.

Sums in another order may end on the other side of a rounding, so results of a narrow float are
granted a unit in the last place of the largest of them besides. Integers and booleans have to be
equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from weft.driver.execute import run
from weft.foundation.dtypes import as_dtype
from weft.ptir.ir import Program

Array = NDArray[Any]
RTOL: Final = 1e-3
ATOL: Final = 1e-3


@dataclass(frozen=True)
class Checked:
    """One result beside the reference: how far it is off at worst, where, and what is allowed."""

    number: int
    kind: str
    error: float
    allowed: float
    place: tuple[int, ...]

    @property
    def passes(self) -> bool:
        return self.error <= self.allowed

    def __str__(self) -> str:
        verdict = "agrees" if self.passes else "differs"
        where = f" at {list(self.place)}" if self.place else ""
        return (
            f"output {self.number}, {self.kind}: {verdict}, off by {self.error:.2g}{where}, where "
            f"{self.allowed:.2g} is allowed"
        )


def check_results(
    program: Program, inputs: Sequence[Array], results: Sequence[Array], *, seed: int = 0
) -> list[Checked]:
    """Every result of a program, given the inputs it was computed from."""
    wanted = run(program, inputs, backend="reference", seed=seed)
    pairs = zip(results, wanted, strict=True)
    return [_worst_element(number, got, want) for number, (got, want) in enumerate(pairs)]


def _worst_element(number: int, got: Array, want: Array) -> Checked:
    """The element that is off by most of what it may be off."""
    dtype = as_dtype(got.dtype)
    kind = f"{dtype}{list(got.shape)}"
    if not (dtype.is_float or dtype.is_complex):
        shares = errors = (got != want).astype(np.float64)
        allowed = np.zeros(got.shape)
    else:
        errors, allowed = _errors(got, want)
        shares = errors / allowed
    if got.size == 0:
        return Checked(number, kind, 0.0, ATOL, ())
    worst = np.unravel_index(int(np.argmax(shares)), got.shape)
    place = tuple(int(index) for index in worst)
    return Checked(number, kind, float(errors[worst]), float(allowed[worst]), place)


def _errors(got: Array, want: Array) -> tuple[Array, Array]:
    """How far every element is off, and how far it may be."""
    dtype = as_dtype(got.dtype)
    wide = np.complex128 if dtype.is_complex else np.float64
    found, truth = got.astype(wide), np.asarray(want).astype(wide)
    same = (found == truth) | (np.isnan(found) & np.isnan(truth))
    with np.errstate(invalid="ignore", over="ignore"):
        errors = np.where(same, 0.0, np.abs(found - truth))
        size = np.abs(truth)
    size = np.where(np.isfinite(size), size, 0.0)
    allowed = ATOL + RTOL * size
    if dtype.is_float and dtype.storage_bytes < 4:
        allowed = allowed + np.ldexp(1.0, np.frexp(size.max(initial=0.0))[1] - dtype.precision)
    return np.where(np.isnan(errors), np.inf, errors), allowed
