"""What a tensor can be made of: tensors, arrays, numbers, nested lists, and whatever speaks DLPack
or the buffer protocol; and the way out of Weft through DLPack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.foundation.arrays import handed_in, refuse_masked
from weft.foundation.dtypes import DType, as_dtype, as_dtype_or_none
from weft.foundation.errors import OutOfRange, SpecViolation, UserError, a_type
from weft.foundation.numeric import cast
from weft.ops.array.manipulation import stack
from weft.ops.calls import public
from weft.ops.dlpack import imported
from weft.ops.graph.arena import Arena
from weft.ops.graph.context import current, default_arena
from weft.ops.numbers import is_number, number, number_type, python_type
from weft.ops.promotion import DEFAULTS
from weft.ops.tensor import Tensor, from_array
from weft.ptir.types import TensorType

__all__ = ["from_dlpack"]
_CUDA = "cuda"
_CUDA_KIND = 2
"""DLPack's number for CUDA devices, and the backend whose memory is there."""

Array = NDArray[Any]
_PYTHON: dict[str, type] = {"b": bool, "i": int, "u": int, "f": float, "c": complex}
"""The Python type whose numbers a NumPy kind holds."""


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
        wanted = DEFAULTS[number_type(obj)] if dtype is None else dtype
        return Tensor(home(device).constant(number(obj, wanted)))
    if isinstance(obj, list | tuple | range):
        return _from_list(obj, dtype, device, copy)
    array = as_array(obj)
    elements = array if dtype is None else _in_dtype(array, dtype)
    if copy is False and elements is not array:
        raise _must_copy(f"{array.dtype} as {dtype}")
    if copy is not False and np.may_share_memory(elements, array):
        elements = np.array(elements)
    return from_array(elements if copy is not False else _borrow_array(elements), home(device))


def _borrow_array(array: Array) -> Array:
    """Memory of somebody else, which is read and never written."""
    shared = array.view()
    shared.flags.writeable = False
    return shared


def _must_copy(what: str) -> OutOfRange:
    return OutOfRange(
        "InvalidAttributeValue", f"copy is False, but {what} needs one", "leave `copy` out"
    )


def _from_tensor(x: Tensor, dtype: DType | None, device: str | None, copy: bool | None) -> Tensor:
    if x.number is not None and dtype is None:
        dtype = DEFAULTS[python_type(x.dtype)]
    moves = device is not None and device != x.device
    casts = dtype is not None and dtype is not x.dtype
    if not moves and not casts:
        if copy and x.number is None:
            return x.__deepcopy__({})
        return x.__copy__() if x.number is not None else x
    if copy is False:
        raise _must_copy(f"{x.type} as {dtype or x.dtype} on {device or x.device}")
    moved = x.to(device) if device is not None else x
    return moved.astype(dtype) if casts else moved


def _from_list(
    items: Sequence[Any], dtype: DType | None, device: str | None, copy: bool | None
) -> Tensor:
    """Lists that hold tensors are stacked, and nothing is read. Python numbers take the default
    dtypes, and must be representable in one that is asked for."""
    if copy is False:
        raise _must_copy(a_type(items))
    leaves = _leaf_types(items)
    if Tensor in leaves:
        flat, shape = _flatten_lists(items)
        made = stack([converted(item, None, device, None) for item in flat])
        made = made if len(shape) == 1 else made.reshape((*shape, *made.shape[1:]))
        return made if dtype is None else made.astype(dtype)
    array = as_array(items)
    if any(issubclass(leaf, np.ndarray | np.generic) for leaf in leaves):
        return from_array(_in_dtype(array, dtype or as_dtype(array.dtype)), home(device))
    _check_numbers(array, dtype)
    unsigned = dtype is None and array.dtype.kind == "u"
    natural = as_dtype(array.dtype) if unsigned else DEFAULTS[_PYTHON[array.dtype.kind]]
    return from_array(_in_dtype(array, dtype or natural), home(device))


def _flatten_lists(items: Sequence[Any]) -> tuple[Sequence[Any], tuple[int, ...]]:
    """What lists of equally long lists hold, and in which shape."""
    shape: tuple[int, ...] = (len(items),)
    while items and all(type(item) in (list, tuple) for item in items):
        if len({len(item) for item in items}) > 1 or not items[0]:
            break
        shape = (*shape, len(items[0]))
        items = [inner for item in items for inner in item]
    return items, shape


def _leaf_types(items: Sequence[Any]) -> set[type]:
    """The types of what nested lists hold."""
    found: set[type] = set()
    stack, seen = [items], {id(items)}
    while stack:
        inner = stack.pop()
        kinds = set(map(type, inner))
        if kinds & {list, tuple}:
            lists = [i for i in inner if type(i) in (list, tuple) and id(i) not in seen]
            seen.update(map(id, lists))
            stack.extend(lists)
        found |= kinds - {list, tuple}
    return found


def as_array(obj: Any) -> Array:
    """An array of numbers; a sentence where it is none."""
    try:
        array = _as_array(obj)
    except (ValueError, TypeError, RuntimeError, BufferError) as error:
        raise UserError(
            f"{a_type(obj)} is not an array of numbers ({error}); lists must be rectangular"
        ) from None
    if array.dtype.kind in "OUSMmV" and as_dtype_or_none(array.dtype) is None:
        raise UserError(
            f"{a_type(obj)} with elements of NumPy dtype {array.dtype} is not an array of "
            "numbers; lists must be rectangular and hold numbers that fit in 64 bits"
        )
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return array


def _as_array(obj: Any) -> Array:
    """As NumPy reads it; a dtype that NumPy does not have may still come through DLPack."""
    try:
        return handed_in(obj)
    except (TypeError, RuntimeError):
        if not hasattr(obj, "__dlpack__"):
            raise
        return imported(obj)


def _in_dtype(array: Array, dtype: DType) -> Array:
    """The array in a dtype, itself where it has it."""
    source = as_dtype(array.dtype)
    if source is dtype:
        return array
    if source.is_complex and not dtype.is_complex:
        raise SpecViolation(
            "DTypeMismatch",
            f"complex numbers cannot be converted to {dtype}",
            "take their real parts first",
        )
    return cast(array, source, dtype)


def _check_numbers(array: Array, dtype: DType | None) -> None:
    """Whole numbers that are written out must be representable in the dtype asked for."""
    if dtype is None or not dtype.is_integer or array.dtype.kind not in "iu" or not array.size:
        return
    low, high = int(array.min()), int(array.max())
    if low < dtype.lowest or high > dtype.highest:
        raise OutOfRange(
            "LiteralInvalid",
            f"the numbers from {low} to {high} are not all representable in {dtype}",
            f"{dtype} holds whole numbers from {dtype.lowest} to {dtype.highest}",
        )


def _is_on_a_gpu(x: Any) -> bool:
    where = getattr(x, "__dlpack_device__", None)
    return where is not None and bool(where()[0] == _CUDA_KIND)


def _taken_over(x: Any, copy: bool) -> Tensor:
    """A tensor of a GPU, with its memory or with a copy of it."""
    arena = home(_CUDA)
    backend: Any = arena.backend
    storage = backend.take_over(x, copy)
    kind = TensorType(as_dtype(storage.dtype), storage.shape)
    return Tensor(arena.leaf(storage, kind))


@public
def from_dlpack(x: Any, /, *, device: str | None = None, copy: bool | None = None) -> Tensor:
    """A tensor from another library's, through DLPack. Memory is shared unless `copy` is True: then
    nobody may write to it any more."""
    if isinstance(x, Tensor):
        return _from_tensor(x, None, device, copy)
    if not hasattr(x, "__dlpack__"):
        raise UserError(f"{a_type(x)} has no __dlpack__ method; use weft.asarray")
    refuse_masked(x)
    if device in (None, _CUDA) and _is_on_a_gpu(x):
        return _taken_over(x, bool(copy))
    try:
        array = imported(x)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(f"the {type(x).__name__} cannot be taken over: {error}") from None
    return from_array(np.array(array) if copy else _borrow_array(array), home(device))
