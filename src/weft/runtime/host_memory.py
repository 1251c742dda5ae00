"""Memory of the host as tensors: aligned, at an address, under another shape."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.foundation.dtypes import BY_NAME
from weft.runtime.addresses import address_of
from weft.runtime.artifact import TensorSpec
from weft.runtime.blocks import ALIGNMENT, BLOCKS, LARGE

Array = NDArray[Any]


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
    count = int(np.prod(spec.shape, dtype=np.int64))
    raw: Any = (ctypes.c_uint8 * max(1, count * dtype.storage_bytes)).from_address(address)
    raw.owner = owner
    memory: Array = np.ctypeslib.as_array(raw)[: count * dtype.storage_bytes]
    return np.asarray(memory.view(dtype.numpy).reshape(spec.shape))


def aligned_copy(data: bytes) -> Array:
    memory = aligned_bytes(len(data))
    memory[: len(data)] = np.frombuffer(data, np.uint8)
    return memory
