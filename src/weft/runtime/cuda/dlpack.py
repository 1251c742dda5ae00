"""DLPack for memory of a GPU: the structures of the exchange, written and read.

A capsule names a `DLManagedTensor`: address, device, dtype, shape, strides, and a function that the
consumer calls when it is done. What an exported tensor needs stays alive until then.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from weft.foundation.dtypes import BY_NAME
from weft.foundation.errors import UserError

CUDA: Final = 2
"""DLPack's number for CUDA devices."""
DEVICE: Final = 0
"""The GPU that Weft works on."""
_SIGNED, _UNSIGNED, _FLOAT, _BFLOAT, _COMPLEX, _BOOL, _E4M3, _E5M2 = 0, 1, 2, 4, 5, 6, 10, 12
_KINDS: Final = {
    "f16": (_FLOAT, 16), "f32": (_FLOAT, 32), "f64": (_FLOAT, 64), "bf16": (_BFLOAT, 16),
    "si8": (_SIGNED, 8), "si16": (_SIGNED, 16), "si32": (_SIGNED, 32), "si64": (_SIGNED, 64),
    "ui8": (_UNSIGNED, 8), "ui16": (_UNSIGNED, 16), "ui32": (_UNSIGNED, 32),
    "ui64": (_UNSIGNED, 64), "i1": (_BOOL, 8), "cf32": (_COMPLEX, 64), "cf64": (_COMPLEX, 128),
    "fp8_e4m3": (_E4M3, 8), "fp8_e5m2": (_E5M2, 8),
}  # fmt: skip
_NAMES: Final = {kind: name for name, kind in _KINDS.items()}
_NAME: Final = b"dltensor"
_USED: Final = b"used_dltensor"


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
    )


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))


_api = ctypes.pythonapi
_CapsuleEnd = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_new = _api.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, _CapsuleEnd]
_pointer = _api.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_raw_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _api)
)
_raw_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", _api)
)
_rename = _api.PyCapsule_SetName
_rename.restype, _rename.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]

_EXPORTED: dict[int, tuple[Any, ...]] = {}
"""What consumers still use, by the address of its structure."""


def _forget(address: int) -> None:
    _EXPORTED.pop(address, None)


def _drop_unused(capsule: int) -> None:
    """A capsule that nobody consumed is gone, and so is its tensor."""
    if _raw_valid(capsule, _NAME):
        _EXPORTED.pop(_raw_pointer(capsule, _NAME), None)


_DONE = _Deleter(_forget)
_END = _CapsuleEnd(_drop_unused)


def exported(owner: object, address: int, dtype: str, shape: Sequence[int]) -> Any:
    """A capsule for a dense row-major tensor; `owner` lives as long as its consumer."""
    if dtype not in _KINDS:
        raise UserError(f"DLPack has no dtype for {dtype}; read the tensor with numpy() instead")
    code, bits = _KINDS[dtype]
    sizes = (ctypes.c_int64 * len(shape))(*shape)
    pointer = ctypes.cast(sizes, ctypes.POINTER(ctypes.c_int64))
    managed = _Managed(
        _Tensor(address, CUDA, DEVICE, len(shape), code, bits, 1, pointer, None, 0), None, _DONE
    )
    where = ctypes.addressof(managed)
    # Nothing of Python's holds what a consumer has but this table, until the consumer calls
    # `_forget`.
    _EXPORTED[where] = (managed, sizes, owner)
    return _new(where, _NAME, _END)


@dataclass
class Imported:
    """Another library's tensor, held until it is dropped."""

    address: int
    dtype: str
    shape: tuple[int, ...]
    managed: Any

    def __post_init__(self) -> None:
        if self.managed.deleter:
            where = ctypes.addressof(self.managed)
            release = weakref.finalize(self, self.managed.deleter, where)
            release.atexit = False


def imported(producer: Any, stream: int) -> Imported:
    """The tensor of a producer, whose work on it comes before what `stream` does next."""
    kind, number = producer.__dlpack_device__()
    if int(kind) != CUDA:
        raise UserError("the tensor is not in the memory of a CUDA device")
    if int(number) != DEVICE:
        raise UserError(
            f"the tensor is on GPU {int(number)}, and Weft works on GPU {DEVICE}: move it there "
            "first, or let CUDA_VISIBLE_DEVICES begin with the GPU to use"
        )
    capsule = producer.__dlpack__(stream=stream)
    managed = _Managed.from_address(_pointer(capsule, _NAME))
    # The name says who calls the deleter: a capsule that still has its first one does so when it is
    # collected, and then the tensor would be given back twice.
    _rename(capsule, _USED)
    tensor = managed.tensor
    rank = tensor.rank
    shape = tuple(tensor.shape[n] for n in range(rank))
    found = Imported(
        (tensor.data or 0) + tensor.offset,
        _NAMES.get((tensor.code, tensor.bits), ""),
        shape,
        managed,
    )
    if not found.dtype or found.dtype not in BY_NAME or tensor.lanes != 1:
        raise UserError("the tensor has a dtype that Weft does not know")
    if tensor.strides and not _is_dense(shape, [tensor.strides[n] for n in range(rank)]):
        raise UserError("the tensor is not dense and row-major; make it contiguous first")
    return found


def _is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    if 0 in shape:
        # Libraries differ in the strides of what has no elements.
        return True
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size > 1 and stride != step:
            return False
        step *= size
    return True
