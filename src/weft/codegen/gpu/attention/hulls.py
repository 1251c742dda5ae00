"""Block ranges of a masked attention: which blocks of columns a tile of rows visits, where tables
made at run time say so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Final

from weft.codegen.gpu import ir
from weft.codegen.gpu.attention.work import TILE, Work
from weft.codegen.gpu.ir.scalar import Lit, Name, Scalar, least, most
from weft.codegen.gpu.ir.values import PlaceOf
from weft.codegen.gpu.products.tile_place import offset
from weft.foundation.dtypes import SI32
from weft.region.forms.bands import HULL_ROWS

_Choice = Callable[[Scalar, Scalar], Scalar]
_CHOICES: Final[tuple[tuple[str, _Choice, _Choice], ...]] = (
    ("first", least, most),
    ("last", most, least),
    ("whole_from", most, most),
    ("whole_to", least, least),
)
"""What is read, which number counts of those of all rows of a tile, and of those of all tables."""


def bounds(
    work: Work, buffers: Sequence[str], batch: Sequence[Scalar], *, whole: bool
) -> Iterator[ir.Stmt]:
    """`first` and `last`, and with `whole` also `whole_from` and `whole_to`: the blocks of columns
    of this tile. One is gone through at least, whether anybody sees it or not."""
    if not work.hulls:
        return
    size, steps = work.tile_columns, work.steps(TILE)
    found: dict[str, Scalar] = {}
    for number, (name, of_rows, of_tables) in enumerate(_CHOICES[: 4 if whole else 2]):
        each: list[Scalar] = []
        for table, _ in enumerate(work.hulls):
            stem = f"hull{table}_{name}"
            yield from _read_parts(work, stem, (table, number), buffers, batch)
            parts: list[Scalar] = [Name(f"{stem}{part}") for part in range(_part_count(work))]
            each.append(reduce(of_rows, parts))
        found[name] = reduce(of_tables, each)
    first = least(most(steps.first, found["first"] // size), work.blocks - 1)
    yield ir.Let("first", first)
    last = least(steps.last, (found["last"] + (size - 1)) // size)
    yield ir.Let("last", most(last, Name("first") + 1))
    if whole:
        start = (found["whole_from"] + (size - 1)) // size
        yield ir.Let("whole_from", most(steps.whole_from, start))
        yield ir.Let("whole_to", least(steps.whole_to, found["whole_to"] // size))


def _part_count(work: Work) -> int:
    """Of a tile of rows, those that the tables have numbers for."""
    return work.tile_rows // HULL_ROWS


def _read_parts(
    work: Work, stem: str, table: tuple[int, int], buffers: Sequence[str], batch: Sequence[Scalar]
) -> Iterator[ir.Stmt]:
    """Numbers of all parts of a tile. Those of parts that are not there are as the last one's."""
    hull = work.hulls[table[0]]
    start = offset(hull.strides, Lit(0), Lit(0), tuple(batch))
    for part in range(_part_count(work)):
        place = least(TILE * _part_count(work) + part, hull.count - 1)
        name, buffer = f"{stem}{part}", buffers.index(hull.tensors[table[1]])
        yield ir.LoadElement(f"{name}_read", buffer, SI32, start + place, Lit(1))
        yield PlaceOf(name, f"{name}_read", work.columns + HULL_ROWS)
