"""Tensors in a GPU's memory. Making one waits for nothing; reading one waits, and raises what went
wrong on the way to it.

Other libraries see the same memory by DLPack or by the CUDA array interface, and their tensors are
taken over the same way, without a copy. What is handed out is done; what is taken over comes into
Weft's stream behind the producer's work, and is given back when Weft's work on it is done. Who says
in which stream it works (`lent_to`) need not wait for either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from weft.foundation.dtypes import BY_NAME
from weft.runtime.cuda import dlpack
from weft.runtime.cuda.gpu import Era, Gpu
from weft.runtime.cuda.memory import Block

Array = NDArray[Any]
ALIGNMENT: Final = 256
"""Kernels are made for tensors that begin at multiples of this."""


@dataclass(eq=False, repr=False, slots=True, weakref_slot=True)
class DeviceTensor:
    """A dense row-major tensor; its memory is given back with it."""

    gpu: Gpu
    address: int
    dtype: str
    shape: tuple[int, ...]
    owner: object
    """Whoever holds the memory."""
    era: Era | None = None
    """The work that makes it."""

    def __repr__(self) -> str:
        return f"<DeviceTensor {self.dtype}{list(self.shape)} on {self.gpu.device.name}>"

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * BY_NAME[self.dtype].storage_bytes

    @property
    def is_writeable(self) -> bool:
        """Whether no other library sees the memory, so that a run may overwrite it."""
        return isinstance(self.owner, _Held) and not self.owner.block.is_lent

    @property
    def writes(self) -> int | None:
        """How often runs have overwritten the memory; None where other libraries may do so."""
        if not isinstance(self.owner, _Held) or self.owner.block.is_lent:
            return None
        return self.owner.block.writes

    def numpy(self) -> Array:
        """The elements, when they are there."""
        gpu, kind = self.gpu, BY_NAME[self.dtype].numpy
        with gpu.lock:
            landed = gpu.read(self.address, prod(self.shape) * kind.itemsize)
            if landed is not None:
                found = landed.view(kind).reshape(self.shape).copy()
            else:
                found = np.empty(self.shape, kind)
                gpu.stream.download(found, self.address)
                gpu.wait_held()
            self.check()
        return found

    def check(self) -> None:
        """Raise what is known to have gone wrong on the way to it."""
        if self.era is not None:
            self.era.check()

    def _settle(self) -> None:
        """Wait for the elements."""
        self.gpu.wait()
        self.check()

    # -- other libraries -------------------------------------------------------------------------

    def _lend(self) -> None:
        """From now on others work with the elements, which are there."""
        self._settle()
        self.gpu.changes += 1
        if isinstance(self.owner, _Held):
            self.owner.block.is_lent, self.owner.block.stream = True, None

    def lent_to(self, stream: int) -> Any:
        """A capsule of DLPack for somebody who uses the elements in this stream alone, which Weft's
        work precedes (`Gpu.precede`)."""
        self.gpu.changes += 1
        if isinstance(self.owner, _Held):
            block = self.owner.block
            # A block that two streams have seen comes back only when the whole device is done.
            block.stream = None if block.is_lent and block.stream != stream else stream
            block.is_lent = True
        return dlpack.exported(self, self.address, self.dtype, self.shape)

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, dlpack.DEVICE

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """The elements, shared unless a copy is asked for, and there for any stream."""
        if dl_device not in (None, self.__dlpack_device__()):
            raise BufferError(f"the tensor is on GPU {dlpack.DEVICE}; read it with numpy() instead")
        lent = duplicate(self) if copy else self
        lent._lend()
        return dlpack.exported(lent, lent.address, lent.dtype, lent.shape)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        self._lend()
        kind = BY_NAME[self.dtype].numpy
        return {
            "shape": self.shape,
            "typestr": kind.str,
            "data": (self.address, False),
            "version": 3,
            "strides": None,
        }


class _Held:
    """A block that is given back when nobody holds it any more."""

    def __init__(self, block: Block) -> None:
        self.block = block

    def __del__(self) -> None:
        self.block.free()


class _Borrowed:
    """Another library's tensor, which is read and never written. It is given back when nobody holds
    it any more and what was asked for is done."""

    def __init__(self, gpu: Gpu, tensor: dlpack.Imported) -> None:
        self.gpu, self.tensor = gpu, tensor

    def __del__(self) -> None:
        self.gpu.keep(self.tensor)


def empty(gpu: Gpu, dtype: str, shape: tuple[int, ...], purpose: str = "tensors") -> DeviceTensor:
    """A tensor of unspecified elements."""
    with gpu.lock:
        return fresh(gpu, dtype, shape, prod(shape) * BY_NAME[dtype].storage_bytes, purpose)


def fresh(gpu: Gpu, dtype: str, shape: tuple[int, ...], count: int, purpose: str) -> DeviceTensor:
    """The same, of so many bytes, for those who hold the device."""
    block = gpu.pool.take(count, purpose)
    return DeviceTensor(gpu, block.address, dtype, shape, _Held(block))


def blocks_of(tensors: Sequence[DeviceTensor]) -> list[Block]:
    """The memory of tensors, of those that have memory of their own."""
    owners = [tensor.owner for tensor in tensors]
    return [owner.block for owner in owners if isinstance(owner, _Held)]


def overwritten(gpu: Gpu, blocks: Sequence[Block]) -> None:
    """A run that was given this memory puts other elements there."""
    gpu.changes += len(blocks)
    for block in blocks:
        block.writes += 1


def upload(gpu: Gpu, array: Array, dtype: str) -> DeviceTensor:
    """The elements of an array, on the device. The array may change when this returns."""
    made, given = empty(gpu, dtype, array.shape), np.ascontiguousarray(array)
    with gpu.lock:
        gpu.stream.upload(made.address, given)
        if given.nbytes and gpu.stream.is_read_late(given):
            gpu.stream.synchronize()
    return made


def repeated(gpu: Gpu, element: Array, dtype: str, shape: tuple[int, ...]) -> DeviceTensor | None:
    """A tensor of one element everywhere; None where the driver cannot repeat it."""
    made = empty(gpu, dtype, shape)
    with gpu.lock:
        done = gpu.stream.repeat(made.address, element.tobytes(), prod(shape))
    return made if done else None


def imported(gpu: Gpu, producer: Any) -> DeviceTensor:
    """Another library's tensor, with its memory; copied only where it lies at odd places."""
    gpu.make_room()
    found = dlpack.imported(producer, int(gpu.stream.handle))
    owner = _Borrowed(gpu, found)
    tensor = DeviceTensor(gpu, found.address, found.dtype, found.shape, owner)
    # Kernels load vectors of 16 bytes, and tensor maps need their addresses at multiples of 16,
    # which a slice of another library's tensor may not have.
    return tensor if tensor.address % ALIGNMENT == 0 else duplicate(tensor)


def duplicate(tensor: DeviceTensor) -> DeviceTensor:
    """A copy with memory of its own."""
    made = replace(empty(tensor.gpu, tensor.dtype, tensor.shape), era=tensor.era)
    if tensor.nbytes:
        with tensor.gpu.lock:
            tensor.gpu.stream.copy(made.address, tensor.address, tensor.nbytes)
    return made
