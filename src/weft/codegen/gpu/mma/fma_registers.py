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
_EPILOGUE: Final = 8
"""Registers for what is computed of a sum before it is stored, at least."""
_GATHERED: Final = 3
"""Registers for the place of an element that is gathered, and for whether there is one: the numbers
of its row and of its k are taken apart into axes."""
_ROOM: Final = 12
"""Registers beside those that are needed at least, with which blocks share a unit unhurt."""


@dataclass(frozen=True)
class LaneRegisters:
    """What a plan asks of each lane, for sums and factors of such dtypes, of which some are
    gathered: windows of convolutions, and what has guards."""

    plan: MmaPlan
    sums: DType
    factors: tuple[DType, DType]
    gathered: tuple[bool, bool] = (False, False)

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
        total += _EPILOGUE if self.plan.epilogue else 0
        for own, coming, dtype in zip((rows, columns), self._coming, self.factors, strict=True):
            total += (2 * own + coming) * _words(dtype)
        return total

    @property
    def _coming(self) -> tuple[int, int]:
        """Elements of a slice of each factor that a lane fetches."""
        rows, columns, depth = self.plan.tile
        return rows * depth // self.threads, columns * depth // self.threads

    @property
    def wanted(self) -> int:
        """What the compiler takes without moving anything to memory, estimated."""
        pairs = zip(self._coming, self.gathered, strict=True)
        return self.needed + _ROOM + sum(_GATHERED * coming for coming, is_far in pairs if is_far)

    def resident(self, target: Target) -> int:
        """Tiles with few rows or columns do little but wait for memory, several at a time; of
        others one multiplies while another meets. Fewer share a unit where each would lack
        registers, if that gives them any."""
        is_thin = min(self.plan.tile[:2]) <= FEW[-1]
        alone = registers_given(target.limits, self.threads)
        for blocks in (RESIDENT, 2) if is_thin else (2,):
            given = registers_given(target.limits, blocks * self.threads)
            if given >= min(self.wanted, alone):
                return blocks
        return 1

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
