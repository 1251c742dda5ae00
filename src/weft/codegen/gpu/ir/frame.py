"""The declarations of a kernel: shared-memory ranges, barriers, tables, the workspace, tensor maps,
registers; and references to them.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from weft.codegen.gpu.ir.scalar import Scalar
from weft.codegen.gpu.ir.swizzle import Swizzle, TileLayout
from weft.foundation.dtypes import F32, F64, DType
from weft.foundation.records import dataclass

WINDOW_CORNERS: Final = {3: (-(1 << 15), (1 << 15) - 1), 4: (-128, 127), 5: (-16, 15)}
"""How far places may begin before and end behind an image, by the rank of its map."""
LARGEST_STEP: Final = 8
"""Elements from place to place."""
MOST_POINTERS: Final = 4000
"""Of all sets of a kernel's buffers: a launch takes 32 KB of parameters."""
_LINE_WORDS: Final = 32
"""32-bit words of a line of memory."""


@dataclass(frozen=True)
class SharedTile:
    """A range of shared memory. `layout` is that of one matrix in it, where it holds matrices."""

    name: str
    offset: int
    bytes: int
    layout: TileLayout | None = None


@dataclass(frozen=True)
class Barriers:
    """An array of mbarriers, each completed by `arrivals` arrivals."""

    name: str
    offset: int
    count: int
    arrivals: int

    @property
    def bytes(self) -> int:
        return 8 * self.count


@dataclass(frozen=True)
class Table:
    """Constants the kernel looks up."""

    name: str
    values: tuple[int, ...]


@dataclass(frozen=True)
class Workspace:
    """Global memory of a kernel's own, which lasts from launch to launch: `counters`, which are
    zero before the first launch and which every launch leaves at zero, and behind them `words` of
    32 bits, of which a launch finds anything."""

    counters: int
    words: int

    @property
    def first_word(self) -> int:
        """The place of the first word, in words: the next whole line."""
        return -(-self.counters // _LINE_WORDS) * _LINE_WORDS

    @property
    def bytes(self) -> int:
        return 4 * (self.first_word + self.words)


@dataclass(frozen=True)
class Window:
    """How copies go through an image, whose axes are channels, one to three axes that windows move
    over, and images: from place to place along the first of these axes, `steps` apart, then along
    the next one, then to the next image. Places lie in the image moved by `lower` at its beginning
    and by `upper` at its end; where one is outside of the image, zeros are copied."""

    lower: tuple[int, ...]
    upper: tuple[int, ...]
    steps: tuple[int, ...]


@dataclass(frozen=True)
class TensorMap:
    """A tensor as the copy engine sees it: contiguous axis first.

    `offset` is in elements from the start of the buffer; `strides` (elements) has no entry for the
    first axis. `box` is what one copy moves; of an image it is (channels, places).
    """

    name: str
    buffer: int
    dtype: DType
    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: Swizzle
    window: Window | None = None


@dataclass(frozen=True)
class Address:
    """A byte of a shared tile."""

    tile: str
    offset: Scalar


@dataclass(frozen=True)
class BarrierAt:
    """One barrier of an array."""

    barriers: str
    index: Scalar


class RegisterKind(Enum):
    """What a register array holds: numbers, or 32 bits of anything (pairs of 16-bit floats)."""

    F32 = "float"
    F64 = "double"
    S32 = "int"
    B32 = "u32"

    @classmethod
    def for_sums(cls, dtype: DType) -> RegisterKind:
        """Of accumulators of a dtype; unsigned sums are made as signed ones."""
        return {F32: cls.F32, F64: cls.F64}.get(dtype, cls.S32)

    @classmethod
    def for_results(cls, dtype: DType) -> RegisterKind:
        """Of what an element program makes."""
        return {F32: cls.F32, F64: cls.F64}.get(dtype, cls.B32)


@dataclass(frozen=True)
class RegAt:
    """An element of a register array."""

    array: str
    index: int = 0
