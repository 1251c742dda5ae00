"""Register and memory representation of each dtype.

Floats under 32 bits are held in f32 and rounded by whoever makes them; 4-bit integers are held in 8
bits and wrapped likewise, and lie in the lower half of a byte; truth values are bytes. What is held
is always a number of its dtype, unless an op leaves the rounding to whoever stores its value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from weft.codegen.gpu.ir.casts import cast
from weft.foundation.dtypes import (
    BF16,
    F16,
    F32,
    F64,
    FP8_E4M3,
    FP8_E5M2,
    I1,
    SI4,
    SI8,
    SI16,
    SI32,
    SI64,
    UI4,
    UI8,
    UI16,
    UI32,
    UI64,
    DType,
)
from weft.foundation.errors import Unimplemented

ACCESS_BYTES: Final = 16
"""Of the widest access of a thread to memory."""
PAIRED: Final = frozenset({BF16, F16})
"""Floats that the machine rounds two at a time, and that matrix instructions multiply."""
SMALL: Final[Mapping[DType, int]] = {BF16: 128, F16: 1024}
"""Neighbouring integers that the digits of a float of 16 bits tell apart."""
TINY_FLOATS: Final = frozenset({FP8_E4M3, FP8_E5M2})
NARROW: Final = PAIRED | TINY_FLOATS
"""Floats that are held in f32."""
NIBBLES: Final = frozenset({SI4, UI4})
HELD: Final[Mapping[DType, str]] = {
    **dict.fromkeys((F32, *NARROW), "float"),
    F64: "double",
    **dict.fromkeys((SI4, SI8), "i8"),
    **dict.fromkeys((UI4, UI8), "u8"),
    SI16: "i16",
    UI16: "u16",
    SI32: "int",
    UI32: "u32",
    SI64: "i64",
    UI64: "u64",
    I1: "bool",
}
"""The C type in which a value of each dtype is held."""
_STORED: Final[Mapping[DType, str]] = {
    **dict.fromkeys(PAIRED, "u16"),
    **dict.fromkeys(TINY_FLOATS | NIBBLES, "u8"),
}
"""The C type in memory, where it is another one."""


def held(dtype: DType) -> str:
    found = HELD.get(dtype)
    if found is None:
        raise Unimplemented(dtype.name, "GPU kernels have no arithmetic in this dtype")
    return found


def held_bytes(dtype: DType) -> int:
    """Bytes of a value in the form it is held in shared memory: whole words."""
    return 8 if dtype.storage_bytes == 8 else 4


def results_per_group(dtype: DType) -> int:
    """Registers of the four results that a thread has in a group of columns: narrow ones come in
    pairs."""
    return 4 if dtype.storage_bytes >= 4 else 2


def fragment_registers(dtype: DType) -> tuple[int, int]:
    """Registers of a thread's part of a warp's matrix operands A and B, of A's dtype."""
    return (2, 1) if dtype is F64 else (4, 2)


def storage(dtype: DType) -> str:
    """The C type of an element in memory."""
    return _STORED.get(dtype) or held(dtype)


def widen(value: str, dtype: DType) -> str:
    """An element from memory in the form it is held in."""
    return f"widen_{dtype.name}({value})" if dtype in _STORED else value


def narrow(value: str, dtype: DType) -> str:
    """A held value in the form it has in memory."""
    return f"narrow_{dtype.name}({value})" if dtype in _STORED else value


def rounded(value: str, dtype: DType) -> str:
    """A computed value as a number of its dtype: floats to nearest even, 4-bit integers wrapped."""
    return f"round_{dtype.name}({value})" if dtype in _STORED else value


def from_index(value: str, dtype: DType) -> str:
    """A number of the thread as a value: rounded, or cut to the dtype's range."""
    if dtype in NARROW:
        return rounded(f"to_odd({value})", dtype)
    if dtype is I1 or (dtype.is_integer and (dtype.bits < 32 or not dtype.is_signed)):
        return cast(f"((i64){value})", SI64, dtype, held(dtype))
    return f"({held(dtype)})({value})"
