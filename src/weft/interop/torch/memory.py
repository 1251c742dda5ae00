"""The memory of torch's tensors as arrays, and arrays as torch's tensors; nothing is copied.

An array is only an address here: it does not keep the tensor's memory alive, so it may be used
while whoever made it holds the tensor. Made once for an address, it serves every call in which the
tensor is still there: a parameter is wrapped once.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from weft.driver.inputs import in_one_piece
from weft.interop.torch.dtypes import ours

Array = NDArray[Any]
_PLAIN: Final = {1: "|u1", 2: "<u2"}
"""How elements that NumPy has no name for are read, by their bytes."""


class _At:
    """What NumPy asks of something that has memory."""

    def __init__(self, interface: dict[str, Any]) -> None:
        self.__array_interface__ = interface


def array_of(tensor: torch.Tensor) -> Array:
    """The elements of a tensor in the host's memory, where they are."""
    dtype = ours(tensor.dtype).numpy
    if not tensor.numel():
        return np.empty(tuple(tensor.shape), dtype)
    named = dtype.kind != "V"
    size = dtype.itemsize
    made = np.asarray(
        _At(
            {
                "version": 3,
                "data": (tensor.data_ptr(), False),
                "shape": tuple(tensor.shape),
                "typestr": dtype.str if named else _PLAIN[size],
                "strides": tuple(step * size for step in tensor.stride()),
            }
        )
    )
    return made if named else made.view(dtype)


class Arrays:
    """The arrays of a call's tensors, remembered by address. What does not lie in order, or not
    where its dtype wants it, is copied in every call."""

    def __init__(self, count: int) -> None:
        self._known: list[tuple[int, Any, Any, Array] | None] = [None] * count

    def of(self, tensors: list[torch.Tensor]) -> list[Array]:
        found = []
        known = self._known
        for at, tensor in enumerate(tensors):
            place, held = tensor.data_ptr(), known[at]
            if (
                held is not None
                and held[0] == place
                and held[1] == tensor.shape
                and held[2] == tensor.stride()
            ):
                found.append(in_one_piece(held[3]))
                continue
            if tensor.is_conj() or tensor.is_neg():
                found.append(np.ascontiguousarray(tensor.resolve_conj().resolve_neg().numpy()))
                continue
            made = array_of(tensor)
            known[at] = (place, tensor.shape, tensor.stride(), made)
            found.append(in_one_piece(made))
        return found


def tensor_of(array: Array, dtype: torch.dtype) -> torch.Tensor:
    """An array that nobody else holds, as a tensor."""
    if not array.flags.writeable or not array.flags.c_contiguous:
        array = np.array(array, order="C")
    if array.dtype.kind != "V":
        return torch.from_numpy(array)
    plain = array.view(np.uint8 if array.dtype.itemsize == 1 else np.int16)
    return torch.from_numpy(plain).view(dtype)
