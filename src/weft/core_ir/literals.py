"""The data of constants: numbers in text or Python, the bytes they stand for, and back to text.

Data that does not make a tensor of its dtype is kept as `Unreadable`, with the code and the reason
that the verifier will give, so that a file with a bad constant can be loaded, shown and judged
whole.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
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
_WHOLE: Final = re.compile(r"[-+]?[0-9]{1,40}")


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Data as it was written, and why it is no tensor of the declared dtype."""

    text: str
    code: str
    why: str


Data: TypeAlias = TensorLiteral | Unreadable


@dataclass(frozen=True, slots=True)
class Numbers:
    """Numbers as they stand in a text: row by row, with the shape of their nesting."""

    texts: tuple[str, ...]
    shape: Shape | None
    """None where rows differ in length or depth."""
    source: str


def literal_of(numbers: Numbers, dtype: DType) -> Data:
    """The tensor that numbers in a text stand for."""
    try:
        if numbers.shape is None:
            raise SpecViolation(LITERAL_SHAPE, "the rows of the literal differ in length or depth")
        if len(numbers.shape) > Limits.rank:
            raise SpecViolation(LITERAL_SHAPE, f"the literal nests deeper than {Limits.rank}")
        return from_array(_array(numbers.texts, dtype).reshape(numbers.shape))
    except SpecViolation as error:
        return Unreadable(numbers.source, error.code, error.why)


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
    if isinstance(values, np.ndarray | np.generic) and values.dtype == dtype.numpy:
        return from_array(np.asarray(values))
    texts: list[str] = []
    shape = nested_shape(values, lambda leaf: texts.append(_written(leaf)))
    return literal_of(Numbers(tuple(texts), shape, clipped(str(values), 200)), dtype)


def _written(leaf: Any) -> str:
    if isinstance(leaf, bool | np.bool_):
        return str(leaf)
    if isinstance(leaf, int | np.integer):
        return str(int(leaf)) if abs(int(leaf)) < 10**40 else "a number of more than 40 digits"
    return repr(float(leaf)) if isinstance(leaf, float | np.floating) else clipped(str(leaf), 40)


def nested_shape(values: Any, visit: Callable[[Any], object]) -> Shape | None:
    """The shape of nested lists, each leaf visited in order; None where rows differ."""
    shapes: dict[int, set[int | None]] = {}
    stack: list[tuple[Any, int]] = [(values, 0)]
    while stack:
        top, depth = stack.pop()
        if isinstance(top, np.ndarray):
            top = top.tolist()
        if isinstance(top, list | tuple):
            shapes.setdefault(depth, set()).add(len(top))
            stack.extend((item, depth + 1) for item in reversed(top))
        else:
            shapes.setdefault(depth, set()).add(None)
            visit(top)
    levels = [shapes[depth] for depth in sorted(shapes)]
    if any(len(level) != 1 for level in levels):
        return None
    dims = [next(iter(level)) for level in levels]
    return tuple(dim for dim in dims if dim is not None)


def _array(texts: Sequence[str], dtype: DType) -> NDArray[Any]:
    if dtype.is_integer:
        return np.array([_whole(text, dtype) for text in texts], dtype.numpy)
    return np.array([_real(text, dtype) for text in texts], dtype.numpy)


def _whole(text: str, dtype: DType) -> int:
    if not _WHOLE.fullmatch(text):
        raise _invalid(text, dtype)
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
        number = float(text)
    except ValueError:
        raise _invalid(text, dtype) from None
    with np.errstate(over="ignore"):
        held = float(dtype.numpy.type(number))
    if math.isinf(held) and "inf" not in text:
        raise SpecViolation(CONSTANT, f"{clipped(text, 40)} is too large for {dtype_name(dtype)}")
    return held


def _invalid(text: str, dtype: DType) -> SpecViolation:
    return SpecViolation(CONSTANT, f"{clipped(text, 40)!r} is not a value of {dtype_name(dtype)}")


# -- back to text --------------------------------------------------------------------------------


def print_data(data: Data) -> str:
    """The data as nested lists, or as hex bytes where those would be long or lose bits."""
    if isinstance(data, Unreadable):
        return data.text
    array = data.array
    if not 0 < array.size <= LONGEST_LISTED or _odd_nan(array):
        return f"0x{data.data.hex()}"
    texts = [_element(value, data.type.dtype) for value in array.reshape(-1)]
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


def _element(value: Any, dtype: DType) -> str:
    if dtype.is_integer:
        return str(int(value))
    if dtype is F32:
        short = str(value)
        # Reading goes through f64; where that would round twice, the digits of the f64 are kept.
        return (
            short if np.float32(float(short)).tobytes() == value.tobytes() else repr(float(value))
        )
    return repr(float(value))
