"""What others call: `lu`, `cholesky` and `triangular_solve`, which go through a stack of matrices,
and `above` and `below`, which copy triangles.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from weft.codegen.cpu.code import Val, number
from weft.codegen.cpu.matrices.factors import factor_functions
from weft.codegen.cpu.matrices.function import WIDE, Function, whole
from weft.codegen.cpu.matrices.product import subtract_product
from weft.foundation.memo import memo

ENTRIES: Final = ("lu", "cholesky", "triangular_solve", "above", "below")
"""What others call."""


@memo(8)
def module_text(scalar: str, vector_bits: int, registers: int) -> str:
    """All functions for a type, as a module."""
    functions = [
        subtract_product(scalar, vector_bits, registers), *factor_functions(scalar),
        _lu(scalar), _cholesky(scalar), _triangular_solve(scalar), _above(scalar), _below(scalar),
    ]  # fmt: skip
    declared = {name: text for made in functions for name, text in made.code.declared.items()}
    return "\n\n".join((*declared.values(), *(made.text() for made in functions)))


# -- stacks --------------------------------------------------------------------------------------


def _lu(scalar: str) -> Function:
    """`a` becomes u and, below its diagonal, l; `order` the rows in the order in which they were
    taken; `pivots` is memory for as many numbers."""
    made = Function(
        "lu", scalar, ("batches", "rows", "columns", "a_row"),
        ("a", "order", "pivots", "packed"), "",
    )  # fmt: skip

    def matrix(batch: Val) -> None:
        a = made.at("%a", (made.code.binary("mul", batch, made.n("rows")), made.n("a_row")))
        order = made.at("%order", (batch, made.n("rows")), kind="i32")
        sizes = (made.n("rows"), made.n("columns"), 0, made.n("a_row"))
        made.call("eliminate", sizes, a, order, "%pivots", "%packed")

    made.each(made.n("batches"), matrix)
    return made


def _cholesky(scalar: str) -> Function:
    """`a` becomes u, and what is below its diagonal anything; `failed` is 1 for each matrix with a
    pivot that is not above zero."""
    made = Function("cholesky", scalar, ("batches", "rows", "a_row"), ("a", "failed", "packed"), "")

    def matrix(batch: Val) -> None:
        a = made.at("%a", (made.code.binary("mul", batch, made.n("rows")), made.n("a_row")))
        failed = made.at("%failed", (batch, 1), kind="i8")
        made.call("root", (made.n("rows"), made.n("a_row")), a, failed, "%packed")

    made.each(made.n("batches"), matrix)
    return made


def _triangular_solve(scalar: str) -> Function:
    made = Function(
        "triangular_solve", scalar,
        ("batches", "rows", "columns", "way", "unit", "t_batch", "t_row", "t_column"),
        ("t", "b", "packed"), "",
    )  # fmt: skip

    def matrix(batch: Val) -> None:
        t = made.at("%t", (batch, made.n("t_batch")))
        b = made.at("%b", (made.code.binary("mul", batch, made.n("rows")), made.n("columns")))
        sizes = ("rows", "columns", "way", "unit", "t_row", "t_column", "columns")
        made.call("solve", [made.n(size) for size in sizes], t, b, "%packed")

    made.each(made.n("batches"), matrix)
    return made


_COPIED: Final = ("batches", "rows", "columns", "a_rows", "a_row")
"""Of each matrix `rows` rows and `columns` columns, from one that has `a_rows` rows."""


def _above(scalar: str) -> Function:
    """The diagonal and what is above it, after zeros."""
    made = Function("above", scalar, _COPIED, ("a", "part"), "")

    def line(row: Val, source: str, target: str) -> None:
        first = made.least(row, made.n("columns"))
        _write_columns(made, whole(0), first, "", target)
        _write_columns(made, first, made.n("columns"), source, target)

    _copy_rows(made, line)
    return made


def _below(scalar: str) -> Function:
    """What is below the diagonal, a one on it, and zeros."""
    made = Function("below", scalar, _COPIED, ("a", "part"), "")

    def line(row: Val, source: str, target: str) -> None:
        first = made.least(row, made.n("columns"))
        _write_columns(made, whole(0), first, source, target)
        _write_columns(made, first, made.n("columns"), "", target)
        one, place = number(1.0, scalar), made.at(target, (row, 1))
        is_inside = made.code.compare("icmp slt", row, made.n("columns"))
        made.code.when(is_inside, lambda: made.code.store(one, place, 4))

    _copy_rows(made, line)
    return made


def _copy_rows(made: Function, line: Callable[[Val, str, str], None]) -> None:
    def matrix(batch: Val) -> None:
        a = made.at("%a", (made.code.binary("mul", batch, made.n("a_rows")), made.n("a_row")))
        size = made.code.binary("mul", made.n("rows"), made.n("columns"))
        part = made.at("%part", (batch, size))

        def row(index: Val) -> None:
            source, target = (
                made.at(place, (index, step))
                for place, step in ((a, made.n("a_row")), (part, made.n("columns")))
            )
            line(index, source, target)

        made.each(made.n("rows"), row)

    made.each(made.n("batches"), matrix)


def _write_columns(made: Function, start: Val, stop: Val, source: str, target: str) -> None:
    """Some columns of a row, zeros where there is no source."""
    code = made.code
    count = code.binary("and", made.minus(stop, start), whole(-WIDE))

    def write(column: Val, lanes: int) -> None:
        zero = number(0.0, made.scalar, lanes)
        value = made.row(made.at(source, (column, 1)), lanes) if source else zero
        code.store(value, made.at(target, (column, 1)), 4)

    last = made.plus(start, count)
    code.loop(start, last, WIDE, lambda column: write(column, WIDE))
    code.loop(last, stop, 1, lambda column: write(column, 1))
