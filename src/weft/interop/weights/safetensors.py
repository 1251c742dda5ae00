"""One safetensors file: the length of a table, the table as JSON, the elements.

{"weight": {"dtype": "BF16", "shape": [4, 3], "data_offsets": [0, 24]}, "__metadata__": {...}}
"""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any, Final

import numpy as np

from weft.foundation.dtypes import BY_NAME, DType
from weft.foundation.errors import UserError
from weft.interop.weights.mapped import (
    Array,
    Place,
    array_at,
    check_places,
    checked_shape,
    map_file,
    refuse_pickle,
)

DTYPES: Final[dict[str, str]] = {
    "BOOL": "i1", "I8": "si8", "U8": "ui8", "I16": "si16", "U16": "ui16", "I32": "si32",
    "U32": "ui32", "I64": "si64", "U64": "ui64", "F8_E4M3": "fp8_e4m3", "F8_E5M2": "fp8_e5m2",
    "BF16": "bf16", "F16": "f16", "F32": "f32", "F64": "f64", "C64": "cf32",
}  # fmt: skip
"""What the format calls the dtypes it knows."""
METADATA: Final = "__metadata__"
_LONGEST_TABLE: Final = 1 << 25
"""In bytes: some hundred thousand tensors."""
Texts = dict[str, str]


def read_safetensors(path: Path) -> tuple[dict[str, Array], Texts]:
    """The tensors of a file as arrays that share its bytes, and its texts."""
    data = map_file(path)
    refuse_pickle(path, data)
    try:
        return _parse_safetensors(data)
    except (ValueError, RecursionError) as error:
        why = error if isinstance(error, ValueError) else "its table is nested too deeply"
        raise UserError(f"[load] {path} is not a safetensors file: {why}") from None


def read_texts(path: Path) -> Texts:
    """The texts of a file."""
    data = map_file(path, "load_metadata")
    try:
        return _metadata_texts(_read_table(data)[0])
    except (ValueError, RecursionError) as error:
        raise UserError(f"[load_metadata] {path} is not a safetensors file: {error}") from None


def _parse_safetensors(data: memoryview) -> tuple[dict[str, Array], Texts]:
    table, begin = _read_table(data)
    texts = _metadata_texts(table)
    entries = {name: _parse_entry(name, of) for name, of in table.items() if name != METADATA}
    check_places([place for _, _, place in entries.values()], len(data) - begin, dense=True)
    arrays = {
        name: array_at(data, begin + place.start, kind, shape)
        for name, (kind, shape, place) in entries.items()
    }
    for name, array in arrays.items():
        if array.dtype == np.bool_ and array.size and array.view(np.uint8).max() > 1:
            raise ValueError(f"{name[:80]!r} is BOOL, and has bytes other than 0 and 1")
    return arrays, texts


def _read_table(data: memoryview) -> tuple[dict[str, Any], int]:
    """The table, and where the elements begin."""
    if len(data) < 8:
        raise ValueError(f"it has {len(data)} bytes, and the length of the table takes 8")
    length = int.from_bytes(data[:8], "little")
    if length > min(len(data) - 8, _LONGEST_TABLE):
        raise ValueError(f"its table is said to have {length} bytes, and the file has {len(data)}")
    try:
        table = json.loads(bytes(data[8 : 8 + length]), object_pairs_hook=_each_once)
    except UnicodeDecodeError:
        raise ValueError("its table is not text") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"its table is not JSON: {error}") from None
    if not isinstance(table, dict):
        raise ValueError("its table is not a JSON object")
    return table, 8 + length


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"{twice[:80]!r} appears twice in its table")
    return found


def _metadata_texts(table: dict[str, Any]) -> Texts:
    texts = table.get(METADATA, {})
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
        raise ValueError(f"{METADATA} does not map texts to texts")
    return texts


def _parse_entry(name: str, of: Any) -> tuple[DType, tuple[int, ...], Place]:
    """The dtype and the shape of a tensor, and where it lies."""
    short = repr(name[:80])
    match of:
        case {"dtype": str(kind), "shape": shape, "data_offsets": [int(start), int(stop)]}:
            pass
        case _:
            raise ValueError(f"{short} has no dtype, shape and data_offsets")
    found = DTYPES.get(kind)
    if found is None:
        raise ValueError(f"{short} has the dtype {kind[:20]}, which Weft does not know")
    sizes = checked_shape(short, shape)
    size = math.prod(sizes) * BY_NAME[found].storage_bytes
    if not 0 <= start <= stop or stop - start != size:
        what = f"{kind}{list(sizes)} takes {size} bytes"
        raise ValueError(f"{short} has the bytes {start} to {stop}, and {what}")
    return BY_NAME[found], sizes, Place(short, start, size)
