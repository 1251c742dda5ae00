"""DLPack for the dtypes that NumPy does not exchange: bfloat16 and the two floats of eight bits.

NumPy writes and reads the capsule of an unsigned integer of the same width; here its type code is
changed, which is one byte of the structure behind the capsule (`DLTensor.dtype.code`). A capsule is
made for one exchange, so nobody else looks at it meanwhile.
"""

from __future__ import annotations

import ctypes
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_UNSIGNED = 1
_CODES = {
    4: np.dtype(ml_dtypes.bfloat16),
    10: np.dtype(ml_dtypes.float8_e4m3fn),
    12: np.dtype(ml_dtypes.float8_e5m2),
}
"""DLPack's type codes beyond NumPy's, and the dtypes they mean."""
_CODE_OF = {dtype: code for code, dtype in _CODES.items()}
_CODE_AT = 20
"""Where the type code stands in a DLTensor: behind the data, the device and the rank."""
# Version, context, deleter and flags, 8 bytes each.
_TENSOR_AT = {b"dltensor": 0, b"dltensor_versioned": 32}
"""Where the DLTensor stands behind a capsule, by the capsule's name."""

_name_of = ctypes.pythonapi.PyCapsule_GetName
_name_of.restype, _name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def _code(capsule: Any) -> Any:
    """The type code of a capsule's tensor, as a byte that can be set."""
    name = _name_of(capsule)
    if name not in _TENSOR_AT:
        raise BufferError(f"a DLPack capsule is wanted, not one called {name!r}")
    base = _pointer_of(capsule, name)
    return ctypes.c_uint8.from_address(base + _TENSOR_AT[name] + _CODE_AT)


def exported(array: Array, **options: Any) -> Any:
    """A capsule with the elements of an array; the options are those of `__dlpack__`."""
    code = _CODE_OF.get(array.dtype)
    if code is None:
        return array.__dlpack__(**options)
    plain = array.view(f"u{array.dtype.itemsize}")
    capsule = plain.__dlpack__(**options)
    _code(capsule).value = code
    return capsule


class _Plain:
    """A producer whose dtype, where NumPy does not know it, is an unsigned integer for it."""

    def __init__(self, producer: Any) -> None:
        self.producer = producer
        self.dtype: np.dtype[Any] | None = None

    def __dlpack_device__(self) -> Any:
        return self.producer.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        try:
            capsule = self.producer.__dlpack__(**options)
        except TypeError:
            capsule = self.producer.__dlpack__()
        code = _code(capsule)
        self.dtype = _CODES.get(code.value)
        if self.dtype is not None:
            code.value = _UNSIGNED
        return capsule


def imported(producer: Any) -> Array:
    """The elements of another library's tensor; its memory is shared."""
    plain = _Plain(producer)
    array: Array = np.from_dlpack(plain)
    return array if plain.dtype is None else array.view(plain.dtype)
