"""`weft.save` and `weft.load`: tensors by name in a safetensors file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize, safe_open
from safetensors.numpy import save as write

from weft.foundation.dtypes import BY_NAME, DType
from weft.foundation.errors import UserError, a_type
from weft.ops.calls import public
from weft.ops.nn.module import Module
from weft.ops.tensor import Tensor, from_array

_READ: Final[dict[str, str]] = {
    "BOOL": "i1", "I8": "si8", "U8": "ui8", "I16": "si16", "U16": "ui16", "I32": "si32",
    "U32": "ui32", "I64": "si64", "U64": "ui64", "F8_E4M3": "fp8_e4m3", "F8_E5M2": "fp8_e5m2",
    "BF16": "bf16", "F16": "f16", "F32": "f32", "F64": "f64", "C64": "cf32",
}  # fmt: skip
"""What the format calls the dtypes it knows."""


@public
def save(
    path: str | os.PathLike[str],
    state: Module | Mapping[str, Tensor],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write a module, or tensors by name, into a file. A file of that name is replaced as a whole:
    an interruption leaves the old one."""
    tensors = state.state_dict() if isinstance(state, Module) else state
    if not isinstance(tensors, Mapping):
        raise UserError(f"[save] a module or tensors by name are wanted, not {a_type(state)}")
    for key, value in (metadata or {}).items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise UserError(f"[save] metadata maps texts to texts, but has {key!r}: {value!r}")
    arrays = {name: _written(name, tensor) for name, tensor in tensors.items()}
    content = write(arrays, dict(metadata) if metadata else None)
    target = Path(path)
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        beside.write_bytes(content)
        beside.replace(target)
    except OSError as error:
        raise UserError(f"[save] cannot write {target}: {error.strerror}") from None
    finally:
        beside.unlink(missing_ok=True)


def _written(name: str, tensor: Any) -> NDArray[Any]:
    if not isinstance(tensor, Tensor):
        raise UserError(f"[save] {name} is {a_type(tensor)}, not a tensor")
    if tensor.dtype.name not in _READ.values():
        raise UserError(
            f"[save] {name} is {tensor.dtype}, which safetensors cannot hold; convert it first, "
            "with astype"
        )
    return tensor.numpy()


@public
def load(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The tensors of a file, by name."""
    source = Path(path)
    try:
        content = source.read_bytes()
    except OSError as error:
        raise UserError(f"[load] cannot read {source}: {error.strerror}") from None
    try:
        entries: list[tuple[str, Mapping[str, Any]]] = deserialize(content)  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        raise UserError(f"[load] {source} is no safetensors file: {error}") from None
    return {name: _read(name, entry) for name, entry in entries}


@public
def load_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """The texts that a file was saved with; none where it has none."""
    source = Path(path)
    try:
        with safe_open(source, framework="numpy") as file:
            return dict(file.metadata() or {})
    except OSError as error:
        why = error.strerror or "No such file or directory"
        raise UserError(f"[load_metadata] cannot read {source}: {why}") from None
    except SafetensorError as error:
        raise UserError(f"[load_metadata] {source} is no safetensors file: {error}") from None


def _read(name: str, entry: Mapping[str, Any]) -> Tensor:
    found = _READ.get(entry["dtype"])
    if found is None:
        raise UserError(f"[load] {name} has the dtype {entry['dtype']}, which Weft does not know")
    return from_array(_array(BY_NAME[found], entry))


def _array(dtype: DType, entry: Mapping[str, Any]) -> Any:
    elements = np.frombuffer(bytes(entry["data"]), dtype.numpy)
    return elements.reshape(entry["shape"])
