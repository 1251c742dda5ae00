"""Tensors as ONNX files store them: every length is checked before anything is read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import ml_dtypes
import numpy as np
from onnx import TensorProto, numpy_helper

from weft.foundation.dtypes import DType, as_dtype
from weft.foundation.errors import SpecViolation, Unimplemented, UserError, brief
from weft.foundation.limits import check_bytes, current
from weft.interop.onnx.values import Array
from weft.interop.weights.mapped import map_file

NUMPY: Final[Mapping[int, np.dtype[Any]]] = {
    TensorProto.FLOAT: np.dtype(np.float32), TensorProto.UINT8: np.dtype(np.uint8),
    TensorProto.INT8: np.dtype(np.int8), TensorProto.UINT16: np.dtype(np.uint16),
    TensorProto.INT16: np.dtype(np.int16), TensorProto.INT32: np.dtype(np.int32),
    TensorProto.INT64: np.dtype(np.int64), TensorProto.BOOL: np.dtype(np.bool_),
    TensorProto.FLOAT16: np.dtype(np.float16), TensorProto.DOUBLE: np.dtype(np.float64),
    TensorProto.UINT32: np.dtype(np.uint32), TensorProto.UINT64: np.dtype(np.uint64),
    TensorProto.COMPLEX64: np.dtype(np.complex64), TensorProto.COMPLEX128: np.dtype(np.complex128),
    TensorProto.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    TensorProto.FLOAT8E4M3FN: np.dtype(ml_dtypes.float8_e4m3fn),
    TensorProto.FLOAT8E5M2: np.dtype(ml_dtypes.float8_e5m2),
    TensorProto.UINT4: np.dtype(ml_dtypes.uint4), TensorProto.INT4: np.dtype(ml_dtypes.int4),
    TensorProto.STRING: np.dtype(object),
}  # fmt: skip
"""The element types that there are arrays of, by ONNX's number."""
NUMBER: Final[Mapping[DType, int]] = {
    as_dtype(kind): number for number, kind in NUMPY.items() if kind.kind != "O"
}
"""ONNX's number for each dtype."""
_FIELDS: Final[dict[int, str]] = {
    **dict.fromkeys((TensorProto.FLOAT, TensorProto.COMPLEX64), "float_data"),
    **dict.fromkeys((TensorProto.DOUBLE, TensorProto.COMPLEX128), "double_data"),
    **dict.fromkeys((TensorProto.UINT32, TensorProto.UINT64), "uint64_data"),
    TensorProto.INT64: "int64_data",
    TensorProto.STRING: "string_data",
}
"""Where elements stand that are not raw bytes; the others stand in int32_data."""


def dtype_numbered(number: int) -> DType:
    """The dtype that ONNX gives a number."""
    kind = NUMPY.get(number)
    if kind is None or kind.kind == "O":
        raise Unimplemented("dtype", f"there are no tensors of {type_name(number)}")
    return as_dtype(kind)


def type_name(number: int) -> str:
    """What ONNX calls an element type."""
    known: dict[int, str] = {value: name for name, value in TensorProto.DataType.items()}
    return known.get(number, f"element type {number}")


def read_tensor(proto: TensorProto, folder: Path | None = None) -> Array:
    """The elements of a stored tensor. Data outside the file is looked for in `folder` only."""
    name = brief(proto.name)
    kind = NUMPY.get(proto.data_type)
    if kind is None:
        raise Unimplemented("tensor", f"{name} is of {type_name(proto.data_type)}")
    dims = tuple(proto.dims)
    if len(dims) > current().rank or any(dim < 0 for dim in dims):
        raise _malformed_tensor(name, f"its dims are {brief(list(dims))}")
    count = math.prod(dims)
    size = _stored_bytes(proto.data_type, count)
    check_bytes(max(size, count), f"tensor {name}", current())
    if proto.data_location == TensorProto.EXTERNAL:
        return _external(proto, kind, dims, size, folder)
    if proto.HasField("raw_data"):
        if kind.kind == "O":
            raise _malformed_tensor(name, "strings are stored as raw bytes")
        _check_stored_size(name, len(proto.raw_data), size, "bytes")
    else:
        field = _FIELDS.get(proto.data_type, "int32_data")
        _check_stored_size(
            name, len(getattr(proto, field)), _stored_numbers(proto.data_type, count), "elements"
        )
    if proto.HasField("segment"):
        raise Unimplemented("tensor", f"{name} is stored in segments")
    try:
        found = np.asarray(numpy_helper.to_array(proto))
    except (ValueError, TypeError, OverflowError, UnicodeDecodeError) as error:
        raise _malformed_tensor(name, brief(error, 200)) from None
    return found.astype(object) if kind.kind == "O" else found.reshape(dims)


def _stored_bytes(number: int, count: int) -> int:
    if number in (TensorProto.UINT4, TensorProto.INT4):
        return (count + 1) // 2
    return count * NUMPY[number].itemsize if number != TensorProto.STRING else count


def _stored_numbers(number: int, count: int) -> int:
    """How many numbers hold the elements where they are not raw bytes."""
    if number in (TensorProto.COMPLEX64, TensorProto.COMPLEX128):
        return 2 * count
    return (count + 1) // 2 if number in (TensorProto.UINT4, TensorProto.INT4) else count


def _check_stored_size(name: str, found: int, wanted: int, what: str) -> None:
    if found != wanted:
        raise _malformed_tensor(
            name, f"its shape needs {wanted:,} {what}, and {found:,} are stored"
        )


def _malformed_tensor(name: str, why: str) -> SpecViolation:
    return SpecViolation("MalformedModel", f"tensor {name} cannot be read: {why}")


# -- data in files of its own ----------------------------------------------------------------------


def _external(
    proto: TensorProto, kind: np.dtype[Any], dims: tuple[int, ...], size: int, folder: Path | None
) -> Array:
    name = brief(proto.name)
    said = {entry.key: entry.value for entry in proto.external_data}
    if folder is None:
        raise UserError(
            f"the elements of {name} are in another file; load the model by its path, not as bytes"
        )
    offset, length = (
        _place_number(name, said, "offset", 0),
        _place_number(name, said, "length", size),
    )
    if kind.kind == "O":
        raise _malformed_tensor(name, "strings cannot be stored in another file")
    _check_stored_size(name, length, size, "bytes")
    content = _map_file(name, said.get("location", ""), folder)
    if offset + length > len(content):
        raise _malformed_tensor(
            name, f"it ends at byte {offset + length:,} of a file of {len(content):,} bytes"
        )
    if kind.itemsize == 1 and size != math.prod(dims):  # two elements in a byte
        raw = TensorProto(data_type=proto.data_type, dims=dims)
        raw.raw_data = bytes(content[offset : offset + length])
        return np.asarray(numpy_helper.to_array(raw)).reshape(dims)
    stored = np.frombuffer(content, kind.newbyteorder("<"), math.prod(dims), offset)
    return stored.astype(kind, copy=False).reshape(dims)


def _place_number(name: str, said: Mapping[str, str], key: str, default: int) -> int:
    text = said.get(key, "")
    if not text:
        return default
    if not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise _malformed_tensor(name, f"the {key} of its data is {brief(text)}")
    return int(text)


def _map_file(name: str, location: str, folder: Path) -> memoryview:
    """A file beside the model, read-only: no link, no device, and nothing outside of the folder."""
    parts = Path(location.replace("\\", "/")).parts
    if not parts or location[:1] in ("/", "\\") or ".." in parts or "\0" in location:
        raise SpecViolation(
            "MalformedModel",
            f"tensor {name} cannot be read: the model says that its data is in {brief(location)}",
            "data must be inside the model's folder",
        )
    path = folder
    for part in parts:
        path = path / part
        if path.is_symlink():
            raise SpecViolation(
                "MalformedModel",
                f"tensor {name} cannot be read: {brief(location)} is or goes through a link",
                "put the file itself into the model's folder",
            )
    try:
        return map_file(path, strict=True)
    except UserError as error:
        raise UserError(f"{error.why}; the data of {name} should be there") from None
