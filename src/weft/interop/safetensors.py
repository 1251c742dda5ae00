"""`weft.save` and `weft.load`: tensors, and containers of them, in safetensors files.

A module, or tensors by name, are a plain file that other programs read. Any other container is one
too, with its structure as JSON in the file's metadata. A large one can be cut into shards beside an
index. A file is replaced as a whole, and an index after all of its shards: an interruption leaves
what was there.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize, safe_open
from safetensors.numpy import save as write

from weft.foundation.dtypes import BY_NAME
from weft.foundation.errors import UserError
from weft.interop.tree_form import RESERVED, form_of, leaves_like, parsed, tree_of
from weft.ops.calls import public
from weft.ops.nn.module import Module
from weft.ops.pytree import flatten, map_leaves, unflatten
from weft.ops.tensor import Tensor, from_array

_READ: Final[dict[str, str]] = {
    "BOOL": "i1", "I8": "si8", "U8": "ui8", "I16": "si16", "U16": "ui16", "I32": "si32",
    "U32": "ui32", "I64": "si64", "U64": "ui64", "F8_E4M3": "fp8_e4m3", "F8_E5M2": "fp8_e5m2",
    "BF16": "bf16", "F16": "f16", "F32": "f32", "F64": "f64", "C64": "cf32",
}  # fmt: skip
"""What the format calls the dtypes it knows."""
_TREE: Final = "weft.tree"
"""Where the structure stands in the metadata."""
_INDEX: Final = ".index.json"
Pathlike = str | os.PathLike[str]


@public
def save(
    path: Pathlike,
    tree: Any,
    metadata: Mapping[str, str] | None = None,
    *,
    shard_bytes: int | None = None,
) -> None:
    """Write a module, tensors by name, or any container of tensors, numbers and texts into a file.
    With `shard_bytes` it is several files of about that size at most, and an index beside them."""
    texts = _texts(metadata)
    tensors, form = _taken_apart(tree)
    if form is not None:
        texts[_TREE] = form
    target = Path(path)
    try:
        if shard_bytes is None:
            _write(target, _content(tensors, texts))
            _drop_shards(target)
        else:
            _write_shards(target, tensors, texts, shard_bytes)
    except OSError as error:
        raise UserError(f"[save] cannot write {target}: {error.strerror}") from None


def _texts(metadata: Mapping[str, str] | None) -> dict[str, str]:
    for key, value in (metadata or {}).items():
        if not isinstance(key, str) or not isinstance(value, str) or key == _TREE:
            raise UserError(f"[save] metadata maps texts to texts, but has {key!r}: {value!r}")
    return dict(metadata or {})


def _taken_apart(tree: Any) -> tuple[dict[str, Tensor], str | None]:
    """The tensors by name, and the structure where it is more than that."""
    plain = tree.state_dict() if isinstance(tree, Module) else tree
    if isinstance(plain, Mapping) and all(map(_is_plain, plain, plain.values())):
        return dict(plain), None
    arrays = (np.ndarray, np.generic)
    held: dict[str, Tensor] = {}
    whole = map_leaves(lambda x: from_array(np.array(x)) if isinstance(x, arrays) else x, tree)
    form = form_of(whole, held)
    return held, json.dumps(form, separators=(",", ":"))


def _is_plain(name: Any, value: Any) -> bool:
    known = isinstance(value, Tensor) and value.dtype.name in _READ.values()
    return isinstance(name, str) and name != RESERVED and known


def _content(tensors: Mapping[str, Tensor], texts: dict[str, str]) -> bytes:
    arrays = {name: _written(name, tensor, texts) for name, tensor in tensors.items()}
    return write(arrays, texts or None)


def _written(name: str, tensor: Tensor, texts: dict[str, str]) -> NDArray[Any]:
    """A tensor as the format can hold it: of a dtype that it does not know, the bytes."""
    if tensor.dtype.name in _READ.values():
        return tensor.numpy()
    texts[f"weft.type.{name}"] = json.dumps([tensor.dtype.name, list(tensor.shape)])
    return np.frombuffer(np.ascontiguousarray(tensor.numpy()).tobytes(), np.uint8)


def _write(target: Path, content: bytes) -> None:
    """Replace a file as a whole."""
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)


# -- shards ----------------------------------------------------------------------------------------


def _write_shards(
    target: Path, tensors: Mapping[str, Tensor], texts: dict[str, str], most: int
) -> None:
    """The shards under names that no earlier save has used, then the index, then what was there
    before is removed: whenever it stops, there is one whole index, and all of its shards exist."""
    if type(most) is not int or most < 1:
        raise UserError(f"[save] shard_bytes is {most!r}; it must be a number of bytes over 0")
    old, tag = _shards_of(target), secrets.token_hex(4)
    groups = list(_groups(tensors, most))
    names: dict[str, str] = {}
    for number, group in enumerate(groups, 1):
        file = f"{target.stem}-{tag}-{number:05}-of-{len(groups):05}.safetensors"
        own: dict[str, str] = {}
        _write(target.with_name(file), _content(group, own))
        texts |= own
        names |= dict.fromkeys(group, file)
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total, **texts}, "weight_map": names}
    _write(_index(target), json.dumps(index, indent=1).encode())
    target.unlink(missing_ok=True)
    for file in old - set(names.values()):
        target.with_name(file).unlink(missing_ok=True)


def _groups(tensors: Mapping[str, Tensor], most: int) -> Iterator[dict[str, Tensor]]:
    """Tensors in order, in groups of so many bytes; one that is larger is a group of its own."""
    group: dict[str, Tensor] = {}
    size = 0
    for name, tensor in tensors.items():
        if group and size + tensor.nbytes > most:
            yield group
            group, size = {}, 0
        group[name] = tensor
        size += tensor.nbytes
    yield group


def _index(target: Path) -> Path:
    return target.with_name(target.name + _INDEX)


def _shards_of(target: Path) -> set[str]:
    """The files of an index that `weft.save` has written here; none where there is none."""
    try:
        found = _read_index(_index(target))["weight_map"].values()
    except (OSError, UserError):
        return set()
    return {file for file in found if file.startswith(f"{target.stem}-")}


def _drop_shards(target: Path) -> None:
    """Remove the shards that a file takes the place of."""
    old = _shards_of(target)
    if old:
        _index(target).unlink(missing_ok=True)
    for file in old:
        target.with_name(file).unlink(missing_ok=True)


def _read_index(path: Path) -> dict[str, Any]:
    try:
        index = json.loads(path.read_bytes())
        names, texts = index["weight_map"], index.get("metadata", {})
        good = isinstance(texts, dict) and all(
            isinstance(file, str) and file == Path(file).name and not file.startswith(".")
            for file in names.values()
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        good = False
    if not good:
        raise UserError(f"[load] {path} is no index of safetensors files in its folder")
    return {"weight_map": names, "metadata": texts}


# -- loading ---------------------------------------------------------------------------------------


@public
def load(path: Pathlike, like: Any = None) -> Any:
    """What was saved: the tensors by name of a module or plain file, or the container. Objects in
    it, such as modules, are dicts of their tensors by name. With `like`, a container of the same
    structure, it is that with everything from the file in it."""
    source = Path(path)
    tensors, texts = _read(source)
    form = parsed(texts[_TREE], str(source)) if _TREE in texts else None
    if like is None:
        return tensors if form is None else tree_of(form, tensors, str(source))
    if form is None:
        return like.with_state(tensors) if isinstance(like, Module) else _named(like, tensors)
    own: dict[str, Tensor] = {}
    arrays = (np.ndarray, np.generic)
    wanted = map_leaves(lambda x: from_array(np.array(x)) if isinstance(x, arrays) else x, like)
    found = leaves_like(form, form_of(wanted, own), tensors, own, str(source))
    leaves, structure = flatten(like)
    pairs = zip(found, leaves, strict=True)
    return unflatten(structure, [x.numpy() if isinstance(old, arrays) else x for x, old in pairs])


def _named(like: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(like, dict) and like.keys() == tensors.keys():
        return tensors
    raise UserError(
        "[load] the file holds tensors by name, and `like` is no module or dict of them"
    )


def _read(source: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a file or of all shards of an index, and the texts beside them."""
    if source.name.endswith(_INDEX):
        return _read_shards(source)
    if not source.exists() and _index(source).exists():
        return _read_shards(_index(source))
    arrays = _arrays(source)
    texts = _metadata(source, "load")
    return {name: _tensor(name, array, texts) for name, array in arrays.items()}, texts


def _read_shards(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        index = _read_index(path)
    except OSError as error:
        raise UserError(f"[load] cannot read {path}: {error.strerror}") from None
    texts = {k: v for k, v in index["metadata"].items() if isinstance(v, str)}
    files = {file: _arrays(path.with_name(file)) for file in set(index["weight_map"].values())}
    found = {}
    for name, file in index["weight_map"].items():
        if name not in files[file]:
            raise UserError(f"[load] {path} says that {name} is in {file}, but it is not there")
        found[name] = _tensor(name, files[file][name], texts)
    return found, texts


def _arrays(source: Path) -> dict[str, NDArray[Any]]:
    """The tensors of one file, as arrays."""
    try:
        content = source.read_bytes()
    except OSError as error:
        raise UserError(f"[load] cannot read {source}: {error.strerror}") from None
    try:
        entries: list[tuple[str, Mapping[str, Any]]] = deserialize(content)  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        raise UserError(f"[load] {source} is no safetensors file: {error}") from None
    return {name: _array(name, entry) for name, entry in entries}


def _array(name: str, entry: Mapping[str, Any]) -> NDArray[Any]:
    found = _READ.get(entry["dtype"])
    if found is None:
        raise UserError(f"[load] {name} has the dtype {entry['dtype']}, which Weft does not know")
    elements = np.frombuffer(bytes(entry["data"]), BY_NAME[found].numpy)
    return elements.reshape(entry["shape"])


def _tensor(name: str, array: NDArray[Any], texts: Mapping[str, str]) -> Tensor:
    """A tensor of an array, which may be the bytes of a dtype that the format does not know."""
    note = texts.get(f"weft.type.{name}")
    if note is None:
        return from_array(array)
    try:
        kind, shape = json.loads(note)
        return from_array(np.frombuffer(array.tobytes(), BY_NAME[kind].numpy).reshape(shape))
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UserError(f"[load] {name} is said to be {note[:60]}, which it cannot be") from None


@public
def load_metadata(path: Pathlike) -> dict[str, str]:
    """The texts that a file was saved with; none where it has none."""
    source = Path(path)
    if not source.exists() and _index(source).exists():
        source = _index(source)
    if source.name.endswith(_INDEX):
        texts = {k: v for k, v in _read_index(source)["metadata"].items() if isinstance(v, str)}
    else:
        texts = _metadata(source, "load_metadata")
    return {name: text for name, text in texts.items() if not name.startswith("weft.")}


def _metadata(source: Path, caller: str) -> dict[str, str]:
    try:
        with safe_open(source, framework="numpy") as file:
            return dict(file.metadata() or {})
    except OSError as error:
        why = error.strerror or "No such file or directory"
        raise UserError(f"[{caller}] cannot read {source}: {why}") from None
    except SafetensorError as error:
        raise UserError(f"[{caller}] {source} is no safetensors file: {error}") from None
