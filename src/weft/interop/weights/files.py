"""The tensors of a file of weights, of all shards of an index, or of the one that a folder holds.

An index names files of its own folder. Where it is a link, as in the caches of hubs, the shards
may be links into the folder it leads to; a name or a link that leads elsewhere is refused.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np

from weft.foundation.dtypes import BY_NAME, DType, Kind, as_dtype
from weft.foundation.errors import UserError
from weft.interop.weights.gguf import MAGIC, Gguf, read_gguf
from weft.interop.weights.mapped import Array, map_file, refuse_pickle
from weft.interop.weights.safetensors import read_safetensors, read_texts
from weft.ops.nn.packed import Packed
from weft.ops.tensor import from_array

_INDEX: Final = ".index.json"
_PARTS: Final = "weft.parts."
"""What the texts about tensors begin with that ranks have written part by part."""
_LARGEST_INDEX: Final = 1 << 25
_MEMBERS: Final = (f"*.safetensors{_INDEX}", "*.safetensors", "*.gguf", "*.bin", "*.pt", "*.pth")
"""What a folder is looked through for, in this order."""


def index_of(path: Path) -> Path:
    """Where the index of a file that was cut into shards is."""
    return path.with_name(path.name + _INDEX)


def found_in(path: Path, caller: str = "load") -> Path:
    """The file that is meant: a path itself, its index, or the weights in a folder."""
    if not path.is_dir():
        return index_of(path) if not path.exists() and index_of(path).exists() else path
    usual = path / "model.safetensors"
    if usual.exists():
        return usual
    for pattern in _MEMBERS:
        found = sorted(path.glob(pattern))
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(each.name for each in found[:3])
            what = f"{path} has {len(found)} files of weights ({names})"
            raise UserError(f"[{caller}] {what}; name one of them")
    raise UserError(f"[{caller}] {path} is a folder without a file of weights, safetensors or GGUF")


def read_weights(
    path: Path, dtype: DType | None, packed: bool = False
) -> tuple[dict[str, Any], dict[str, str]]:
    """The tensors by name, and the texts beside them; floats are cast to `dtype` if there is one.
    Blocks of few bits become floats, unless they are to stay `packed`."""
    if path.name.endswith(_INDEX):
        arrays, texts = _read_shards(path)
    else:
        data = map_file(path)
        if data[:4].tobytes() == MAGIC:
            return _of_gguf(read_gguf(path, data), dtype, packed), {}
        arrays, texts = read_safetensors(path)
    typed = {name: _type_array(name, array, texts) for name, array in arrays.items()}
    _join_parts(typed, texts, path)
    return {name: from_array(_cast_floats(array, dtype)) for name, array in typed.items()}, texts


def _of_gguf(file: Gguf, dtype: DType | None, packed: bool) -> dict[str, Any]:
    wide = "f32" if dtype is None else dtype.name
    found: dict[str, Any] = {}
    for name, entry in file.entries.items():
        groups = file.groups(name) if packed else None
        if groups is None or entry.blocks is None:
            found[name] = from_array(_cast_floats(file.array(name, wide), dtype))
        else:
            lows = None if groups.lows is None else from_array(groups.lows)
            parts = from_array(groups.codes), from_array(groups.scales), lows
            found[name] = Packed(*parts, zero=-(entry.blocks.lowest or 0))
    return found


def _join_parts(arrays: dict[str, Array], texts: Mapping[str, str], path: Path) -> None:
    """Tensors that ranks have written part by part, put together; the texts say where parts lie."""
    for key in texts:
        if not key.startswith(_PARTS):
            continue
        name = key.removeprefix(_PARTS)
        try:
            note = json.loads(texts[key])
            shape, starts = tuple(note["shape"]), [tuple(start) for start in note["starts"]]
            parts = [arrays.pop(f"{name}@{at}") for at in range(len(starts))]
            if not _fill_shape_side_by_side(shape, starts, parts):
                raise ValueError(key)
        except (ValueError, KeyError, TypeError, RecursionError):
            raise UserError(
                f"[load] the parts of {name} in {path} do not make a whole; the file is damaged"
            ) from None
        whole = np.empty(shape, parts[0].dtype)
        for start, part in zip(starts, parts, strict=True):
            place = (slice(at, at + n) for at, n in zip(start, part.shape, strict=True))
            whole[tuple(place)] = part
        arrays[name] = whole


def _fill_shape_side_by_side(
    shape: tuple[int, ...], starts: list[tuple[int, ...]], parts: list[Array]
) -> bool:
    """Whether parts of one size lie side by side and fill a shape."""
    sizes = parts[0].shape if parts else ()
    if len({(part.shape, part.dtype) for part in parts}) != 1 or len(sizes) != len(shape):
        return False
    pairs = list(zip(shape, sizes, strict=True))
    if any(type(n) is not int or n < 0 or n % (size or 1) or (n and not size) for n, size in pairs):
        return False
    # Counted first: of a shape that is no shape of a file the list of all places might have no end.
    if len(starts) != math.prod(n // size if size else 1 for n, size in pairs):
        return False
    return sorted(starts) == list(product(*(range(0, max(n, 1), size or 1) for n, size in pairs)))


def _cast_floats(array: Array, dtype: DType | None) -> Array:
    if dtype is None or as_dtype(array.dtype).kind is not Kind.FLOAT:
        return array
    return array.astype(dtype.numpy, copy=False)


def read_metadata(path: Path) -> dict[str, Any]:
    """The texts of a file or of an index, or the facts of a GGUF file."""
    if path.name.endswith(_INDEX):
        return _only_texts(read_index(path)["metadata"])
    data = map_file(path, "load_metadata")
    return read_gguf(path, data).facts if data[:4].tobytes() == MAGIC else dict(read_texts(path))


def _only_texts(metadata: Mapping[str, Any]) -> dict[str, str]:
    return {name: text for name, text in metadata.items() if isinstance(text, str)}


def _type_array(name: str, array: Array, texts: Mapping[str, str]) -> Array:
    """An array, which may be the bytes of a dtype that the format does not know."""
    note = texts.get(f"weft.type.{name}")
    if note is None:
        return array
    try:
        kind, shape = json.loads(note)
        return np.frombuffer(array.tobytes(), BY_NAME[kind].numpy).reshape(shape)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UserError(f"[load] {name} is said to be {note[:60]}, which it cannot be") from None


# -- shards ----------------------------------------------------------------------------------------


def _read_shards(path: Path) -> tuple[dict[str, Array], dict[str, str]]:
    index = read_index(path)
    home = path.resolve().parent
    files = {}
    for file in sorted(set(index["weight_map"].values())):
        if path.with_name(file).resolve().parent != home:
            raise UserError(f"[load] {path} names {file}, a link that leads out of its folder")
        files[file] = read_safetensors(path.with_name(file))[0]
    found = {}
    for name, file in index["weight_map"].items():
        if name not in files[file]:
            raise UserError(f"[load] {path} says that {name} is in {file}, but it is not there")
        found[name] = files[file][name]
    return found, _only_texts(index["metadata"])


def read_index(path: Path) -> dict[str, Any]:
    """Which file has which tensor, and the metadata."""
    data = map_file(path)
    refuse_pickle(path, data)
    try:
        index = json.loads(bytes(data)) if len(data) <= _LARGEST_INDEX else {}
        names, texts = index["weight_map"], index.get("metadata", {})
        good = isinstance(texts, dict) and all(map(_is_plain_name, names.values()))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        good = False
    if not good:
        raise UserError(f"[load] {path} is not an index of safetensors files in its folder")
    return {"weight_map": names, "metadata": texts}


def _is_plain_name(file: Any) -> bool:
    good = isinstance(file, str) and file != "" and file == Path(file).name
    return good and not file.startswith(".") and "\0" not in file
