"""The data of constants: numbers in text or Python, the bytes they stand for, and back to text.

Data that does not make a tensor of its dtype is kept as `Unreadable`, with the code and the reason
that the verifier will give, so that a file with a bad constant can be loaded, shown and judged
whole.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.core_ir.types import Shape, dtype_name, show_shape
from weft.foundation.dtypes import F32, DType
from weft.foundation.errors import SpecViolation, clipped
from weft.foundation.limits import Limits
from weft.ptir.literal import TensorLiteral, from_array
from weft.ptir.types import TensorType as PtirType

LITERAL_SHAPE: Final = "E3010"
CONSTANT: Final = "E4005"
LONGEST_LISTED: Final = 256
"""Constants with more elements than this are written as hex bytes."""
LONGEST_NUMBER: Final = 400
_WHOLE: Final = re.compile(r"[-+]?[0-9]{1,40}")


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Data as it was written, and why it is no tensor of the declared dtype."""

    text: str
    code: str
    why: str


Data: TypeAlias = TensorLiteral | Unreadable


def literal_of(rows: Any, dtype: DType) -> Data:
    """The tensor that numbers in a text stand for: one, or nested lists of them."""
    texts: list[str] = []
    shape = _nested_shape(rows, texts)
    try:
        if shape is None:
            raise SpecViolation(LITERAL_SHAPE, "the rows of the literal differ in length or depth")
        if len(shape) > Limits.rank:
            raise SpecViolation(LITERAL_SHAPE, f"the literal nests deeper than {Limits.rank}")
        if 0 in shape:
            raise SpecViolation(LITERAL_SHAPE, "the literal has no elements")
        return from_array(_array(texts, dtype).reshape(shape))
    except SpecViolation as error:
        return Unreadable(_as_written(rows), error.code, error.why)


def _as_written(rows: Any) -> str:
    """Nested lists of numbers as text."""
    closed: list[str] = []
    stack: list[Any] = [rows]
    while stack:
        top = stack.pop()
        if not isinstance(top, list):
            closed.append(top)
            continue
        closed.append("[")
        stack.append("]")
        for position in range(len(top) - 1, -1, -1):
            stack.append(top[position])
            if position:
                stack.append(", ")
    return "".join(closed)


def literal_of_bytes(data: bytes, dtype: DType, shape: Shape, source: str) -> Data:
    """The tensor with these bytes, which have no shape of their own."""
    wanted = math.prod(shape) * dtype.storage_bytes
    if len(data) != wanted:
        why = f"{show_shape(shape)} of {dtype_name(dtype)} takes {wanted} bytes, not {len(data)}"
        return Unreadable(source, CONSTANT, why)
    return TensorLiteral(PtirType(dtype, shape), data)


def literal_of_values(values: Any, dtype: DType) -> Data:
    """The tensor that a Python number, list or array stands for."""
    if isinstance(values, TensorLiteral | Unreadable):
        return values
    if isinstance(values, np.ndarray | np.generic):
        if values.dtype == dtype.numpy:
            return from_array(np.asarray(values))
        values = values.tolist()
    return literal_of(_in_text(values), dtype)


def _in_text(values: Any) -> Any:
    """The same nested lists with every number as text."""
    if isinstance(values, np.ndarray):
        values = values.tolist()
    if isinstance(values, list | tuple):
        return [_in_text(value) for value in values]
    if isinstance(values, int | np.integer) and not isinstance(values, bool):
        number = int(values)
        return str(number) if abs(number) < 10**40 else "a number of more than 40 digits"
    if isinstance(values, float | np.floating):
        return repr(float(values))
    return clipped(str(values), 40)


def _nested_shape(rows: Any, texts: list[str]) -> Shape | None:
    """The shape of nested lists, whose leaves go to `texts` in order; None where rows differ."""
    sizes: dict[int, set[int | None]] = {}
    stack: list[tuple[Any, int]] = [(rows, 0)]
    while stack:
        top, depth = stack.pop()
        if isinstance(top, list):
            sizes.setdefault(depth, set()).add(len(top))
            stack.extend((item, depth + 1) for item in reversed(top))
        else:
            sizes.setdefault(depth, set()).add(None)
            texts.append(top)
    if any(len(level) != 1 for level in sizes.values()):
        return None
    dims = (next(iter(sizes[depth])) for depth in sorted(sizes))
    return tuple(dim for dim in dims if dim is not None)


def _array(texts: Sequence[str], dtype: DType) -> NDArray[Any]:
    if dtype.is_integer:
        return np.array([_parse_integer(text, dtype) for text in texts], dtype.numpy)
    return np.array([_real(text, dtype) for text in texts], dtype.numpy)


def _parse_integer(text: str, dtype: DType) -> int:
    if not _WHOLE.fullmatch(text):
        raise _invalid_literal(text, dtype)
    number = int(text)
    if not dtype.lowest <= number <= dtype.highest:
        raise SpecViolation(
            CONSTANT,
            f"{number} is outside {dtype.lowest} to {dtype.highest}, the range of "
            f"{dtype_name(dtype)}",
        )
    return number


def _real(text: str, dtype: DType) -> float:
    try:
        number = float(text[:LONGEST_NUMBER])
    except ValueError:
        raise _invalid_literal(text, dtype) from None
    if len(text) > LONGEST_NUMBER:
        raise SpecViolation(CONSTANT, f"a number has more than {LONGEST_NUMBER} characters")
    with np.errstate(over="ignore"):
        held = float(dtype.numpy.type(number))
    if math.isinf(held) and "inf" not in text:
        raise SpecViolation(CONSTANT, f"{clipped(text, 40)} is too large for {dtype_name(dtype)}")
    return held


def _invalid_literal(text: str, dtype: DType) -> SpecViolation:
    return SpecViolation(CONSTANT, f"{clipped(text, 40)!r} is not a value of {dtype_name(dtype)}")


# -- back to text --------------------------------------------------------------------------------


def print_data(data: Data, declared: Shape) -> str:
    """The data as nested lists, or as hex bytes where those would be long or lose bits. Bytes have
    no shape: data of another than the declared one are always listed."""
    if isinstance(data, Unreadable):
        return data.text
    array = data.array
    if array.shape == declared and (array.size > LONGEST_LISTED or _odd_nan(array)):
        return f"0x{data.data.hex()}"
    texts = [_element_text(value, data.type.dtype) for value in array.reshape(-1)]
    for extent in reversed(array.shape):
        texts = [
            f"[{', '.join(texts[start : start + extent])}]"
            for start in range(0, len(texts), extent)
        ]
    return texts[0]


def _odd_nan(array: NDArray[Any]) -> bool:
    """Whether a NaN has other bits than the one that is written as `nan`."""
    if array.dtype.kind != "f":
        return False
    found = array[np.isnan(array)]
    return bool(found.tobytes() != np.full(found.shape, np.nan, array.dtype).tobytes())


def _element_text(value: Any, dtype: DType) -> str:
    if dtype.is_integer:
        return str(int(value))
    if dtype is F32:
        short = str(value)
        # Reading goes through f64; where that would round twice, the digits of the f64 are kept.
        return (
            short if np.float32(float(short)).tobytes() == value.tobytes() else repr(float(value))
        )
    return repr(float(value))
