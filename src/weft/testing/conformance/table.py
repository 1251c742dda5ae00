"""The table of all cases, and the parts of it that a run picks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from functools import cache

from weft.foundation.errors import UserError
from weft.testing.conformance.case import Case
from weft.testing.conformance.cases import (
    cast,
    coarse_attention,
    coarse_images,
    coarse_positions,
    coarse_rows,
    coarse_sampling,
    contraction,
    control,
    custom,
    elementwise,
    indexing,
    library,
    linear_algebra,
    movement,
    normalisation,
    ordering,
    programs,
    quantisation,
    random,
    reduction,
    rejections,
    running,
    scheduling,
    selection,
    tuples,
    window,
)

FAMILIES = (
    elementwise,
    selection,
    cast,
    reduction,
    running,
    contraction,
    movement,
    indexing,
    window,
    ordering,
    random,
    quantisation,
    normalisation,
    linear_algebra,
    tuples,
    scheduling,
    control,
    custom,
    coarse_rows,
    coarse_positions,
    coarse_images,
    coarse_sampling,
    coarse_attention,
    library,
    programs,
)


@cache
def all_cases() -> tuple[Case, ...]:
    """Every case, in a fixed order. Nothing is built or computed yet."""
    found = [case for family in FAMILIES for case in family.cases()]
    return (*found, *rejections.cases(found))


def select(pattern: str | None = None, shard: tuple[int, int] = (1, 1)) -> list[Case]:
    """The cases whose id matches a glob pattern, and of these the i-th of n equal shares."""
    index, count = shard
    matching = [case for case in all_cases() if pattern is None or fnmatchcase(case.id, pattern)]
    return matching[index - 1 :: count]


def parse_shard(text: str) -> tuple[int, int]:
    """`2/5` as (2, 5): the second of five shares."""
    first, slash, second = text.partition("/")
    if not (slash and first.isdecimal() and second.isdecimal()):
        raise UserError(f"the shard {text!r} is not of the form I/N, such as 2/5")
    index, count = int(first), int(second)
    if not 1 <= index <= count:
        raise UserError(f"the shard {text!r} does not exist: I goes from 1 to {max(count, 1)}")
    return index, count


def one_of_each(cases: Sequence[Case]) -> Iterator[Case]:
    """The first case of each cell of the matrix."""
    seen: set[tuple[str, str, object]] = set()
    for case in cases:
        cell = (case.family, case.row, case.dtype)
        if cell not in seen:
            seen.add(cell)
            yield case
