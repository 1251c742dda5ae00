"""A conformance case: a program, its inputs, and the expected results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from numpy.typing import NDArray

from weft.foundation.dtypes import DType, as_dtype
from weft.ptir.ir import Program
from weft.testing.conformance.tolerance import Exact, Rule

Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True)
class Wanted:
    """One expected tensor: the exact value, the dtype of the result, and how close it must come."""

    exact: Array
    dtype: DType
    rule: Rule


def exactly(array: Array, *, zeros: bool = True) -> Wanted:
    """The expectation of exactly these elements."""
    return Wanted(array, as_dtype(array.dtype), Exact(zeros))


@dataclass(frozen=True)
class Values:
    """The program gives these tensors, tuples flattened in order."""

    wanted: tuple[Wanted, ...]
    or_refused: bool = False
    """Whether `Unimplemented` is as right an answer."""


@dataclass(frozen=True)
class Holds:
    """The program gives tensors of these dtypes and shapes for which a property holds."""

    property: str
    kinds: tuple[tuple[DType, tuple[int, ...]], ...]
    check: Callable[[Sequence[Array]], str] = field(repr=False)
    """What is wrong with the results; nothing when the property holds."""


@dataclass(frozen=True)
class Rejected:
    """The program breaks a rule: a `SpecViolation` with this code, before or while it runs."""

    code: str


@dataclass(frozen=True)
class Refused:
    """The program is valid, and nobody can know how to run it: `Unimplemented`."""


Expectation: TypeAlias = Values | Holds | Rejected | Refused


@dataclass(frozen=True)
class Trial:
    """A case made concrete. The program is built when it is run: a rejected one may not get that
    far."""

    program: Callable[[], Program] = field(repr=False)
    inputs: tuple[Array, ...]
    expected: Expectation
    seed: int = 0


@dataclass(frozen=True)
class Case:
    """One line of the table. Nothing is built or computed before `trial` is called."""

    id: str
    """Stable and readable: `dot_general/bf16/batched/accum=f32`."""
    family: str
    row: str
    """The row of the matrix: an op as it is spelled in text, a library form, or a code."""
    dtype: DType | None
    """The column of the matrix; None for cases that are about no dtype."""
    trial: Callable[[], Trial] = field(repr=False, compare=False)
