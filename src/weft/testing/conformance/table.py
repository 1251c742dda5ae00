"""The table of all cases, and the parts of it that a run picks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from functools import cache, partial
from typing import NoReturn

from weft.foundation.errors import UserError
from weft.testing.conformance.case import Case, Values
from weft.testing.conformance.cases import (
    cast,
    coarse_attention,
    coarse_fourier,
    coarse_grouped,
    coarse_images,
    coarse_positions,
    coarse_rows,
    coarse_sampling,
    collective,
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
    running_reductions,
    scheduling,
    selection,
    tuples,
    window,
)
from weft.testing.conformance.cases.common import case, judged, table

FAMILIES = (
    elementwise,
    selection,
    cast,
    reduction,
    running_reductions,
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
    collective,
    coarse_rows,
    coarse_positions,
    coarse_images,
    coarse_sampling,
    coarse_attention,
    coarse_fourier,
    coarse_grouped,
    library,
    programs,
)


@cache
def all_cases() -> tuple[Case, ...]:
    """Every case, in a fixed order. Nothing is built or computed yet."""
    found = [made for family in FAMILIES for made in family.cases()]
    return (*found, *rejections.cases(found), *_make_missing({made.row for made in found}))


def _make_missing(rows: set[str]) -> Iterator[Case]:
    """For each op that no family knows one case, which fails and says so."""
    for row in table():
        if row not in rows:
            nothing = partial(judged, partial(_make_unknown, row), (), Values(()))
            yield case(row, None, "no-case", trial=nothing)


def _make_unknown(row: str) -> NoReturn:
    raise UserError(f"the kit has no case for the op {row}; add one under conformance/cases")


def select(pattern: str | None = None, shard: tuple[int, int] = (1, 1)) -> list[Case]:
    """The cases whose id matches a glob pattern, and of these the i-th of n equal shares."""
    index, count = shard
    matching = [made for made in all_cases() if pattern is None or fnmatchcase(made.id, pattern)]
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
    for made in cases:
        cell = (made.family, made.row, made.dtype)
        if cell not in seen:
            seen.add(cell)
            yield made
