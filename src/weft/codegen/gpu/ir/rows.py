"""Statements on the rows of an accumulator, of which an online softmax is made.

Of every 16 rows of an accumulator a thread has elements of two, eight rows apart; its quad, four
neighbouring lanes, has all of both (`Fragment`). Names and factors come in pairs: the upper row's,
then the lower row's. What a whole row shares, the lanes of a quad make by `Shuffle`.
"""

from __future__ import annotations

from typing import TypeAlias

from weft.foundation.records import dataclass


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
    2^-126. With `early` it is `2^((x - shift) * scale)`, which is right for the lowest x too."""

    names: tuple[str, ...]
    target: str
    shifts: tuple[str, ...]
    scale: float
    early: bool = False


@dataclass(frozen=True)
class RowScale:
    """Every element times its row's factor."""

    target: str
    factors: tuple[str, ...]


@dataclass(frozen=True)
class AddShifted:
    """`target[row, column] += source[row, column + by]`, by one column to either side, of arrays
    that hold panels of 64 columns, one after the other. Nothing is added beyond the ends of a
    panel. The whole warp does it at once."""

    target: str
    source: str
    by: int


@dataclass(frozen=True)
class PoolPairs:
    """Values of f32: the largest of every two neighbouring columns of two panels of 64; NaN where
    one is. Of group g of 8 columns a thread gets two, in the upper row and in the lower one: that
    of the columns that it has."""

    names: tuple[str, ...]
    source: str


RowStmt: TypeAlias = RowMax | RowSum | RowExp | RowScale | AddShifted | PoolPairs
