"""Element types and dense constants, in MLIR's words and in PTIR's.

    f32            the element types that both have
    dense<...>     a number for all elements, nested lists, or the bytes in hex

MLIR prints a float in hex digits where a decimal would not read back to the same bits, and whole
constants in hex where they are large; both forms are read, and hex is written, so no bit changes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from weft.foundation import limits
from weft.foundation.dtypes import (
    ALL,
    CF32,
    CF64,
    FP8_E4M3,
    FP8_E5M2,
    I1,
    SI4,
    SI64,
    UI4,
    DType,
)
from weft.foundation.errors import InternalError, SpecViolation
from weft.ptir.literal import TensorLiteral, from_array
from weft.ptir.types import TensorType

_SPECIAL: Final = {
    I1: "i1",
    FP8_E4M3: "f8E4M3FN",
    FP8_E5M2: "f8E5M2",
    CF32: "complex<f32>",
    CF64: "complex<f64>",
}
ELEMENT: Final[Mapping[DType, str]] = {
    dtype: _SPECIAL.get(dtype, str(dtype).removeprefix("s")) for dtype in ALL
}
"""What MLIR calls each dtype: signed integers have no sign in their name."""
DTYPES: Final[Mapping[str, DType]] = {
    **{name: dtype for dtype, name in ELEMENT.items()},
    "index": SI64,
}
_TOKEN: Final = re.compile(r"[^\s,()\[\]]+")
_TRUTHS: Final = {"true": True, "false": False}
_MOST_SPELLED: Final = 16
"""How many elements are written as numbers; more are written as bytes."""


def read_dense(text: str, kind: TensorType) -> TensorLiteral:
    """The literal of this type that `dense<...>` holds."""
    needed = kind.size * kind.dtype.storage_bytes
    limits.check_bytes(needed, f"a constant {kind}", limits.current())
    inside = text.strip()
    if not inside.startswith("dense<"):
        raise SpecViolation("LiteralInvalid", "only dense constants can be read")
    inside = inside[len("dense<") : inside.rindex(">")].strip()
    if inside.startswith('"0x'):
        return _from_bytes(bytes.fromhex(inside.strip('"')[2:]), kind)
    tokens = _TOKEN.findall(inside)
    per_element = 2 if kind.dtype.is_complex else 1
    numbers = [_parse_number(token, kind.dtype) for token in tokens]
    if kind.dtype.is_complex:
        numbers = [complex(re_, im) for re_, im in zip(numbers[::2], numbers[1::2], strict=True)]
    elements = np.asarray(numbers, kind.dtype.numpy)
    if len(tokens) == per_element and kind.size != 1:
        elements = np.broadcast_to(elements, (kind.size,))
    return from_array(elements.reshape(kind.static_shape))


def _from_bytes(data: bytes, kind: TensorType) -> TensorLiteral:
    width = kind.dtype.storage_bytes
    if len(data) == width and kind.size != 1:
        data = data * kind.size
    if kind.dtype in (SI4, UI4):
        nibbles = np.frombuffer(data, np.uint8) & 0x0F
        return from_array(nibbles.view(kind.dtype.numpy).reshape(kind.static_shape))
    return TensorLiteral(kind, data)


def _parse_number(token: str, dtype: DType) -> Any:
    if token in _TRUTHS:
        return _TRUTHS[token]
    if token.startswith(("0x", "0X", "-0x")) and (dtype.is_float or dtype.is_complex):
        return _float_bits(int(token, 16), dtype)
    if dtype.is_float or dtype.is_complex:
        part = dtype.numpy if dtype.is_float else np.dtype(f"f{dtype.bits // 16}")
        return np.asarray(float(token)).astype(part)[()]
    return int(token, 0)


def _float_bits(bits: int, dtype: DType) -> Any:
    part = np.dtype(f"f{dtype.bits // 16}") if dtype.is_complex else dtype.numpy
    return np.frombuffer(bits.to_bytes(part.itemsize, "little"), part)[0]


# -- writing -------------------------------------------------------------------------------------


def write_dense(data: TensorLiteral) -> str:
    """The constant as an attribute of MLIR, its type included."""
    kind = data.type
    body = data.data
    if kind.dtype in (SI4, UI4):
        body = (np.frombuffer(body, np.uint8) & 0x0F).tobytes()
    width = kind.dtype.storage_bytes
    if not kind.size:
        return f"dense<> : {tensor_text(kind)}"
    if kind.dtype.is_float or kind.dtype.is_complex or kind.size > _MOST_SPELLED:
        shown = body[:width] if data.is_splat else body
        return f'dense<"0x{shown.hex().upper()}"> : {tensor_text(kind)}'
    return f"dense<{_spell_numbers(data.array, kind.dtype)}> : {tensor_text(kind)}"


def _spell_numbers(array: Any, dtype: DType) -> str:
    if array.ndim == 0:
        value = array[()]
        return str(bool(value)).lower() if dtype is I1 else str(int(value))
    return f"[{', '.join(_spell_numbers(part, dtype) for part in array)}]"


def tensor_text(kind: TensorType) -> str:
    """The type as MLIR writes it; named dims lose their names."""
    if kind.dtype not in ELEMENT:
        raise InternalError(f"{kind.dtype} has no name in MLIR")
    dims = "".join(f"{dim if isinstance(dim, int) else '?'}x" for dim in kind.shape)
    return f"tensor<{dims}{ELEMENT[kind.dtype]}>"
