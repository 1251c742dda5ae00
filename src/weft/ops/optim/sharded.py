"""An optimiser whose state is split over ranks: each keeps its part, and computes with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.foundation.errors import UserError, a_type
from weft.foundation.mesh import Mesh, Over, Split
from weft.ops.calls import public
from weft.ops.mesh.collectives import all_gather, all_reduce, reduce_scatter
from weft.ops.mesh.sharded import Sharded, part_of, shard
from weft.ops.optim.optimiser import ByParameter, Optimiser, Parameter
from weft.ops.rank_classes import classes_of_nodes
from weft.ops.session import Session
from weft.ops.tensor import Tensor


class ShardedState(Optimiser):
    """An optimiser of which each rank along `over` has the state of its part of every parameter: of
    the first axis that can be split evenly. What has no such axis is everybody's."""

    def __init__(self, optimiser: ByParameter, mesh: Mesh, over: Over) -> None:
        self.inner, self.mesh, self.over = optimiser, mesh, over

    def begin(self, params: Sequence[Parameter]) -> Any:
        state = self.inner.begin(params)
        for slot in self.inner.slots:
            pairs = zip(state[slot], params, strict=True)
            state[slot] = [
                self._keep_part(held, self._choose_split(param)) for held, param in pairs
            ]
        return state

    def _keep_part(self, held: Any, split: Split) -> Any:
        return shard(held, self.mesh, split) if split else held

    def _choose_split(self, param: Parameter) -> Split:
        count = self.mesh.size(self.over)
        for axis, size in enumerate(param.tensor.type.static_shape):
            if count > 1 and size and size % count == 0:
                return {axis: self.over}
        return {}

    def directions(
        self, gradients: Sequence[Tensor], state: Any, params: Sequence[Parameter]
    ) -> tuple[list[Tensor], Any]:
        splits = [self._choose_split(param) for param in params]
        slopes = self._reduce_gradients(gradients, splits)
        parts = [
            Parameter(param.name, self._own(param.tensor, split))
            for param, split in zip(params, splits, strict=True)
        ]
        ways, after = self.inner.directions(slopes, self._bare(state), parts)
        for slot in self.inner.slots:
            pairs = zip(after[slot], splits, strict=True)
            after[slot] = [Sharded(x, self.mesh, split) if split else x for x, split in pairs]
        found = [
            all_gather(way, axis=next(iter(split)), over=self.over) if split else way
            for way, split in zip(ways, splits, strict=True)
        ]
        return found, after

    def _bare(self, state: Any) -> Any:
        if not isinstance(state, dict) or any(slot not in state for slot in self.inner.slots):
            return state
        return {
            name: [x.value if isinstance(x, Sharded) else x for x in held]
            if name in self.inner.slots
            else held
            for name, held in state.items()
        }

    def _reduce_gradients(
        self, gradients: Sequence[Tensor], splits: Sequence[Split]
    ) -> list[Tensor]:
        """This rank's part of each gradient: of the mean where ranks have gradients of their
        own."""
        classes = classes_of_nodes([slope._node for slope in gradients])
        wanted = set(self.mesh.names(self.over))
        found = []
        for slope, own, split in zip(gradients, classes, splits, strict=True):
            differs = wanted & set(self.mesh.varying(own))
            if differs and split:
                axis = next(iter(split))
                found.append(reduce_scatter(slope, "mean", axis, over=self.over))
            elif differs:
                found.append(all_reduce(slope, "mean", over=self.over))
            else:
                found.append(self._own(slope, split))
        return found

    def _own(self, whole: Tensor, split: Split) -> Tensor:
        if not split:
            return whole
        session = Session.here()
        return session.export(part_of(session, session.import_(whole), self.mesh, split))


@public
def sharded(optimiser: ByParameter, mesh: Mesh, *, over: Over = "data") -> Optimiser:
    """The optimiser with its state split over the ranks along `over`: each has 1/n of it, computes
    its part of the step, and gathers the rest. `update`, inside `weft.spmd`, takes each rank's own
    gradients and averages them, in as many bytes as `all_reduce` takes; gradients that are the same
    on all ranks are taken as they are. Optimisers that look at one element at a time can be split:
    Adam, AdamW, Lion, SGD, RMSprop, Adagrad."""
    if not isinstance(mesh, Mesh):
        raise UserError(f"[sharded] takes a mesh, not {a_type(mesh)}; make one with weft.mesh")
    if not isinstance(optimiser, ByParameter) or not optimiser.elementwise:
        raise UserError(
            f"[sharded] {type(optimiser).__name__} looks at more than one element at a time, and "
            "a part of a parameter is not enough for it; AdamW and SGD can be split"
        )
    mesh.names(over)
    return ShardedState(optimiser, mesh, over)
