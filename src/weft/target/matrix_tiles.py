"""Kernel forms on SM90: tile shapes, and which warps compute and store.

How long each takes is for `target.matrix_time` to say.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Final

from weft.foundation.records import dataclass
from weft.target.target import Target

K_STEP: Final = 64
"""Terms of a step: rows of 128 bytes, the widest that shared memory permutes."""
NARROW: Final = (8, 16, 32)
"""Columns of tiles that hold one side of a contraction whole."""
MOST_STAGES: Final = 12
"""Steps on their way, at most."""


@dataclass(frozen=True)
class Form:
    """A form that SM90 kernels can have."""

    rows: int
    columns: int
    warp_tile: tuple[int, int]
    roles: str = "cooperative"
    swap: bool = False
    """Whether rows of the tile are columns of the problem."""
    paired: bool = False
    """Whether two blocks share an operand, the larger part of their tiles."""

    @property
    def cluster(self) -> tuple[int, int]:
        """Blocks that share an operand, down and across: those below each other have the same
        columns."""
        if not self.paired:
            return 1, 1
        return (2, 1) if self.columns >= self.rows else (1, 2)

    @property
    def consumers(self) -> int:
        if self.roles == "pingpong":
            return 2
        return (self.rows // self.warp_tile[0]) * (self.columns // self.warp_tile[1])

    @property
    def sums(self) -> int:
        """What a warpgroup holds of the result."""
        return self.warp_tile[0] * self.warp_tile[1]

    @property
    def defers(self) -> bool:
        """Whether results can wait in registers while the next tile is multiplied."""
        return self.roles == "cooperative" and self.warp_tile[0] == 64 and not self.swap


@dataclass(frozen=True)
class Extent:
    """The sizes of a contraction."""

    batch: int
    m: int
    n: int
    k: int

    def tiles(self, form: Form) -> int:
        m, n = (self.n, self.m) if form.swap else (self.m, self.n)
        return self.batch * -(-m // form.rows) * -(-n // form.columns)

    @property
    def bytes(self) -> int:
        """Of operands of 16 bits, and a result."""
        return 2 * self.batch * (self.m * self.k + self.k * self.n + self.m * self.n)


def _single_forms() -> Iterator[Form]:
    """Those that were measured most come first."""
    yield Form(128, 192, (128, 192), "pingpong")
    yield Form(128, 256, (64, 256))
    for columns in (160, 128):
        yield Form(128, columns, (128, columns), "pingpong")
    for columns in range(224, 64, -32):
        yield Form(128, columns, (64, columns))
    yield Form(64, 128, (64, 64))
    yield Form(128, 64, (64, 64))
    yield Form(256, 128, (128, 128))
    yield Form(192, 96, (64, 96))
    for columns, swap in product(NARROW, (True, False)):
        yield Form(64, columns, (64, columns), swap=swap)
        yield Form(128, columns, (64, columns), swap=swap)
    for columns in range(256, 32, -32):
        yield Form(64, columns, (64, columns))
    for columns in (240, 208, 176, 144):
        yield Form(128, columns, (64, columns))


def _forms() -> Iterator[Form]:
    yield from _single_forms()
    for form in _single_forms():
        if form.roles == "cooperative" and form.columns not in NARROW:
            yield replace(form, paired=True)


FORMS: Final = tuple(_forms())
WINDOW_FORMS: Final = (*FORMS, Form(192, 128, (64, 128)), Form(192, 64, (64, 64)))
"""Those of convolutions too: places of 28 x 28 and of 14 x 14 images, 32 of them, are just as many
tiles of 192 rows as there are units."""


def stages_for(
    form: Form, target: Target, beside: int = 0, panel: int = 1, *, staged: bool = True
) -> int:
    """As many stages as shared memory holds beside the staging of results, if they are `staged`;
    `panel` is what columns are stored in multiples of."""
    columns = -(-form.columns // panel) * panel
    staging = 256 + (form.consumers * 2 * form.warp_tile[0] * 128 if staged else 0)
    room = target.limits.shared_bytes_per_block - staging - beside
    slot = 2 * K_STEP * (form.rows + columns)
    return max(2, min(MOST_STAGES, room // slot))
