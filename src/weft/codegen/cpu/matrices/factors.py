"""Triangles, elimination and roots: recursions that halve a matrix, whose bulk are products.

solve             b becomes the x with t x = b, for a triangle t
eliminate         Gaussian elimination with row exchanges, in place
exchange          rows exchanged as the elimination of other columns did it
root              the Cholesky factor u with u^T u = a, in place
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from weft.codegen.cpu.code import Val, multiples, number
from weft.codegen.cpu.matrices.function import NARROW, WIDE, Function, whole

FEW_ROWS: Final = 64
"""Rows of a triangle that is solved without products, and of a square product that is not cut."""


def factor_functions(scalar: str) -> list[Function]:
    """All of them, and what they call besides products."""
    return [
        _solve(scalar), _solve_few(scalar), _eliminate(scalar), _exchange(scalar), _root(scalar),
        _subtract_square(scalar),
        *(make(scalar, wide) for make in (_eliminate_panel, _root_of_few)
          for wide in (*NARROW, WIDE)),
    ]  # fmt: skip


# -- triangles -----------------------------------------------------------------------------------


_TRIANGLE: Final = ("rows", "columns", "way", "unit", "t_row", "t_column", "b_row")
"""`way` is 1 where the first row is solved first, and -1 where the last one is; with `unit` the
diagonal is not read."""


def _solve(scalar: str) -> Function:
    """One half, the product that takes it out of the other half, and that."""
    made = Function("solve", scalar, _TRIANGLE, ("t", "b", "packed"))
    code, half = made.code, made.half(made.n("rows"))
    rest, down = made.minus(made.n("rows"), half), code.compare("icmp sgt", made.n("way"), whole(0))

    def part(start: Val, count: Val) -> None:
        t = made.at("%t", (start, made.n("t_row")), (start, made.n("t_column")))
        sizes = [count, *(made.n(name) for name in _TRIANGLE[1:])]
        made.call("solve", sizes, t, made.at("%b", (start, made.n("b_row"))), "%packed")

    def between(to: Val, count: Val, found: Val, steps: Val) -> None:
        strides = (made.n("t_row"), made.n("t_column"), made.n("b_row"), made.n("b_row"))
        t = made.at("%t", (to, made.n("t_row")), (found, made.n("t_column")))
        b, c = (made.at("%b", (row, made.n("b_row"))) for row in (found, to))
        sizes = (count, made.n("columns"), steps, *strides)
        made.call("subtract_product", sizes, t, b, c, "%packed")

    def downward() -> None:
        part(whole(0), half)
        between(half, rest, whole(0), half)
        part(half, rest)

    def upward() -> None:
        part(half, rest)
        between(whole(0), half, half, rest)
        part(whole(0), half)

    sizes = [made.n(name) for name in _TRIANGLE]
    code.either(
        code.compare("icmp sle", made.n("rows"), whole(FEW_ROWS)),
        lambda: made.call("solve_few", sizes, "%t", "%b"),
        lambda: code.either(down, downward, upward),
    )
    return made


def _solve_few(scalar: str) -> Function:
    """Each row that is found is taken out of those that are left."""
    made = Function("solve_few", scalar, _TRIANGLE, ("t", "b"))
    code = made.code
    is_plain = code.compare("icmp eq", made.n("unit"), whole(0))
    is_up = code.compare("icmp slt", made.n("way"), whole(0))
    first = code.select(is_up, made.plus(made.n("rows"), -1), whole(0))

    def line(index: Val) -> Val:
        return made.plus(first, code.binary("mul", index, made.n("way")))

    def columns(column: Val, lanes: int) -> None:
        b = made.at("%b", (column, 1))

        def turn(index: Val) -> None:
            own = line(index)
            here = made.at(b, (own, made.n("b_row")))
            down = made.at("%t", (own, made.n("t_column")))

            def divide() -> None:
                pivot = made.one(made.at(down, (own, made.n("t_row"))))
                code.store(code.binary("fdiv", made.row(here, lanes), pivot), here, 4)

            code.when(is_plain, divide)
            found = made.row(here, lanes)

            def take_out(later: Val) -> None:
                other = line(later)
                factor = made.one(made.at(down, (other, made.n("t_row"))))
                there = made.at(b, (other, made.n("b_row")))
                product = code.binary("fmul", factor, found)
                code.store(code.binary("fsub", made.row(there, lanes), product), there, 4)

            made.each(made.n("rows"), take_out, start=made.plus(index, 1))

        made.each(made.n("rows"), turn)

    # Four groups of columns do not wait for one another.
    many = 4 * WIDE
    last = code.binary("and", made.n("columns"), whole(-many))
    code.loop(whole(0), last, many, lambda column: columns(column, many))
    for lanes in (WIDE, NARROW[0], 1):
        start, last = last, code.binary("and", made.n("columns"), whole(-lanes))
        code.loop(start, last, lanes, partial(columns, lanes=lanes))
    return made


# -- elimination ---------------------------------------------------------------------------------


_ELIMINATED: Final = ("a", "order", "pivots", "packed")
"""`pivots` get the number of the row that each row was exchanged with, of which the first has the
number `top`, and `order` is exchanged alike."""


def _eliminate(scalar: str) -> Function:
    """The left half, what follows from it in the right half, and the rest of that."""
    made = Function("eliminate", scalar, ("rows", "columns", "top", "a_row"), _ELIMINATED)
    code, rows, top, a_row = made.code, made.n("rows"), made.n("top"), made.n("a_row")
    left = made.half(made.n("columns"))
    right = made.minus(made.n("columns"), left)
    beside, wide = made.at("%a", (left, 1)), made.filled(right)

    def halves() -> None:
        turns = made.least(rows, left)
        made.call("eliminate", (rows, left, top, a_row), *(f"%{name}" for name in _ELIMINATED))
        made.call("exchange", (turns, wide, top, a_row), beside, "%pivots")
        sizes = (turns, wide, 1, 1, a_row, 1, a_row)
        made.call("solve", sizes, "%a", beside, "%packed")
        code.when(code.compare("icmp sgt", rows, left), below)

    def below() -> None:
        rest, lower = made.minus(rows, left), made.plus(top, left)
        under, corner = (made.at(place, (left, a_row)) for place in ("%a", beside))
        sizes = (rest, wide, left, a_row, 1, a_row, a_row)
        made.call("subtract_product", sizes, under, beside, corner, "%packed")
        order, pivots = (made.at(f"%{p}", (left, 1), kind="i32") for p in ("order", "pivots"))
        made.call("eliminate", (rest, right, lower, a_row), corner, order, pivots, "%packed")
        made.call("exchange", (made.least(rest, right), left, lower, a_row), under, pivots)

    def panel(wide: int) -> None:
        sizes = (rows, made.least(rows, made.n("columns")), top, a_row)
        made.call(f"eliminate_panel_{wide}", sizes, "%a", "%order", "%pivots")

    is_few = code.compare("icmp sle", made.n("columns"), whole(WIDE))
    code.either(is_few, lambda: made.by_width(a_row, panel), halves)
    return made


def _eliminate_panel(scalar: str, wide: int) -> Function:
    """A panel of at most 16 columns, of which `turns` count."""
    made = Function(
        f"eliminate_panel_{wide}", scalar, ("rows", "turns", "top", "a_row"),
        ("a", "order", "pivots"),
    )  # fmt: skip
    code = made.code
    lane = multiples(1, "i64", wide)

    def turn(column: Val) -> None:
        pivot = _largest(made, column)
        target = made.at("%pivots", (column, 1), kind="i32")
        code.store(code.convert("trunc", made.plus(pivot, made.n("top")), "i32"), target, 4)
        own, other = (made.at("%a", (row, made.n("a_row"))) for row in (column, pivot))
        _swap(made, [own, other], scalar, wide)
        orders = [made.at("%order", (row, 1), kind="i32") for row in (column, pivot)]
        _swap(made, orders, "i32", 1)
        found, diagonal = made.row(own, wide), made.one(made.at(own, (column, 1)))
        # A zero pivot has only zeros below it: nothing is left to eliminate.
        is_zero = code.compare("fcmp oeq", diagonal, number(0.0, scalar))
        divisor = code.select(is_zero, number(1.0, scalar), diagonal)
        after = code.compare("icmp sgt", lane, column)

        def line(row: Val) -> None:
            here = made.at("%a", (row, made.n("a_row")))
            first = made.at(here, (column, 1))
            factor = code.binary("fdiv", made.one(first), divisor)
            old = made.row(here, wide)
            less = code.binary("fsub", old, code.binary("fmul", factor, found))
            code.store(code.select(after, less, old), here, 4)
            code.store(factor, first, 4)

        made.each(made.n("rows"), line, start=made.plus(column, 1))

    made.each(made.n("turns"), turn)
    return made


def _largest(made: Function, column: Val) -> Val:
    """The row with the largest element of a column from the diagonal on, the first of equals. Bits
    of numbers without their signs are in order, and those of NaN come last."""
    code = made.code
    whole = "i32" if made.scalar == "float" else "i64"
    most, at = code.alloca(whole), code.alloca("i64")
    code.store(number(-1, whole), most, 4)
    code.store(column, at, 8)

    def line(row: Val) -> None:
        element = made.one(made.at("%a", (row, made.n("a_row")), (column, 1)))
        bits = code.convert("bitcast", element, whole)
        size = code.binary("and", bits, number((1 << (int(whole[1:]) - 1)) - 1, whole))
        before = code.load(whole, most, 1, 4)
        is_larger = code.compare("icmp sgt", size, before)
        code.store(code.select(is_larger, size, before), most, 4)
        code.store(code.select(is_larger, row, code.load("i64", at, 1, 8)), at, 8)

    made.each(made.n("rows"), line, start=column)
    return code.load("i64", at, 1, 8)


def _swap(made: Function, places: Sequence[str], kind: str, lanes: int) -> None:
    code, (one, other) = made.code, places
    first, second = (code.load(kind, place, lanes, 4) for place in (one, other))
    code.store(second, one, 4)
    code.store(first, other, 4)


def _exchange(scalar: str) -> Function:
    """Row n and row `pivots[n]`, one pair after the other, in some columns."""
    made = Function("exchange", scalar, ("turns", "columns", "top", "a_row"), ("a", "pivots"))
    code = made.code

    def turn(row: Val) -> None:
        pivot = code.load("i32", made.at("%pivots", (row, 1), kind="i32"), 1, 4)
        other = made.minus(code.convert("sext", pivot, "i64"), made.n("top"))
        rows = [made.at("%a", (index, made.n("a_row"))) for index in (row, other)]

        def group(column: Val) -> None:
            _swap(made, [made.at(place, (column, 1)) for place in rows], scalar, WIDE)

        is_other = code.compare("icmp ne", row, other)
        code.when(is_other, lambda: code.loop(whole(0), made.n("columns"), WIDE, group))

    made.each(made.n("turns"), turn)
    return made


# -- roots ---------------------------------------------------------------------------------------


def _root(scalar: str) -> Function:
    """The corner, the rows to the right of it, and what is left below those."""
    made = Function("root", scalar, ("rows", "a_row"), ("a", "failed", "packed"))
    code, rows, a_row = made.code, made.n("rows"), made.n("a_row")
    left = made.half(rows)
    right = made.minus(rows, left)

    def halves() -> None:
        made.call("root", (left, a_row), "%a", "%failed", "%packed")
        beside = made.at("%a", (left, 1))
        sizes = (left, made.filled(right), 1, 0, 1, a_row, a_row)
        made.call("solve", sizes, "%a", beside, "%packed")
        rest = made.at(beside, (left, a_row))
        made.call("subtract_square", (right, left, a_row), beside, rest, "%packed")
        made.call("root", (right, a_row), rest, "%failed", "%packed")

    is_few = code.compare("icmp sle", rows, whole(WIDE))

    def corner(wide: int) -> None:
        made.call(f"root_of_few_{wide}", (rows, a_row), "%a", "%failed")

    code.either(is_few, lambda: made.by_width(a_row, corner), halves)
    return made


def _subtract_square(scalar: str) -> Function:
    """`c -= b^T b` in the upper triangle; what is below may change, too."""
    made = Function("subtract_square", scalar, ("rows", "steps", "row"), ("b", "c", "packed"))
    code, rows, row, steps = made.code, made.n("rows"), made.n("row"), made.n("steps")
    first = made.half(rows)
    rest = made.minus(rows, first)

    def product(count: Val, columns: Val, b: str, c: str) -> None:
        sizes = (count, made.filled(columns), steps, 1, row, row, row)
        made.call("subtract_product", sizes, "%b", b, c, "%packed")

    def halves() -> None:
        beside, right = (made.at(place, (first, 1)) for place in ("%b", "%c"))
        made.call("subtract_square", (first, steps, row), "%b", "%c", "%packed")
        product(first, rest, beside, right)
        corner = made.at(right, (first, row))
        made.call("subtract_square", (rest, steps, row), beside, corner, "%packed")

    is_few = code.compare("icmp sle", rows, whole(FEW_ROWS))
    code.either(is_few, lambda: product(rows, rows, "%b", "%c"), halves)
    return made


def _root_of_few(scalar: str, wide: int) -> Function:
    """At most 16 rows."""
    made = Function(f"root_of_few_{wide}", scalar, ("rows", "a_row"), ("a", "failed"))
    code = made.code

    def turn(index: Val) -> None:
        own = made.at("%a", (index, made.n("a_row")))
        pivot = made.one(made.at(own, (index, 1)))
        is_bad = code.compare("fcmp ule", pivot, number(0.0, scalar))
        code.when(is_bad, lambda: code.store(number(1, "i8"), "%failed", 1))
        found = code.binary("fdiv", made.row(own, wide), code.intrinsic("llvm.sqrt", pivot))
        code.store(found, own, 4)

        def line(row: Val) -> None:
            here = made.at("%a", (row, made.n("a_row")))
            product = code.binary("fmul", made.one(made.at(own, (row, 1))), found)
            code.store(code.binary("fsub", made.row(here, wide), product), here, 4)

        made.each(made.n("rows"), line, start=made.plus(index, 1))

    made.each(made.n("rows"), turn)
    return made
