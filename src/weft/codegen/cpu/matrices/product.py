"""`c -= a b`, the bulk of all factorisations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from weft.codegen.cpu.code import Val, number, type_of
from weft.codegen.cpu.matrices.function import WIDE, Function, whole

_STEPS: Final = 256
"""Steps of a product for which packed columns stay in cache."""
_MOST_COLUMNS: Final = 3 * WIDE
"""Columns that are packed side by side, at most."""
PACKED: Final = _STEPS * _MOST_COLUMNS
"""Elements of the memory in which columns are packed."""
_LANES_OF_TYPE: Final = {"float": 32, "double": 64}
_MANY_REGISTERS: Final = 32


def subtract_product(scalar: str, vector_bits: int, registers: int) -> Function:
    """`c -= a b` for c of `rows` x `columns`: a few columns of b packed at a time, and tiles of as
    many rows as registers hold."""
    lanes = min(WIDE, vector_bits // _LANES_OF_TYPE[scalar])
    many = registers >= _MANY_REGISTERS
    widths = [_MOST_COLUMNS, WIDE] if lanes == WIDE and many else [WIDE]
    made = Function(
        "subtract_product", scalar,
        ("rows", "columns", "steps", "a_row", "a_step", "b_step", "c_row"),
        ("a", "b", "c", "packed"),
    )  # fmt: skip
    code, first = made.code, whole(0)
    for width in widths:
        strip = _Strip(made, width, max(1, (24 if many else 12) * lanes // width), lanes)
        strips = code.binary("sdiv", made.minus(made.n("columns"), first), whole(width))
        last = made.plus(first, code.binary("mul", strips, whole(width)))
        code.loop(first, last, width, strip.write)
        first = last
    return made


@dataclass
class _Strip:
    """Some columns of a product."""

    made: Function
    width: int
    tile_rows: int
    lanes: int

    def write(self, column: Val) -> None:
        made = self.made
        b, c = (made.at(place, (column, 1)) for place in ("%b", "%c"))

        def block(start: Val) -> None:
            count = made.least(made.minus(made.n("steps"), start), whole(_STEPS))
            self._pack(made.at(b, (start, made.n("b_step"))), count)
            self._tiles(made.at("%a", (start, made.n("a_step"))), c, count)

        made.code.loop(whole(0), made.n("steps"), _STEPS, block)

    def _pack(self, b: str, count: Val) -> None:
        made = self.made

        def step(index: Val) -> None:
            source = made.at(b, (index, made.n("b_step")))
            target = made.at("%packed", (index, self.width))
            made.code.store(made.row(source, self.width), target, 4)

        made.each(count, step)

    def _tiles(self, a: str, c: str, count: Val) -> None:
        made, code, many = self.made, self.made.code, self.tile_rows
        tiles = code.binary("sdiv", made.n("rows"), whole(many))
        done = code.binary("mul", tiles, whole(many))
        code.loop(whole(0), done, many, lambda row: self._tile(a, c, row, many, count))
        if many > 1:
            last = made.n("rows")
            made.each(last, lambda row: self._tile(a, c, row, 1, count), start=done)

    def _tile(self, a: str, c: str, row: Val, rows: int, count: Val) -> None:
        made, code, lanes = self.made, self.made.code, self.lanes
        kind, vectors = type_of(made.scalar, lanes), range(0, self.width, lanes)
        lines = [code.binary("add", row, whole(r)) for r in range(rows)]
        sources = [made.at(a, (line, made.n("a_row"))) for line in lines]
        sums = [[code.alloca(kind) for _ in vectors] for _ in lines]
        for place in (place for line in sums for place in line):
            code.store(number(0.0, made.scalar, lanes), place, 64)

        def step(index: Val) -> None:
            packed = made.at("%packed", (index, self.width))
            columns = [made.row(made.at(packed, (whole(v), 1)), lanes) for v in vectors]
            offset = code.binary("mul", index, made.n("a_step"))
            for source, line in zip(sources, sums, strict=True):
                factor = made.one(code.far_pointer(source, made.scalar, offset))
                for column, place in zip(columns, line, strict=True):
                    total = code.load(made.scalar, place, lanes, 64)
                    product = code.binary("fmul", factor, column)
                    code.store(code.binary("fadd", total, product), place, 64)

        made.each(count, step)
        for line, places in zip(lines, sums, strict=True):
            target = made.at(c, (line, made.n("c_row")))
            for at, place in zip(vectors, places, strict=True):
                here = made.at(target, (whole(at), 1))
                total = code.load(made.scalar, place, lanes, 64)
                code.store(code.binary("fsub", made.row(here, lanes), total), here, 4)
