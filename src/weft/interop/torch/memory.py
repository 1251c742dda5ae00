"""The memory of torch's tensors as arrays, and arrays as torch's tensors; nothing is copied.

An array is only an address here: it does not keep the tensor's memory alive, so it may be used
while whoever made it holds the tensor. Made once for an address, it serves every call in which the
tensor is still there: a parameter is wrapped once.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from operator import is_
from typing import Any, Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from weft.driver.backends import Backend, Storage
from weft.driver.inputs import in_one_piece
from weft.interop.torch.dtypes import THEIRS, ours
from weft.interop.torch.tensor_layouts import Order, lying
from weft.ptir.types import TensorType

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


class Memory(Protocol):
    """Where tensors are that torch and a backend both use."""

    device: str
    """What torch calls it."""

    def stored(self, array: Array) -> Storage:
        """An array of the host, as the backend stores it."""
        ...

    def taken(self, tensor: torch.Tensor, order: Order) -> tuple[Storage, bool]:
        """A tensor as the backend stores it, with its axes as they lie, and whether that is the
        tensor's own memory."""
        ...

    def given(self, storage: Storage, kind: TensorType) -> torch.Tensor:
        """A result that nobody else holds, as a tensor of torch."""
        ...

    def turn(self) -> AbstractContextManager[Any]:
        """What the backend does inside the `with` block comes after what torch was asked for
        before, and before what it is asked for afterwards."""
        ...


class HostMemory:
    """The host's, for backends whose tensors are arrays."""

    device = "cpu"

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    def stored(self, array: Array) -> Storage:
        return self.backend.store(array)

    def taken(self, tensor: torch.Tensor, order: Order) -> tuple[Storage, bool]:
        array = current(lying(tensor, order))
        return self.backend.store(array), _lies(array, tensor)

    def given(self, storage: Storage, kind: TensorType) -> torch.Tensor:
        return tensor_of(self.backend.read_storage(storage, kind), THEIRS[kind.dtype])

    def turn(self) -> AbstractContextManager[Any]:
        return nullcontext()


class Tensors:
    """The tensors of a call, as a backend stores them.

    Tensors that stay what and where they are from call to call, parameters above all, are known by
    their address and stored once; the others are wrapped in every call. Who stays is learnt: all do
    until one moves. `holder` is the same as long as only tensors at the positions `moving` are
    others. What does not lie as its order says, or not where its dtype wants it, is copied in every
    call.
    """

    def __init__(self, memory: Memory, orders: Sequence[Order]) -> None:
        self.orders = orders
        self._memory = memory
        self._state: _State | None = None

    def of(self, tensors: list[torch.Tensor]) -> tuple[list[Any], object, tuple[int, ...]]:
        """The stored tensors, the holder, and the positions of those that are not its own."""
        state = self._state
        if state is None or not state.stays(tensors):
            state = self._state = _State(self._memory, tensors, self.orders, state)
        found = state.stored.copy()
        for at in state.moving:
            found[at] = self._memory.taken(tensors[at], self.orders[at])[0]
        return found, state, state.moving


class _State:
    """Which tensors stay, and where they are."""

    def __init__(
        self,
        memory: Memory,
        tensors: list[torch.Tensor],
        orders: Sequence[Order],
        before: _State | None,
    ) -> None:
        moved = set(before.moved(tensors)) if before else set()
        wrapped = [memory.taken(*each) for each in zip(tensors, orders, strict=True)]
        moved |= {at for at, (_, is_own) in enumerate(wrapped) if not is_own}
        self.moving = tuple(sorted(moved))
        self.staying = tuple(at for at in range(len(tensors)) if at not in moved)
        self.tensors = [weakref.ref(tensors[at]) for at in self.staying]
        self.places = [tensors[at].data_ptr() for at in self.staying]
        self.stored = [None if at in moved else stored for at, (stored, _) in enumerate(wrapped)]

    def stays(self, tensors: list[torch.Tensor]) -> bool:
        """Whether all that stay are what and where they were."""
        now = [tensors[at] for at in self.staying]
        return [tensor.data_ptr() for tensor in now] == self.places and all(
            map(is_, now, [known() for known in self.tensors])
        )

    def moved(self, tensors: list[torch.Tensor]) -> list[int]:
        """Those that do not, and those that never did."""
        found = list(self.moving)
        for at, known, place in zip(self.staying, self.tensors, self.places, strict=True):
            if known() is not tensors[at] or tensors[at].data_ptr() != place:
                found.append(at)
        return found


def current(tensor: torch.Tensor) -> Array:
    """A tensor's elements as they are now: where they are, if they lie in order."""
    if tensor.is_conj() or tensor.is_neg():
        return np.ascontiguousarray(tensor.resolve_conj().resolve_neg().numpy())
    return in_one_piece(array_of(tensor))


def _lies(array: Array, tensor: torch.Tensor) -> bool:
    """Whether an array is the tensor's own memory."""
    return not tensor.numel() or int(array.ctypes.data) == tensor.data_ptr()


def tensor_of(array: Array, dtype: torch.dtype) -> torch.Tensor:
    """An array that nobody else holds, as a tensor."""
    if not array.flags.writeable or not array.flags.c_contiguous:
        array = np.array(array, order="C")
    if array.dtype.kind != "V":
        return torch.from_numpy(array)
    plain = array.view(np.uint8 if array.dtype.itemsize == 1 else np.int16)
    return torch.from_numpy(plain).view(dtype)
