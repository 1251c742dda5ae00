"""Default tiling of fused stages on a CPU: strips of whole rows, or tiles of them.

Whole rows are best as long as their rings fit a second-level cache with room for what streams by:
four 3×3 blurs of 1500², whose rings take 90 KB, took 1.13 and 1.28 times as long in tiles of 512
and 256 columns, and those of 4000² (272 KB) 1.06 times. Where rings of whole rows leave that cache,
every element of a stage goes out and comes back: of 32000 columns (2.2 MB) the blurs took 124 ms of
one core by whole rows, and 79 ms by tiles of 512 to 2048 columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from typing import Final

from weft.foundation.records import dataclass
from weft.region.form import Staged
from weft.region.forms.rings import Held, cut_rows
from weft.region.forms.staged import (
    Columns,
    columns_along,
    strip_rows,
)
from weft.region.ir import Kernel
from weft.target.target import Target

MOST_BYTES: Final = 512 << 10
"""Of the rings of a thread: inside a second-level cache, with room for what streams by."""
_LANES: Final = 256
"""Columns of which tiles along the last axis are multiples: whole vectors, however many side by
side."""
_NEAR: Final = 0.25
"""Of what rings may take, what takes no time beside computing; ..."""
_FAR: Final = 1.04
"""... and how much longer tiles take whose rings have more."""
_VECTOR: Final = 16
"""Columns of a vector, about; ..."""
_MOST_BENDS: Final = 4
"""... and tiles that begin otherwise than those between, at most."""
_BEGIN: Final = 48
"""Columns of a part that take as long as to begin and to end each row of a tile along the last
axis: the blurs of 1500² took 1.13 times as long by three tiles, 1.28 times by six."""
_LONG: Final = 128
"""Rows of strips of tiles, at most, that are lengthened: those blurs took 81 ms of a core by strips
of 64 and 125 rows, 83, 85 and 88 ms by 250, 500 and 1000, though these compute fewer rows twice."""
_WEIGHED: Final = 64
"""Widths that are weighed."""


@dataclass(frozen=True)
class Cut:
    """Rows of a strip, and columns of a tile along an axis of the results, if rows are cut."""

    rows: int
    bytes: int
    """What the rings of a thread take."""
    axis: str = ""
    columns: int = 0
    shares: tuple[float, ...] = ()
    """For each part, how often tiles compute its columns."""
    why: str = ""
    """Why rows are whole whose rings are large."""

    def share(self, part: int) -> float:
        """How often the columns of a part are computed."""
        return self.shares[part] if self.shares else 1.0


def cut_of(kernel: Kernel, form: Staged, target: Target) -> Cut:
    """Strips of whole rows while their rings fit, else tiles that compute the least twice."""
    rings = zip(kernel.stages, form.rings, strict=True)
    rows = strip_rows(kernel, form)
    size = sum(Held(stage, ring, ring.depth).bytes for stage, ring in rings)
    room = min(MOST_BYTES, target.row_bytes)
    if size <= room:
        return Cut(rows, size)
    outside, why = {form.slide, *form.batch}, ""
    for found in kernel.axes:
        if found.reduce or found.name in outside:
            continue
        columns = columns_along(kernel, form, found.name)
        if isinstance(columns, str):
            why = why or columns
            continue
        weighed = sorted(_tiles(kernel, form, columns, room), key=itemgetter(0))
        whole = [_VECTOR] * len(kernel.stages)
        for _, cut in weighed:
            if cut_rows(kernel, columns, cut.columns, whole).bends <= _MOST_BENDS:
                return cut
        why = why or f"no tile fits {room:,} bytes"
    return Cut(rows, size, why=why)


def _tiles(
    kernel: Kernel, form: Staged, columns: Columns, room: int
) -> Iterator[tuple[float, Cut]]:
    """Tiles along an axis whose rings fit, each with the time that it takes, as a share of that of
    computing everything once."""
    name, halos = columns.axes[-1], columns.halos
    size = kernel.sizes[name]
    last = next(a.name for a in reversed(kernel.axes) if not a.reduce) == name
    rings = list(zip(kernel.stages, form.rings, columns.axes, halos, strict=False))
    held = [(Held(s, r, r.depth).bytes // s.kernel.sizes[a], halo) for s, r, a, halo in rings]
    each, beside = sum(one for one, _ in held), sum(one * halo for one, halo in held)
    widest = min((room - beside) // max(1, each), size - 1)
    grain = _LANES if last else max(1, widest // _WEIGHED)
    halos = tuple(halo + _BEGIN * last for halo in halos)
    for width in range(grain, widest + 1, grain):
        count = -(-size // width)
        shares = tuple(
            max(1.0, count * (width + halo) / part.sizes[own])
            for part, own, halo in zip(kernel.parts, columns.axes, halos, strict=True)
        )
        taken = each * width + beside
        far = _FAR if taken > _NEAR * room else 1.0
        yield far * sum(shares), Cut(_strip(kernel, form, count), taken, name, width, shares)


def _strip(kernel: Kernel, form: Staged, tiles: int) -> int:
    """Rows of a strip that is cut into tiles, which are pieces enough where strips are longer."""
    rows = min(_LONG, strip_rows(kernel, form, tiles))
    rows, total = max(rows, strip_rows(kernel, form)), kernel.sizes[form.slide]
    return -(-total // -(-total // rows))
