"""Statements of the tensor cores: wgmma (SM90), mma.sync (SM80), and the layouts of their operands
and results.
"""

from __future__ import annotations

from typing import TypeAlias

from weft.codegen.gpu.ir.frame import Address, RegAt
from weft.codegen.gpu.ir.swizzle import Major, TileLayout
from weft.foundation.dtypes import DType
from weft.foundation.records import dataclass


@dataclass(frozen=True)
class Descriptor:
    """A wgmma descriptor: where a matrix operand begins, and how it lies."""

    name: str
    address: Address
    layout: TileLayout
    major: Major


@dataclass(frozen=True)
class WgmmaFence:
    """Order register accesses before the following wgmmas."""


@dataclass(frozen=True)
class WgmmaOperand:
    """The slice, 32 bytes deep, that begins `offset` bytes after a descriptor's start."""

    descriptor: str
    offset: int
    major: Major


@dataclass(frozen=True)
class Wgmma:
    """`acc[64 x n] (+)= a[64 x k] b[k x n]`, k being 32 bytes of an operand; without `accumulate`
    the old content is ignored. Integers are added up in 32 bits and wrap, floats in f32; of sums of
    8-bit floats only some 14 bits are kept. A may lie in four registers of each thread, as results
    of two groups of columns do (`Epilogue`): nobody changes them before the wait."""

    acc: str
    n: int
    a: WgmmaOperand | RegAt
    b: WgmmaOperand
    a_dtype: DType
    b_dtype: DType
    accumulate: bool


@dataclass(frozen=True)
class WgmmaCommit:
    """Close a group of wgmmas."""


@dataclass(frozen=True)
class WgmmaWait:
    """Wait until at most `pending` groups of wgmmas are unfinished.

    Accumulators named in `acc` are read or written next.
    """

    pending: int
    acc: tuple[str, ...] = ()


@dataclass(frozen=True)
class SetMaxNReg:
    """Change how many registers each thread of the warpgroup has."""

    count: int
    grow: bool


@dataclass(frozen=True)
class StMatrix:
    """Store two or four 8 x 8 matrices of 16-bit elements, one row address per lane."""

    # Sums lie in registers as A does (`LdMatrix`): lanes point at the same rows.

    target: Address
    source: RegAt
    count: int


@dataclass(frozen=True)
class LdMatrix:
    """Load four matrices of 8 rows of 16 bytes, one row address per lane: a lane gets the fourth of
    a row. Transposed are matrices of 8 x 8 16-bit elements."""

    # Lane 8 i + r points at row r of matrix i, which comes into register i. mma.sync wants A as
    # (rows 0-7, k 0-7), (8-15, 0-7), (0-7, 8-15), (8-15, 8-15): bit 3 of the lane is 8 rows and bit
    # 4 is 8 elements of k, so that lanes point at row `lane & 15`, element `(lane >> 4) * 8`. Of B
    # it wants k 0-7 and 8-15 of eight columns, then of the next eight: bit 3 is 8 elements of k and
    # bit 4 is 8 columns, `(lane & 7) + (lane >> 4) * 8`. Where the tile in memory has k along the
    # other axis, matrices are loaded transposed, and A and B change places in this.
    target: RegAt
    source: Address
    transposed: bool


@dataclass(frozen=True)
class LdRegister:
    """An element of an operand, of 32 or 64 bits, into a register, as each lane points at one."""

    target: RegAt
    source: Address
    dtype: DType


@dataclass(frozen=True)
class PackPair:
    """Two values as a pair of 16-bit floats in a register, the first in the lower bits: what is not
    a number of the dtype yet is rounded to it. So an operand may be computed where it is used."""

    target: RegAt
    low: str
    high: str
    dtype: DType


@dataclass(frozen=True)
class PackSmall:
    """Two integers plus `offset` as a pair of 16-bit floats in a register, exactly: of `least` to
    127 more, or of f16 1023 more. With a `mask` it is that part of each, from bit `shift` on."""

    target: RegAt
    low: str
    high: str
    least: int
    offset: int
    dtype: DType
    shift: int = 0
    mask: int = 0


@dataclass(frozen=True)
class PackSigned:
    """Two signed integers of 8 bits as a pair of 16-bit floats in a register."""

    target: RegAt
    low: str
    high: str
    dtype: DType


@dataclass(frozen=True)
class ScalePair:
    """Both numbers of a register times a value, each product rounded once."""

    target: RegAt
    factor: str
    dtype: DType


@dataclass(frozen=True)
class MmaSync:
    """`acc[16 x 8] += a[16 x k] b[k x 8]`, fragments in registers of the warp.

    16-bit floats have k = 16 and are added up in f32, 8-bit integers k = 32, in 32 bits, where they
    wrap; f64 has k = 4. An f32 (k = 8) is multiplied as the sum of two numbers of 11 bits, without
    the product of both lower ones.
    """

    acc: RegAt
    a: RegAt
    b: RegAt
    a_dtype: DType
    b_dtype: DType


@dataclass(frozen=True)
class AddRegisters:
    """`target += source`, whole arrays; with `first` the target's old content is ignored, with
    `clear` the source then holds zeros."""

    target: str
    source: str
    first: bool = False
    clear: bool = False


Sm80Matrix: TypeAlias = (
    LdMatrix | LdRegister | PackPair | PackSmall | PackSigned | ScalePair | MmaSync
)  # fmt: skip
Sm90Matrix: TypeAlias = (
    Descriptor | WgmmaFence | Wgmma | WgmmaCommit | WgmmaWait | SetMaxNReg | StMatrix
)  # fmt: skip
