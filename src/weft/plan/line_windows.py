"""Windows over lines on a CPU: the copy of what a piece sees, and how results are tiled.

A piece copies the lines that its windows see into memory of the thread, with whatever stands beside
the image around them, so that no load asks where it is. Places that are `step` apart are told
apart there: the elements of every `step`th column follow one another. Then `lines` lines of
results, `accumulators` vectors of each, are summed at a time, and share what they load.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from weft.foundation.records import dataclass
from weft.foundation.whole_numbers import round_up
from weft.plan.ir import Header, RowPlan
from weft.region.forms.line_windows import LineWindows, find_line_windows
from weft.region.ir import Kernel, Reduce, Tensor
from weft.target.target import Target

BOARD_BYTES: Final = 24 << 10
"""Of a copy: half of a first-level cache, where a few lines take less."""
MOST_BYTES: Final = 256 << 10
"""That a copy may take: a part of a second-level cache."""
_PIECES: Final = 16
"""That are left for threads to share, where there are so many tiles of lines."""
_LINES: Final = 14
"""Lines of a tile: 14 divides the sizes of most images."""
_BESIDE: Final = 3
"""Registers of a tile beside its sums and a column of its window."""
_VECTORS: Final = 8
"""Of a tile of a single line."""


@dataclass(frozen=True)
class Board:
    """The copy of what the windows of `band` lines of results see."""

    band: int
    lanes: int
    planes: int
    """One for each tap that goes along neither lines nor columns, or a single one for all of them,
    one after the other, where all results of a piece are summed at a time."""
    rows: int
    width: int
    """Elements between its rows: whole vectors."""
    phases: int
    """Parts of a line, each of which has every so many columns."""
    between: int
    """Columns between those of two phases that follow one another."""
    first_row: int
    first_column: int
    """What is seen first, less where the first result is."""

    @property
    def elements(self) -> int:
        # Vectors at the end of the last line reach over it.
        return self.planes * self.phases * self.rows * self.width + self.lanes


def other_taps(kernel: Kernel, windows: LineWindows) -> tuple[str, ...]:
    """The summed axes along which no windows slide."""
    assert isinstance(windows.total.expr, Reduce)
    own = {slide.tap for slide in windows.slides}
    return tuple(name for name in windows.total.expr.axes if name not in own)


def board_of(kernel: Kernel, windows: LineWindows, plan: RowPlan) -> Board:
    """The copy that a plan makes: of as many tiles as a cache has room for."""
    sizes, row, column = kernel.sizes, windows.row, windows.column
    taps = sizes[column.tap] if column.tap else 1
    between, apart = math.gcd(column.step, column.apart), abs(column.apart)
    reach = apart * (taps - 1)
    phases = 1 + max(apart * tap // between % (column.step // between) for tap in range(taps))
    width = round_up(sizes[column.place] + reach // column.step, plan.vector)
    below = 0 if row is None else abs(row.apart) * (sizes[row.tap] - 1)
    lines, step = (1, 1) if row is None else (sizes[row.place], row.step)
    at_once = lines <= plan.lines and sizes[column.place] <= plan.accumulators * plan.vector
    planes = math.prod(1 if at_once else sizes[name] for name in other_taps(kernel, windows))
    line = planes * phases * width * windows.factor.dtype.storage_bytes
    fitting = (BOARD_BYTES // line - below - 1) // step + 1
    others = math.prod(sizes[name] for name in windows.total.axes)
    others //= lines * sizes[column.place]
    fitting = min(fitting, lines * others // _PIECES)
    band = min(lines, max(1, fitting // plan.lines) * plan.lines)
    # Bands of the same size, of whole tiles.
    band = min(lines, round_up(-(-lines // -(-lines // band)), plan.lines))
    return Board(
        band, plan.vector, planes, step * (band - 1) + below + 1, width, phases, between,
        -below if row is not None and row.apart < 0 else 0,
        -reach if column.apart < 0 else 0,
    )  # fmt: skip


def line_windows_plan(
    kernel: Kernel, tensors: Mapping[str, Tensor], target: Target, header: Header
) -> RowPlan | None:
    """Tiles of as many lines as registers hold; None where a kernel has no such windows, or a copy
    of what they see takes too much."""
    windows = find_line_windows(kernel, tensors)
    if windows is None:
        return None
    places, row = kernel.sizes[windows.column.place], windows.row
    vector = min(target.lanes(windows.total.dtype), 1 << (places - 1).bit_length())
    lines, together = 1, min(_VECTORS, places // vector)
    if row is not None:
        registers = target.limits.vector_registers or 16
        most = min(_LINES, registers - _BESIDE - min(kernel.sizes[row.tap], registers // 2))
        size = kernel.sizes[row.place]
        lines, together = -(-size // -(-size // most)), 1
    plan = RowPlan(header, vector, accumulators=max(1, together), keep_row=False, lines=lines)
    return None if line_windows_refusal(kernel, tensors, plan) else plan


def line_windows_refusal(
    kernel: Kernel, tensors: Mapping[str, Tensor], plan: RowPlan
) -> str | None:
    """Why a plan's lines of windows cannot be summed together."""
    windows = find_line_windows(kernel, tensors)
    if windows is None:
        return f"lines={plan.lines} has no effect: no windows slide along lines"
    if windows.row is None and plan.lines > 1:
        return f"lines={plan.lines} has no effect: the windows have one line"
    size = board_of(kernel, windows, plan).elements * windows.factor.dtype.storage_bytes
    if size > MOST_BYTES:
        return f"what {plan.lines} lines see takes {size:,} bytes; {MOST_BYTES:,} is the most"
    return None
