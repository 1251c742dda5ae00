"""The matrix instructions of a GPU: operand types, accumulator type, depth.

    acc[rows x columns] += a[rows x k] b[k x columns]

A warp's instructions (`sm80`) have 16 rows and 8 columns, a warpgroup's (`sm90`) 64 rows and any
multiple of 8 columns up to 256. A contraction whose operands and sums are in no row of the table is
not theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from weft.foundation.dtypes import (
    BF16,
    F16,
    F32,
    F64,
    FP8_E4M3,
    FP8_E5M2,
    SI8,
    SI32,
    UI8,
    UI32,
    DType,
)
from weft.foundation.records import dataclass

FULL: Final = "full"
"""Products and sums as the dtypes say."""
PROMOTED: Final = "promoted"
"""Sums of one k step have some 14 bits; they are added up in f32."""
SPLIT: Final = "3xtf32"
"""Each f32 is multiplied as two numbers of 11 bits, without the product of both lower ones."""
INTEGERS: Final = (SI8, UI8)
TINY: Final = (FP8_E4M3, FP8_E5M2)


@dataclass(frozen=True)
class Atom:
    """One matrix instruction."""

    a: DType
    b: DType
    acc: DType
    """The dtype of the sums. Those of ui32 are made as si32: the bits are the same."""
    k: int
    along_k: bool = False
    """Whether operands must lie along k; others may lie along rows and columns too."""
    precision: str = FULL
    """What a plan must say to have it."""
    columns: int = 8
    """Columns come in multiples of this, beyond the first 32."""

    @property
    def word(self) -> int:
        """Bytes of an element of an operand."""
        return self.a.storage_bytes

    @property
    def in_parts(self) -> bool:
        """Whether the sums of one k step are kept apart from the others."""
        return self.precision != FULL


def _half_atoms() -> Iterator[Atom]:
    for dtype in (BF16, F16):
        yield Atom(dtype, dtype, F32, 16)


def _integer_atoms() -> Iterator[Atom]:
    for a in INTEGERS:
        for b in INTEGERS:
            yield Atom(a, b, SI32, 32, along_k=True, columns=16)
    yield Atom(UI8, UI8, UI32, 32, along_k=True, columns=16)


def _sm80() -> Iterator[Atom]:
    yield from _half_atoms()
    yield from _integer_atoms()
    yield Atom(F64, F64, F64, 4)
    yield Atom(F32, F32, F32, 8, precision=SPLIT)


def _sm90() -> Iterator[Atom]:
    yield from _half_atoms()
    yield from _integer_atoms()
    for a in TINY:
        for b in TINY:
            yield Atom(a, b, F32, 32, along_k=True, precision=PROMOTED)


ATOMS: Final[Mapping[str, tuple[Atom, ...]]] = {"sm80": tuple(_sm80()), "sm90": tuple(_sm90())}
"""The instructions of each template."""


def atom_for(arch: str, a: DType, b: DType, acc: DType) -> Atom | None:
    """The instruction of a template for these operands and sums; None where it has none."""
    found = (x for x in ATOMS[arch] if (x.a, x.b, x.acc) == (a, b, acc))
    return next(found, None)
