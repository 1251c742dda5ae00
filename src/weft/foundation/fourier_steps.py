"""Discrete Fourier transforms of one length in steps: which factors go one after the other, and the
roots of one that each step multiplies by.

A step of factor r takes `length` elements of `columns` columns apart into r times as many columns:

    y[(r j + p) columns + k] = w^(j p) sum(x[(j + l q) columns + k] v^(p q) for q in range(r))

where l = length / r, and w, v are the roots exp(-2 pi i / length) and exp(-2 pi i / r). The next
step has l elements and r times as many columns; after the last one everything is in order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from weft.foundation.memo import memo

LEAST: Final = 32
MOST: Final = 1 << 16
"""Lengths that are taken in steps, at least and at most."""
_ODD: Final = (3, 5, 7, 11, 13)
_EIGHT, _FOUR, _TWO = 8, 4, 2


@dataclass(frozen=True)
class Step:
    """One factor, and how many elements of how many columns it finds."""

    factor: int
    length: int
    columns: int
    table: int
    """Where its roots begin in the table: of the first step all real parts of each p, then the
    imaginary ones; of others a pair for each p of each j."""

    @property
    def rest(self) -> int:
        return self.length // self.factor

    @property
    def roots(self) -> int:
        """Numbers of the table; none where all roots are one."""
        return 2 * (self.factor - 1) * self.rest if self.rest > 1 else 0


@memo(64)
def steps_of(size: int) -> tuple[Step, ...]:
    """The steps of a size; none for one that is taken otherwise."""
    if not LEAST <= size <= MOST:
        return ()
    steps: list[Step] = []
    length, columns, table = size, 1, 0
    for factor in _factors(size):
        steps.append(Step(factor, length, columns, table))
        length, columns, table = length // factor, columns * factor, table + steps[-1].roots
    return tuple(steps) if length == 1 else ()


def _factors(size: int) -> Iterator[int]:
    """Of two, a first factor that leaves as many elements as it has, and then large ones; odd ones
    come last. Sizes without a factor of two have none."""
    twos = (size & -size).bit_length() - 1
    if not twos:
        return
    first = next(f for f in (_EIGHT, _FOUR, _TWO) if size % f == 0 and size // f >= f)
    yield first
    twos -= first.bit_length() - 1
    while twos:
        factor = _FOUR if twos in (2, 4) else min(_EIGHT, 1 << twos)
        yield factor
        twos -= factor.bit_length() - 1
    odd = size // (size & -size)
    for factor in reversed(_ODD):
        while odd % factor == 0:
            yield factor
            odd //= factor


@memo(64)
def table_of(size: int) -> NDArray[Any]:
    """The roots of all steps, in doubles."""
    steps = steps_of(size)
    found = np.empty(steps[-1].table)
    for number, step in enumerate(steps[:-1]):
        j, p = np.arange(step.rest), np.arange(1, step.factor)
        angle = -2 * math.pi * (np.outer(p, j) % step.length) / step.length
        parts = np.stack([np.cos(angle), np.sin(angle)])
        order = (1, 0, 2) if number == 0 else (2, 1, 0)
        found[step.table : step.table + step.roots] = parts.transpose(order).reshape(-1)
    return found
