"""Valid names in dialect kernels, which become C identifiers.

A name of the dialect is not one that C, the prelude or the printed frame of a kernel uses already,
and does not end in an underscore: those are the printer's own.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from weft.codegen.gpu.ir.functions import OF_C
from weft.codegen.gpu.ir.scalar import Which
from weft.codegen.gpu.spelling.prelude import TEXTS

_FORM: Final = re.compile(r"[A-Za-z](?:[A-Za-z0-9_]{0,62}[A-Za-z0-9])?")
_FRAME: Final = re.compile(r"[bm][0-9]+|shared|shared_bytes|error|workspace")
_FUNCTION: Final = re.compile(r"INLINE\w* [\w*&]+ (\w+)\(")
_WORDS: Final = """
    alignas alignof and asm auto bool break case catch char class const constexpr continue decltype
    default delete do double else enum explicit export extern false float for friend goto if inline
    int long mutable namespace new noexcept not nullptr operator or private protected public
    register return short signed sizeof static struct switch template this throw true try typedef
    typeid typename union unsigned using virtual void volatile while xor
    i8 u8 i16 u16 u32 i64 u64 TensorMap Held INLINE INLINE_MEMBER
    min max fabs fabsf fmaf fmin fmax fminf fmaxf rint rintf
    threadIdx blockIdx blockDim gridDim float2 double2 uint2 uint4 make_float2 make_double2
    make_uint2 make_uint4 atomicAdd atomicMax atomicMin
"""
_MADE: Final = ("wgmma_", "mma_", "tma_load")
"""How functions begin that are made for one kernel."""
_TAKEN: Final = frozenset(
    {
        *_WORDS.split(),
        *(name + suffix for name in OF_C for suffix in ("", "f")),
        *(which.value for which in Which),
        *(name for part in TEXTS for name in _FUNCTION.findall(part)),
    }
)


@lru_cache(maxsize=1 << 14)
def is_free(name: str) -> bool:
    """Whether a kernel may use a name."""
    formed = _FORM.fullmatch(name) is not None and _FRAME.fullmatch(name) is None
    return formed and name not in _TAKEN and not name.startswith(_MADE)
