"""Register use of the FMA template: registers per thread under a plan, and the blocks that share an
SM.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from weft.codegen.gpu.body.accept import refuse
from weft.codegen.gpu.ir.formats import held_bytes
from weft.foundation.dtypes import SI64, UI64, DType
from weft.foundation.errors import Finding
from weft.foundation.records import dataclass
from weft.plan.ir import MmaPlan
from weft.region.forms.thin_products import FEW, RESIDENT
from weft.target.roofline import registers_given
from weft.target.target import Target

LANE_GRID: Final = (4, 8)
"""Lanes of a warp along rows and along columns."""
_BESIDE: Final = 16
"""Registers for places and counts, as few as the compiler does with."""
_EPILOGUE: Final = 8
"""Registers for what is computed of a sum before it is stored, at least."""
_GATHERED: Final = 5
"""Registers for the place of an element that is gathered, and for whether there is one: the numbers
of its row and of its k are taken apart into axes."""


@dataclass(frozen=True)
class LaneRegisters:
    """What a plan asks of each lane, for sums and factors of such dtypes, of which some are
    gathered: windows of convolutions, and what has guards."""

    plan: MmaPlan
    sums: DType
    factors: tuple[DType, DType]
    gathered: tuple[bool, bool] = (False, False)
    has_epilogue: bool = False

    @property
    def threads(self) -> int:
        (rows, columns, _), (warp_rows, warp_columns) = self.plan.tile, self.plan.warp_tile
        return (rows // warp_rows) * (columns // warp_columns) * 32

    @property
    def _sums(self) -> int:
        """Registers of sums."""
        rows, columns = self.plan.warp_tile
        return rows * columns // math.prod(LANE_GRID) * _words_of_dtype(self.sums)

    @property
    def needed(self) -> int:
        """The sums, the factors of one k and of the next, and the elements of a slice that are on
        their way to shared memory: wide ones twice, since the compiler loads the next before it
        puts down the last."""
        rows, columns = (
            warp // lanes for warp, lanes in zip(self.plan.warp_tile, LANE_GRID, strict=True)
        )
        total = _BESIDE + self._sums
        total += _EPILOGUE if self.has_epilogue else 0
        for own, coming, dtype in zip(
            (rows, columns), self._elements_to_fetch, self.factors, strict=True
        ):
            words = _words_of_dtype(dtype)
            total += (2 * own + coming * words) * words
        return total

    @property
    def _elements_to_fetch(self) -> tuple[int, int]:
        """Elements of a slice of each factor that a lane fetches."""
        rows, columns, depth = self.plan.tile
        return rows * depth // self.threads, columns * depth // self.threads

    @property
    def with_places(self) -> int:
        """What is needed if the places of gathered elements are kept from slice to slice, as the
        compiler does."""
        pairs = zip(self._elements_to_fetch, self.gathered, strict=True)
        return self.needed + sum(_GATHERED * coming for coming, is_far in pairs if is_far)

    def resident(self, target: Target) -> int:
        """Tiles with few rows or columns do little but wait for memory, several at a time, if all
        have the registers; of others one multiplies while another meets, if both have them."""
        given = registers_given(target.limits, RESIDENT * self.threads)
        if min(self.plan.tile[:2]) <= FEW[-1] and self.with_places <= given:
            return RESIDENT
        needed = self.needed
        if self.sums in (SI64, UI64):
            # A product of 64-bit integers is three of 32 bits. Told to do with 128 registers, the
            # compiler for SM80 keeps so many of them apart that it spills; left alone it takes 79.
            needed += 2 * self._sums
        return 2 if needed <= registers_given(target.limits, 2 * self.threads) else 1

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


def _words_of_dtype(dtype: DType) -> int:
    return held_bytes(dtype) // 4
