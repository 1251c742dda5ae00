"""Statements on the rows of an accumulator, of which a softmax over blocks of columns is made.

Of every 16 rows of an accumulator a thread has elements of two, eight rows apart; its quad, four
neighbouring lanes, has all of both (`Fragment`). Names and factors come in pairs: the upper row's,
then the lower row's. What a whole row shares, the lanes of a quad make by `Shuffle`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class RowMax:
    """Two values of f32: the largest of the thread's elements in each of its rows; NaN where one
    is."""

    names: tuple[str, ...]
    source: str


@dataclass(frozen=True)
class RowSum:
    """Two values of f32: the sums of the thread's elements in each of its rows."""

    names: tuple[str, ...]
    source: str


@dataclass(frozen=True)
class RowExp:
    """`x = 2^(x * scale - shift)` for every element, each row with its shift, and two values of
    f32: the sums of the thread's elements in each of its rows. Powers are within 2 ulp, and 0 below
    2^-126."""

    names: tuple[str, ...]
    target: str
    shifts: tuple[str, ...]
    scale: float


@dataclass(frozen=True)
class RowScale:
    """Every element times its row's factor."""

    target: str
    factors: tuple[str, ...]


RowStmt: TypeAlias = RowMax | RowSum | RowExp | RowScale
