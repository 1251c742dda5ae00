"""`weft.save` and `weft.load`: tensors, and containers of them, in safetensors files.

A module, or tensors by name, are a plain file that other programs read. Any other container is one
too, with its structure as JSON in the file's metadata. A large one can be cut into shards beside an
index. A file is replaced as a whole, and an index after all of its shards: an interruption leaves
what was there.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save as write

from weft.foundation.dtypes import DType, Kind, as_dtype
from weft.foundation.errors import UserError, a_type
from weft.foundation.mesh import Mesh
from weft.interop.checkpoints import (
    Piece,
    pieces,
    split_again,
    together,
    unsplit,
    wanted_wholes,
    write_ranks,
)
from weft.interop.tree_form import RESERVED, form_of, leaves_like, parsed, tree_of
from weft.interop.weights.files import found_in, index_of, read_index, read_metadata, read_weights
from weft.interop.weights.safetensors import DTYPES
from weft.ops.calls import public
from weft.ops.nn.module import Module, own_state
from weft.ops.pytree import flatten, map_leaves, unflatten
from weft.ops.tensor import Tensor, from_array

_TREE: Final = "weft.tree"
"""Where the structure stands in the metadata."""
Pathlike = str | os.PathLike[str]


@public
def save(
    path: Pathlike,
    tree: Any,
    metadata: Mapping[str, str] | None = None,
    *,
    shard_bytes: int | None = None,
    mesh: Mesh | None = None,
) -> None:
    """Write a module, tensors by name, or any container of tensors, numbers and texts into a file.
    With `shard_bytes` it is several files of about that size at most, and an index beside them.
    With `mesh` all ranks of it call this together, and each writes a file; split tensors are
    written part by part, and load as wholes on any number of ranks."""
    texts = _check_metadata(metadata)
    plain, splits = unsplit(tree)
    if not isinstance(mesh, Mesh | None):
        raise UserError(f"[save] mesh is {a_type(mesh)}; make one with weft.mesh")
    if splits and mesh is None:
        raise UserError("[save] the tree has split tensors; save it with mesh=, on all ranks")
    tensors, form = _taken_apart(plain)
    if form is not None:
        texts[_TREE] = form
    target = Path(path)
    try:
        if mesh is not None:
            _write_ranks(target, pieces(tensors, splits, mesh), texts, mesh)
        elif shard_bytes is None:
            _replace_file(target, _content(tensors, texts))
            _drop_shards(target)
        else:
            _write_shards(target, tensors, texts, shard_bytes)
    except OSError as error:
        raise UserError(f"[save] cannot write {target}: {error.strerror}") from None


def _check_metadata(metadata: Mapping[str, str] | None) -> dict[str, str]:
    for key, value in (metadata or {}).items():
        if not isinstance(key, str) or not isinstance(value, str) or key == _TREE:
            raise UserError(f"[save] metadata maps texts to texts, but has {key!r}: {value!r}")
    return dict(metadata or {})


def _taken_apart(tree: Any) -> tuple[dict[str, Tensor], str | None]:
    """The tensors by name, and the structure where it is more than that."""
    plain = own_state(tree) if isinstance(tree, Module) else tree
    if isinstance(plain, Mapping) and all(map(_is_storable, plain, plain.values())):
        return dict(plain), None
    arrays = (np.ndarray, np.generic)
    held: dict[str, Tensor] = {}
    whole = map_leaves(lambda x: from_array(np.array(x)) if isinstance(x, arrays) else x, tree)
    form = form_of(whole, held)
    return held, json.dumps(form, separators=(",", ":"))


def _is_storable(name: Any, value: Any) -> bool:
    known = isinstance(value, Tensor) and value.dtype.name in DTYPES.values()
    return isinstance(name, str) and name != RESERVED and known


def _content(tensors: Mapping[str, Tensor], texts: dict[str, str]) -> bytes:
    arrays = {name: _write_tensor(name, tensor, texts) for name, tensor in tensors.items()}
    return write(arrays, texts or None)


def _write_tensor(name: str, tensor: Tensor, texts: dict[str, str]) -> NDArray[Any]:
    """A tensor as the format can hold it: of a dtype that it does not know, the bytes."""
    if not _note_type(name, tensor.dtype, tensor.type.static_shape, texts):
        return np.asarray(tensor.numpy(), order="C")
    return np.frombuffer(np.ascontiguousarray(tensor.numpy()).tobytes(), np.uint8)


def _note_type(name: str, dtype: DType, shape: Sequence[int], texts: dict[str, str]) -> bool:
    """Whether the format does not know a dtype, which is then said in a text."""
    if dtype.name in DTYPES.values():
        return False
    texts[f"weft.type.{name}"] = json.dumps([dtype.name, list(shape)])
    return True


def _replace_file(target: Path, content: bytes) -> None:
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
    old, tag = _shards_of(target) | _left_behind(target), secrets.token_hex(4)
    groups = list(_file_groups(tensors, most))
    names: dict[str, str] = {}
    for number, group in enumerate(groups, 1):
        file = f"{target.stem}-{tag}-{number:05}-of-{len(groups):05}.safetensors"
        own: dict[str, str] = {}
        _replace_file(target.with_name(file), _content(group, own))
        texts |= own
        names |= dict.fromkeys(group, file)
    total = sum(tensor.nbytes for tensor in tensors.values())
    _write_index(target, names, {"total_size": total, **texts}, old)


def _write_index(
    target: Path, names: Mapping[str, str], metadata: Mapping[str, Any], old: set[str]
) -> None:
    index = {"metadata": metadata, "weight_map": names}
    _replace_file(index_of(target), json.dumps(index, indent=1).encode())
    target.unlink(missing_ok=True)
    for file in old - set(names.values()):
        target.with_name(file).unlink(missing_ok=True)


def _write_ranks(
    target: Path, made: tuple[list[Piece], dict[str, str]], texts: dict[str, str], mesh: Mesh
) -> None:
    """A file of each rank, and then rank 0's index."""
    found, parts = made
    old = _shards_of(target) | _left_behind(target)
    for piece in found:
        _note_type(piece.name, piece.held.dtype, piece.shape, texts)

    def write(file: str, tensors: Mapping[str, Tensor]) -> None:
        _replace_file(target.with_name(file), _content(tensors, {}))

    names = write_ranks(target, found, mesh, write)
    if mesh.rank == 0:
        _write_index(target, names, {**texts, **parts}, old)
    together(mesh, "the index is written")


def _file_groups(tensors: Mapping[str, Tensor], most: int) -> Iterator[dict[str, Tensor]]:
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


def _shards_of(target: Path) -> set[str]:
    """The files of an index that `weft.save` has written here; none where there is none."""
    try:
        found = read_index(index_of(target))["weight_map"].values()
    except (OSError, UserError):
        return set()
    return {file for file in found if file.startswith(f"{target.stem}-")}


def _left_behind(target: Path) -> set[str]:
    """The files of earlier saves that were killed before they had an index."""
    shard = rf"{re.escape(target.stem)}-[0-9a-f]{{8}}-\d{{5}}-of-\d{{5}}\.safetensors"
    ours = re.compile(rf"{shard}|\.{shard}\.\d+")
    try:
        return {entry.name for entry in os.scandir(target.parent) if ours.fullmatch(entry.name)}
    except OSError:
        return set()


def _drop_shards(target: Path) -> None:
    """Remove the shards that a file takes the place of."""
    old = _shards_of(target)
    if old:
        index_of(target).unlink(missing_ok=True)
    for file in old:
        target.with_name(file).unlink(missing_ok=True)


# -- loading ---------------------------------------------------------------------------------------


@public
def load(path: Pathlike, like: Any = None, *, dtype: Any = None, packed: bool = False) -> Any:
    """What was saved: the tensors by name of a module or plain file, or the container. Objects in
    it, such as modules, are dicts of their tensors by name. With `like`, a container of the same
    structure, it is that with everything from the file in it. A file is safetensors, an index of
    such files, or GGUF, whose blocks of few bits become float32, or with `packed` stay what they
    are (`nn.Packed`); a folder holds one of them. Floats are cast to `dtype` where one is given.
    What is split in `like` is split so in the result, also
    where it was saved on another mesh, or whole."""
    if not isinstance(path, str | os.PathLike):
        raise UserError(f"a file or a folder is loaded by its path, not by {a_type(path)}")
    if like is not None:
        return split_again(like, _load_tensors(path, wanted_wholes(like), dtype, packed))
    return _load_tensors(path, None, dtype, packed)


def _load_tensors(path: Pathlike, like: Any, dtype: Any, packed: bool) -> Any:
    source = found_in(Path(path))
    tensors, texts = read_weights(source, _check_float_dtype(dtype), packed)
    form = parsed(texts[_TREE], str(source)) if _TREE in texts else None
    if like is None:
        return tensors if form is None else tree_of(form, tensors, str(source))
    if form is None:
        return like.with_state(tensors) if isinstance(like, Module) else _match_names(like, tensors)
    own: dict[str, Tensor] = {}
    kinds = (np.ndarray, np.generic)
    wanted = map_leaves(lambda x: from_array(np.array(x)) if isinstance(x, kinds) else x, like)
    found = leaves_like(form, form_of(wanted, own), tensors, own, str(source))
    leaves, structure = flatten(like)
    pairs = zip(found, leaves, strict=True)
    return unflatten(structure, [x.numpy() if isinstance(old, kinds) else x for x, old in pairs])


def _check_float_dtype(dtype: Any) -> DType | None:
    wanted = None if dtype is None else as_dtype(dtype)
    if wanted is not None and wanted.kind is not Kind.FLOAT:
        raise UserError(f"[load] dtype is {dtype!s}; floats are cast to it, so it must be a float")
    return wanted


def _match_names(like: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(like, dict) and like.keys() == tensors.keys():
        return tensors
    raise UserError(
        "[load] the file holds tensors by name, and `like` is not a module or dict of them"
    )


@public
def load_metadata(path: Pathlike) -> dict[str, Any]:
    """The texts that a file was saved with; none where it has none. Of a GGUF file, its facts:
    texts, numbers and lists of them."""
    facts = read_metadata(found_in(Path(path), "load_metadata"))
    return {name: fact for name, fact in facts.items() if not name.startswith("weft.")}
