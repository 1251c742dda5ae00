"""Checkpoints of the ranks of a mesh: one file a rank, and an index that is written last.

They hold whole tensors, in parts where ranks have parts, and so load on any number of ranks. All
ranks come to `save_ranks` together. Files have names that no earlier save has used; what was there
before goes after the index is written.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.foundation.mesh import Mesh
from weft.foundation.ranks import Meeting, world_of
from weft.ops.array.creation import asarray, zeros
from weft.ops.mesh.sharded import Sharded, is_sharded, shard
from weft.ops.pytree import flatten, unflatten
from weft.ops.tensor import Tensor

Array = NDArray[Any]
Writer = Callable[[str, Mapping[str, Tensor]], None]


@dataclass(frozen=True)
class Piece:
    """A tensor of a rank's file: a tensor as it is, or a part of one."""

    name: str
    rank: int
    held: Tensor
    """What this process has of it: of a simulated mesh the whole."""
    place: tuple[slice, ...] | None = None
    """Where it lies in what is held, if not everywhere."""

    @property
    def shape(self) -> tuple[int, ...]:
        whole = self.held.type.static_shape
        if self.place is None:
            return whole
        return tuple(len(range(n)[cut]) for n, cut in zip(whole, self.place, strict=True))

    @property
    def tensor(self) -> Tensor:
        return self.held if self.place is None else asarray(self.held.numpy()[self.place])


def unsplit(tree: Any) -> tuple[Any, dict[int, Sharded]]:
    """A container with this process's tensors in the place of split ones, and which of them, by
    identity, are split."""
    leaves, structure = flatten(tree, is_sharded)
    splits: dict[int, Sharded] = {}
    for at, leaf in enumerate(leaves):
        if isinstance(leaf, Sharded):
            leaves[at] = asarray(leaf.value)
            splits[id(leaves[at])] = leaf
    return unflatten(structure, leaves), splits


def wanted_wholes(like: Any) -> Any:
    """A container as it is wanted, with tensors of the whole shape in the place of split ones."""
    leaves, structure = flatten(like, is_sharded)
    made = [zeros(x.shape, dtype=x.dtype) if isinstance(x, Sharded) else x for x in leaves]
    return unflatten(structure, made)


def split_again(like: Any, found: Any) -> Any:
    """What was loaded, split as `like` is."""
    wanted, structure = flatten(like, is_sharded)
    if not any(map(is_sharded, wanted)):
        return found
    pairs = zip(wanted, flatten(found)[0], strict=True)
    made = [shard(x, w.mesh, w.split) if isinstance(w, Sharded) else x for w, x in pairs]
    return unflatten(structure, made)


def pieces(
    tensors: Mapping[str, Tensor], splits: Mapping[int, Sharded], mesh: Mesh
) -> tuple[list[Piece], dict[str, str]]:
    """What is written by which rank, and how parts lie in their wholes, as texts. All ranks find
    the same. What all have is written by one of them, in turn."""
    found: list[Piece] = []
    texts: dict[str, str] = {}
    for number, (name, tensor) in enumerate(tensors.items()):
        whole = splits.get(id(tensor))
        if whole is None or not whole.split:
            found.append(Piece(name, number % mesh.count, tensor))
            continue
        shape, starts = whole.shape, dict[tuple[int, ...], int]()
        for rank in range(mesh.count):
            part = mesh.part(shape, whole.split, rank)
            starts.setdefault(tuple(cut.start or 0 for cut in part), rank)
        for at, rank in enumerate(starts.values()):
            place = mesh.part(shape, whole.split, rank) if mesh.simulated else None
            found.append(Piece(f"{name}@{at}", rank, tensor, place))
        note = {"shape": list(shape), "starts": [list(start) for start in starts]}
        texts[f"weft.parts.{name}"] = json.dumps(note)
    return found, texts


def write_ranks(target: Path, found: list[Piece], mesh: Mesh, write: Writer) -> dict[str, str]:
    """Let each rank write its file; by name, the file of each piece. Nobody goes on before all have
    written."""
    tag = _agreed_tag(mesh)
    files = {r: f"{target.stem}-{tag}-{r + 1:05}-of-{mesh.count:05}" for r in range(mesh.count)}
    for rank in range(mesh.count) if mesh.simulated else (mesh.rank,):
        own = {piece.name: piece.tensor for piece in found if piece.rank == rank}
        write(f"{files[rank]}.safetensors", own)
    together(mesh, "all files are written")
    return {piece.name: f"{files[piece.rank]}.safetensors" for piece in found}


def together(mesh: Mesh, why: str) -> None:
    """Wait for all ranks."""
    if not mesh.simulated and mesh.count > 1:
        meeting = Meeting(f"save: {why}", tuple(range(mesh.count)))
        world_of(mesh.count, "save").meet(meeting, np.zeros(1, np.uint8))


def _agreed_tag(mesh: Mesh) -> str:
    """Eight letters that rank 0 has drawn."""
    own = np.frombuffer(secrets.token_bytes(4), np.uint8)
    if not mesh.simulated and mesh.count > 1:
        meeting = Meeting("save: names", tuple(range(mesh.count)))
        own = world_of(mesh.count, "save").broadcast(meeting, own)
    return own.tobytes().hex()
