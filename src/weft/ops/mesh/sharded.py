"""Tensors that are split over the ranks of a mesh, and those that are the same on all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.foundation.calls import told_methods
from weft.foundation.errors import UserError, a_type
from weft.foundation.mesh import Mesh, Over, Split
from weft.foundation.ranks import Meeting, world_of
from weft.ops.array.creation import asarray
from weft.ops.calls import public
from weft.ops.pytree import flatten, leaf_names, register_pytree, unflatten
from weft.ops.session import Handle, Session
from weft.ops.tensor import Tensor

Array = NDArray[Any]


@told_methods
class Sharded:
    """A tensor of which every rank has a part. `value` is this process's part; of a simulated mesh,
    where this process is all ranks, the whole. A function with `@weft.spmd` takes it apart, and
    gives one back where it returns one."""

    __slots__ = ("mesh", "split", "value")

    def __init__(self, value: Any, mesh: Mesh, split: Split) -> None:
        if not isinstance(mesh, Mesh):
            raise UserError(f"a value is split over a mesh, not {a_type(mesh)}")
        if not isinstance(split, Mapping):
            raise UserError(f"a value is split as in {{0: 'data'}}, not by {a_type(split)}")
        for over in split.values():
            mesh.names(over)
        self.value, self.mesh, self.split = value, mesh, dict(split)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole."""
        own = list(self.value.shape)
        for axis, over in () if self.mesh.simulated else self.split.items():
            own[axis] *= self.mesh.size(over)
        return tuple(own)

    @property
    def dtype(self) -> Any:
        return self.value.dtype

    def numpy(self) -> Array:
        """The whole tensor. On a mesh of several processes all ranks must ask for it."""
        found = np.asarray(self.value.numpy() if isinstance(self.value, Tensor) else self.value)
        if self.mesh.simulated:
            return found
        for axis, over in self.split.items():
            groups = self.mesh.groups(over)
            # All groups stand in one row, each as long as the others: that of this rank begins at a
            # multiple.
            at = groups["groups"].index(self.mesh.rank) // groups["size"] * groups["size"]
            members = groups["groups"][at : at + groups["size"]]
            world = world_of(self.mesh.count, "Sharded.numpy")
            found = world.all_gather(Meeting("Sharded.numpy", members), found, axis)
        return found

    def __repr__(self) -> str:
        axes = ", ".join(f"{axis}: {over!r}" for axis, over in self.split.items())
        return f"Sharded({list(self.shape)} of {self.dtype}, {{{axes}}}, {self.mesh})"


register_pytree(
    Sharded,
    lambda x: ((x.value,), (x.mesh, tuple(sorted(x.split.items())))),
    lambda rest, children: Sharded(children[0], rest[0], dict(rest[1])),
    lambda rest, count: [""],
)


def is_sharded(value: Any) -> bool:
    return isinstance(value, Sharded)


@public
def shard(tree: Any, mesh: Mesh, split: Split) -> Any:
    """Every tensor of a container split over a mesh: `shard(x, mesh, {0: "data"})`. All ranks give
    the same tensors, and each keeps its part."""
    check_mesh("shard", mesh)
    leaves, structure = flatten(tree)
    names = leaf_names(structure, "tree")
    made = [_shard_leaf(leaf, mesh, split, name) for leaf, name in zip(leaves, names, strict=True)]
    return unflatten(structure, made)


def _shard_leaf(leaf: Any, mesh: Mesh, split: Split, name: str) -> Sharded:
    tensor = asarray(leaf)
    shape = tensor.type.static_shape
    found = mesh.checked(split, shape, name)
    if mesh.simulated or not found:
        return Sharded(tensor, mesh, found)
    own = np.ascontiguousarray(tensor.numpy()[mesh.part(shape, found, mesh.rank)])
    return Sharded(asarray(own), mesh, found)


@public
def replicate(tree: Any, mesh: Mesh) -> Any:
    """The tensors and arrays of rank 0 on every rank: what all begin with. Other values stay each
    rank's."""
    check_mesh("replicate", mesh)
    if mesh.simulated or mesh.count == 1:
        return tree
    world = world_of(mesh.count, "replicate")
    meeting = Meeting("replicate", tuple(range(mesh.count)))
    leaves, structure = flatten(tree)
    made: list[Any] = []
    for leaf in leaves:
        if isinstance(leaf, np.ndarray) and leaf.dtype != object:
            made.append(world.broadcast(meeting, leaf))
        elif isinstance(leaf, Tensor):
            made.append(asarray(world.broadcast(meeting, leaf.numpy()), dtype=leaf.dtype))
        else:
            made.append(leaf)
    return unflatten(structure, made)


def check_mesh(what: str, mesh: Any) -> None:
    if not isinstance(mesh, Mesh):
        raise UserError(f"{what} takes a mesh, not {a_type(mesh)}; make one with weft.mesh")


def part_of(session: Session, whole: Handle, mesh: Mesh, split: Split) -> Handle:
    """A rank's part of a tensor that all have."""
    sizes = [int(str(dim)) for dim in whole.shape]
    starts = [session.literal(0, "si64") for _ in sizes]
    for axis, over in split.items():
        sizes[axis] //= mesh.size(over)
        starts[axis] = session.emit("mesh_rank", numbers=mesh.places(over)) * sizes[axis]
    row = [session.emit("reshape", start, new_shape=(1,)) for start in starts]
    start = row[0] if len(row) == 1 else session.emit("concat", *row, axis=0)
    return session.emit("dynamic_slice", whole, start, sizes=tuple(sizes))


def splits_of(given: Mapping[str, Split] | None) -> dict[str, Split]:
    """The option `split`, checked."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise UserError(
            "split says for arguments by name which of their axes are split: "
            "{'x': {0: 'data'}, 'model.*.weight': {0: 'model'}}"
        )
    return dict(given)


__all__ = [
    "Over",
    "Sharded",
    "check_mesh",
    "is_sharded",
    "part_of",
    "replicate",
    "shard",
    "splits_of",
]
