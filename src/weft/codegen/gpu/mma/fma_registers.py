"""Registers of a lane that multiplies single numbers: how many its plan takes, and how many blocks
can share a unit with them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from weft.codegen.gpu.accept import refuse
from weft.codegen.gpu.formats import held_bytes
from weft.foundation.dtypes import DType
from weft.foundation.errors import Finding
from weft.plan.ir import MmaPlan
from weft.region.forms.thin import FEW, RESIDENT
from weft.target.roofline import registers_given
from weft.target.target import Target

LANE_GRID: Final = (4, 8)
"""Lanes of a warp along rows and along columns."""
_BESIDE: Final = 16
"""Registers for places and counts, as few as the compiler does with."""


@dataclass(frozen=True)
class LaneRegisters:
    """What a plan asks of each lane, for sums and factors of such dtypes."""

    plan: MmaPlan
    sums: DType
    factors: tuple[DType, DType]

    @property
    def threads(self) -> int:
        (rows, columns, _), (warp_rows, warp_columns) = self.plan.tile, self.plan.warp_tile
        return (rows // warp_rows) * (columns // warp_columns) * 32

    @property
    def needed(self) -> int:
        """The sums, the factors of one k and of the next, and the elements of a slice that are on
        their way to shared memory."""
        rows, columns = (
            warp // lanes for warp, lanes in zip(self.plan.warp_tile, LANE_GRID, strict=True)
        )
        total = _BESIDE + rows * columns * _words(self.sums)
        depth = self.plan.tile[2]
        extents = self.plan.tile[:2]
        for own, extent, dtype in zip((rows, columns), extents, self.factors, strict=True):
            total += (2 * own + extent * depth // self.threads) * _words(dtype)
        return total

    def resident(self, target: Target) -> int:
        """Tiles with few rows or columns do little but wait for memory, several at a time; of
        others one multiplies while another meets, if both have the registers."""
        if min(self.plan.tile[:2]) <= FEW[-1]:
            return RESIDENT
        return 2 if self.needed <= registers_given(target.limits, 2 * self.threads) else 1

    def refusals(self, target: Target) -> Iterator[Finding]:
        """Registers that a lane does not have: they would be moved to memory and back."""
        given = registers_given(target.limits, self.threads)
        if self.needed > given:
            rows, columns = self.plan.warp_tile
            yield refuse(
                "Registers",
                f"a lane of a {rows}x{columns} warp tile needs {self.needed} registers at least, "
                f"and has {given}",
                "use a smaller warp_tile, or a tile that is less deep",
            )


def _words(dtype: DType) -> int:
    return held_bytes(dtype) // 4
