"""Weights in a safetensors file, in an order that aligns every tensor to its elements.

The file is written as it is mapped later: an eight-byte length, a table as JSON, the elements one
after the other. The table is filled with spaces, so that the elements begin at a multiple of 128.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from weft.foundation.dtypes import DType, as_dtype

Array = NDArray[Any]
FILE: Final = "weights.safetensors"
_ALIGNMENT: Final = 128
_WRITTEN: Final[dict[str, str]] = {
    "i1": "BOOL", "si8": "I8", "ui8": "U8", "si16": "I16", "ui16": "U16", "si32": "I32",
    "ui32": "U32", "si64": "I64", "ui64": "U64", "fp8_e4m3": "F8_E4M3", "fp8_e5m2": "F8_E5M2",
    "bf16": "BF16", "f16": "F16", "f32": "F32", "f64": "F64", "cf32": "C64",
}  # fmt: skip
"""What the format calls dtypes; others are bytes, with their dtype in the metadata."""


@dataclass(frozen=True)
class Weights:
    """A file of weights: where each tensor begins, and what the file is told by."""

    file: str | None
    offsets: tuple[int, ...] = ()
    """In the order in which the tensors were given."""
    size: int = 0
    table_size: int = 0
    table_digest: bytes = bytes(32)
    digest: bytes = bytes(32)


def write_weights(folder: Path, tensors: Mapping[str, Array]) -> Weights:
    """Write the tensors; without any there is no file."""
    if not tensors:
        return Weights(None)
    kinds = {name: as_dtype(array.dtype) for name, array in tensors.items()}
    order = sorted(tensors, key=lambda name: (-kinds[name].storage_bytes, name))
    starts: dict[str, int] = {}
    end = 0
    for name in order:
        starts[name] = end
        end += tensors[name].nbytes
    table = _encode_table(tensors, kinds, starts, order)
    whole = hashlib.sha256(table)
    with (folder / FILE).open("wb") as file:
        file.write(table)
        for name in order:
            data = np.ascontiguousarray(tensors[name]).reshape(-1).view(np.uint8).data
            whole.update(data)
            file.write(data)
    offsets = tuple(len(table) + starts[name] for name in tensors)
    digest = hashlib.sha256(table).digest()
    return Weights(FILE, offsets, len(table) + end, len(table), digest, whole.digest())


def _encode_table(
    tensors: Mapping[str, Array],
    kinds: Mapping[str, DType],
    starts: Mapping[str, int],
    order: list[str],
) -> bytes:
    entries: dict[str, Any] = {}
    notes = {}
    for name in order:
        kind, shape = kinds[name].name, list(tensors[name].shape)
        if kind not in _WRITTEN:
            notes[f"weft.type.{name}"] = json.dumps([kind, shape])
            shape = [math.prod(shape) * kinds[name].storage_bytes]
        end = starts[name] + tensors[name].nbytes
        written = _WRITTEN.get(kind, "U8")
        entries[name] = {"dtype": written, "shape": shape, "data_offsets": [starts[name], end]}
    head = {"__metadata__": notes} if notes else {}
    text = json.dumps({**head, **entries}, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(len(text) + 8) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text
