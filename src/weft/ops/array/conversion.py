"""What a tensor can be made of: tensors, arrays, numbers, nested lists, and whatever speaks DLPack
or the buffer protocol; and the way out of Weft through DLPack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.foundation.dtypes import DType, as_dtype
from weft.foundation.errors import OutOfRange, SpecViolation, UserError
from weft.foundation.numeric import cast
from weft.ops.array.manipulation import stack
from weft.ops.calls import public
from weft.ops.graph.arena import Arena
from weft.ops.graph.context import current, default_arena
from weft.ops.numbers import is_number, number, widest
from weft.ops.promotion import DEFAULTS
from weft.ops.tensor import Tensor, from_array

__all__ = ["from_dlpack"]

Array = NDArray[Any]


def home(device: str | None) -> Arena:
    """The arena in which a new tensor is made."""
    arena = current()
    if device is None or device == arena.backend.name:
        return arena
    if arena.tracing:
        raise UserError(
            f"a traced function runs on one backend, {arena.backend.name!r} here; a tensor on "
            f"{device!r} cannot be made in it"
        )
    return default_arena(device)


def converted(obj: Any, dtype: DType | None, device: str | None, copy: bool | None) -> Tensor:
    """A tensor from whatever `asarray` takes."""
    if isinstance(obj, Tensor):
        return _from_tensor(obj, dtype, device, copy)
    if is_number(obj) and not isinstance(obj, np.generic):
        wanted = DEFAULTS[widest([obj])] if dtype is None else dtype
        return Tensor(home(device).constant(number(obj, wanted)))
    if isinstance(obj, Sequence) and _holds_tensors(obj):
        return _stacked(obj, dtype, device)
    array = as_array(obj)
    if copy is False and (isinstance(obj, Sequence) or dtype not in (None, as_dtype(array.dtype))):
        raise _must_copy(f"{type(obj).__name__} as {dtype or 'a tensor'}")
    written = _is_written_in_python(obj)
    natural = DEFAULTS[_python_kind(array)] if written else as_dtype(array.dtype)
    if written and natural.is_integer and dtype is None and array.dtype.kind == "u":
        natural = as_dtype(array.dtype)
    elements = _in_dtype(array, dtype or natural, exact=written)
    if copy is not False and (elements is array or np.shares_memory(elements, array)):
        elements = np.array(elements)
    return from_array(elements, home(device))


def _must_copy(what: str) -> OutOfRange:
    return OutOfRange(
        "InvalidAttributeValue", f"copy is False, but {what} needs one", "leave `copy` out"
    )


def _from_tensor(x: Tensor, dtype: DType | None, device: str | None, copy: bool | None) -> Tensor:
    moves = device is not None and device != x.device
    casts = dtype is not None and dtype is not x.dtype
    if not moves and not casts:
        return x.__copy__() if copy else x
    if copy is False:
        raise _must_copy(f"{x.type} as {dtype or x.dtype} on {device or x.device}")
    moved = x.to(device) if device is not None else x
    return moved.astype(dtype) if casts else moved


def _holds_tensors(obj: Any) -> bool:
    """Whether nested lists hold a tensor: then they are stacked, and nothing is read."""
    stack = [obj]
    while stack:
        item = stack.pop()
        if isinstance(item, Tensor):
            return True
        if isinstance(item, list | tuple):
            stack.extend(item)
    return False


def _stacked(items: Sequence[Any], dtype: DType | None, device: str | None) -> Tensor:
    made = stack([converted(item, None, device, None) for item in items])
    return made if dtype is None else made.astype(dtype)


def as_array(obj: Any) -> Array:
    """An array of numbers; a sentence where it is none."""
    try:
        array = np.asarray(obj)
    except (ValueError, TypeError, RuntimeError, BufferError) as error:
        raise UserError(
            f"a {type(obj).__name__} is no array of numbers ({error}); lists must be rectangular"
        ) from None
    if array.dtype.kind in "OUSMmV" and as_dtype_or_none(array.dtype) is None:
        raise UserError(
            f"a {type(obj).__name__} with elements of NumPy dtype {array.dtype} is no array of "
            "numbers; lists must be rectangular and hold numbers that fit in 64 bits"
        )
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return array


def as_dtype_or_none(dtype: Any) -> DType | None:
    """The dtype of a NumPy dtype; None where there is none."""
    try:
        return as_dtype(dtype)
    except UserError:
        return None


def _is_written_in_python(obj: Any) -> bool:
    """Lists and tuples hold Python numbers, which take the default dtypes."""
    return isinstance(obj, list | tuple | range)


def _python_kind(array: Array) -> type[Any]:
    return {"b": bool, "i": int, "u": int, "f": float, "c": complex}[array.dtype.kind]


def _in_dtype(array: Array, dtype: DType, exact: bool) -> Array:
    """The array in a dtype. Numbers written in a list must be representable; an array is cast."""
    source = as_dtype(array.dtype)
    if source is dtype:
        return array
    if source.is_complex and not dtype.is_complex:
        raise SpecViolation(
            "DTypeMismatch",
            f"complex numbers cannot be converted to {dtype}",
            "take their real parts first",
        )
    if exact and dtype.is_integer and source.is_integer and array.size:
        low, high = int(array.min()), int(array.max())
        if low < dtype.lowest or high > dtype.highest:
            raise OutOfRange(
                "LiteralInvalid",
                f"the numbers from {low} to {high} are not all representable in {dtype}",
                f"{dtype} holds whole numbers from {dtype.lowest} to {dtype.highest}",
            )
    return cast(array, source, dtype)


@public
def from_dlpack(x: Any, /, *, device: str | None = None, copy: bool | None = None) -> Tensor:
    """A tensor from another library's, through DLPack. Memory is shared unless `copy` is True: then
    nobody may write to it any more."""
    if isinstance(x, Tensor):
        return _from_tensor(x, None, device, copy)
    if not hasattr(x, "__dlpack__"):
        raise UserError(f"a {type(x).__name__} has no __dlpack__ method; use weft.asarray")
    try:
        array = np.from_dlpack(x)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(f"the {type(x).__name__} cannot be taken over: {error}") from None
    return from_array(np.array(array) if copy else array, home(device))
