"""The matrix op x dtype: what the results of a run amount to, cell by cell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import cache

from rich.columns import Columns
from rich.table import Table
from rich.text import Text

from weft.foundation.dtypes import ALL
from weft.testing.conformance.cases.common import table
from weft.testing.conformance.run import Outcome, Result

COLUMNS = tuple(dtype.name for dtype in ALL)
LISTS = ("programs", "rejections")
"""Families whose rows have no dtypes to speak of: each is a list, not a part of the matrix."""


class State(Enum):
    """What a cell shows: the symbol, its colour, and what it means."""

    PASS = ("\u2713", "green", "all pass")
    DECOMPOSED = ("\u25bd", "cyan", "all pass, some decomposed by the driver")
    FAIL = ("\u2717", "bold red", "some fail")
    PARTIAL = ("\u25d0", "yellow", "some pass, the rest unimplemented")
    UNIMPLEMENTED = ("\u2013", "yellow", "unimplemented")
    NOT_RUN = (" ", "", "not run")
    UNDEFINED = ("\u00b7", "bright_black", "not defined")

    def __init__(self, symbol: str, colour: str, meaning: str) -> None:
        self.symbol = symbol
        self.colour = colour
        self.meaning = meaning


@dataclass
class Cell:
    """The cases of one row and one dtype, counted."""

    passed: int = 0
    failed: int = 0
    unimplemented: int = 0
    decomposed: int = 0

    def add(self, result: Result) -> None:
        self.passed += result.outcome is Outcome.PASS
        self.failed += result.outcome is Outcome.FAIL
        self.unimplemented += result.outcome is Outcome.UNIMPLEMENTED
        self.decomposed += bool(result.decomposed) and result.outcome is Outcome.PASS

    @property
    def state(self) -> State:
        if self.failed:
            return State.FAIL
        if self.unimplemented:
            return State.PARTIAL if self.passed else State.UNIMPLEMENTED
        if not self.passed:
            return State.NOT_RUN
        return State.DECOMPOSED if self.decomposed else State.PASS

    @property
    def summary(self) -> str:
        """`12 pass (3 decomposed), 1 fail`."""
        decomposed = f" ({self.decomposed} decomposed)" if self.decomposed else ""
        parts = [
            f"{self.passed} pass{decomposed}" if self.passed else "",
            f"{self.failed} fail" if self.failed else "",
            f"{self.unimplemented} unimplemented" if self.unimplemented else "",
        ]
        return ", ".join(part for part in parts if part)


@cache
def _list_defined() -> dict[str, frozenset[str]]:
    return {row: frozenset(d.name for d in dtypes) for row, dtypes in table().items()}


@dataclass
class Matrix:
    """Rows by family, in the order of the table; each row has a cell for each column."""

    rows: dict[tuple[str, str], dict[str | None, Cell]] = field(default_factory=dict)
    total: Cell = field(default_factory=Cell)

    @classmethod
    def of(cls, results: Iterable[Result]) -> Matrix:
        """The matrix of some results."""
        matrix = cls()
        for result in results:
            matrix.total.add(result)
            row = matrix.rows.setdefault((result.family, result.row), {})
            row.setdefault(result.dtype, Cell()).add(result)
        return matrix

    def state(self, family: str, row: str, column: str) -> State:
        """What a cell of the matrix shows."""
        cell = self.rows[family, row].get(column)
        if cell is not None:
            return cell.state
        is_defined = column in _list_defined().get(row, ())
        return State.NOT_RUN if is_defined and family != "library" else State.UNDEFINED

    def families(self) -> Iterator[tuple[str, dict[str, dict[str | None, Cell]]]]:
        """Each family with its rows; families in the order of their first case."""
        found: dict[str, dict[str, dict[str | None, Cell]]] = {}
        for (family, row), cells in self.rows.items():
            found.setdefault(family, {})[row] = cells
        yield from found.items()


def merged(cells: Iterable[Cell]) -> Cell:
    """Several cells counted as one."""
    total = Cell()
    for cell in cells:
        total.passed += cell.passed
        total.failed += cell.failed
        total.unimplemented += cell.unimplemented
        total.decomposed += cell.decomposed
    return total


def short(dtype: str) -> tuple[str, str]:
    """The name of a column in two short lines."""
    if dtype.startswith("fp8_"):
        return dtype[4:6], dtype[6:]
    letters = dtype.rstrip("0123456789")
    return letters, dtype[len(letters) :]


def as_table(matrix: Matrix) -> Table:
    """The matrix for a terminal, 80 columns wide."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("", no_wrap=True, max_width=22)
    for column in COLUMNS:
        table.add_column(Text("\n".join(short(column))), width=2, justify="center")
    for family, rows in matrix.families():
        if family in LISTS:
            continue
        table.add_row(Text(family.replace("_", " "), style="bold"))
        for row in rows:
            states = [matrix.state(family, row, column) for column in COLUMNS]
            marks = [Text(state.symbol, style=state.colour) for state in states]
            table.add_row(Text(f"  {row}"), *marks)
    return table


def as_lists(matrix: Matrix) -> Iterator[tuple[str, Columns]]:
    """The families that are lists: each row with its mark and how many cases it has."""
    for family, rows in matrix.families():
        if family in LISTS:
            items = [_cell_text(row, merged(cells.values())) for row, cells in rows.items()]
            yield family, Columns(items, padding=(0, 2), column_first=True)


def _cell_text(row: str, cell: Cell) -> Text:
    count = cell.passed + cell.failed + cell.unimplemented
    return Text.assemble((cell.state.symbol, cell.state.colour), f" {row} ", (str(count), "dim"))


def shown_states(matrix: Matrix) -> set[State]:
    """The states that occur in the matrix and in the lists."""
    lists = {cell.state for row in matrix.rows.values() for cell in row.values()}
    rows = [(family, row) for family, row in matrix.rows if family not in LISTS]
    return lists | {matrix.state(*row, column) for row in rows for column in COLUMNS}


def legend(matrix: Matrix) -> Text:
    """What the symbols in the matrix mean."""
    text = Text()
    for state in State:
        if state in shown_states(matrix) and state is not State.NOT_RUN:
            text.append(f"{state.symbol} ", style=state.colour)
            text.append(f"{state.meaning}   ", style="dim")
    return text
