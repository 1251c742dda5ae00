"""Host memory as tensors: aligned, at an address, under another shape; and where the elements of an
array begin.

NumPy's own answer to that, `array.ctypes.data`, takes a microsecond or two: longer than a small
kernel. In CPython the object of an array begins with the head that all objects have, and the
pointer to its elements comes next. That is looked at on one array before it is relied upon.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.foundation.dtypes import BY_NAME
from weft.runtime.artifact import TensorSpec
from weft.runtime.blocks import ALIGNMENT, BLOCKS, LARGE

Array = NDArray[Any]


Few: TypeAlias = list[tuple[int, memoryview, int, int]]
"""Numbers of arrays, each with a table, a place in it that points to the array, and the offset
there."""
_HEAD: Final = object.__basicsize__
_word: Final = ctypes.c_size_t.from_address


def _address_by_asking(array: Array) -> int:
    return int(array.ctypes.data)


def _looked_up(array: Array) -> int:
    return _word(id(array) + _HEAD).value


def _choose_way() -> Callable[[Array], int]:
    """The quick way, where it says of an array what NumPy says."""
    if sys.implementation.name != "cpython" or np.ndarray.__basicsize__ <= _HEAD:
        return _address_by_asking
    # Not the start of a block: a pointer to the block's begin, or to its owner, would be another
    # number.
    probe = np.zeros(8, np.uint8)[3:]
    return _looked_up if _looked_up(probe) == _address_by_asking(probe) else _address_by_asking


address_of: Final[Callable[[Array], int]] = _choose_way()
"""The address of an array's first element."""


def few_words(changing: Mapping[int, Iterable[tuple[memoryview, int, int]]]) -> Few | None:
    """All words that point to arrays, by the numbers of these, where each has one or two; else
    None: then it is quicker to ask for each address once."""
    found = [(number, *word) for number, words in changing.items() for word in words]
    return found if len(found) <= 2 * len(changing) else None


def point_words(few: Few, arrays: Sequence[Array]) -> None:
    """Let words point to these arrays."""
    for number, table, place, offset in few:
        table[place] = address_of(arrays[number]) + offset


def aligned_bytes(count: int) -> Array:
    """Uninitialised memory that starts at a multiple of the alignment; never empty."""
    raw = np.empty(max(1, count) + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + max(1, count)]


def empty_tensor(spec: TensorSpec) -> Array:
    """An aligned tensor with unspecified contents."""
    return maker(spec)(())


def zero_tensor(dtype: str, shape: tuple[int, ...]) -> Array:
    """An aligned tensor of zeros."""
    made = empty_tensor(TensorSpec("", dtype, shape))
    made[...] = np.zeros((), made.dtype)
    return made


def maker(spec: TensorSpec) -> Callable[[Sequence[Array]], Array]:
    """A function that makes aligned tensors with unspecified contents, whatever the inputs."""
    dtype, shape = BY_NAME[spec.dtype], spec.shape
    total = math.prod(shape) * dtype.storage_bytes + ALIGNMENT
    element = dtype.numpy
    if total >= LARGE:
        # Pages that are fresh from the system cost more than writing them; small blocks come from
        # the allocator's own lists.
        return lambda inputs: BLOCKS.tensor(shape, element, total)

    def make(inputs: Sequence[Array]) -> Array:
        raw = np.empty(total, np.uint8)
        return np.ndarray(shape, element, raw, -address_of(raw) % ALIGNMENT)

    return make


def as_tensor(memory: Array, spec: TensorSpec) -> Array:
    """The same memory as a tensor of its own."""
    if memory.shape == spec.shape and memory.dtype == BY_NAME[spec.dtype].numpy:
        return memory.view()
    return tensor_at(int(memory.ctypes.data), spec, memory)


def tensor_at(address: int, spec: TensorSpec, owner: object = None) -> Array:
    """The memory at an address as a tensor; `owner` is kept alive with it."""
    dtype = BY_NAME[spec.dtype]
    size = math.prod(spec.shape) * dtype.storage_bytes
    raw: Any = (ctypes.c_uint8 * max(1, size)).from_address(address)
    raw.owner = owner
    return np.ndarray(spec.shape, dtype.numpy, raw)


def aligned_copy(data: bytes) -> Array:
    memory = aligned_bytes(len(data))
    memory[: len(data)] = np.frombuffer(data, np.uint8)
    return memory
