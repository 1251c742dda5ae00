"""What changes gradients on their way: clips, factors, decay, and the average of parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from weft.foundation.errors import UserError
from weft.ops.array.creation import asarray
from weft.ops.array.elementwise import clip as between
from weft.ops.calls import public
from weft.ops.nn.module import learnt
from weft.ops.optim.clipping import clip_by_global_norm
from weft.ops.optim.combine import Found, Mask, Partition, Unchanged, Where
from weft.ops.optim.optimiser import Optimiser, Parameter, like, trainable
from weft.ops.optim.schedules import Schedule, as_schedule
from weft.ops.optim.settings import number
from weft.ops.pytree import children, flatten, unflatten
from weft.ops.tensor import Tensor

P = TypeVar("P")


class Clip(Optimiser):
    """Gradients that are together no longer than `norm`, and each element within `value`."""

    def __init__(self, norm: float | None, value: float | None) -> None:
        self.norm, self.value = norm, value

    def begin(self, params: Sequence[Parameter]) -> Any:
        return ()

    def directions(
        self, gradients: Sequence[Tensor], state: Any, params: Sequence[Parameter]
    ) -> Found:
        ways = list(gradients)
        if self.value is not None:
            ways = [between(way, -self.value, self.value) for way in ways]
        if self.norm is not None and ways:
            ways, _ = clip_by_global_norm(ways, self.norm)
        return ways, state


class Scale(Optimiser):
    """Everything times a factor, which may be a schedule."""

    def __init__(self, factor: Schedule) -> None:
        self.factor = factor

    def begin(self, params: Sequence[Parameter]) -> Any:
        return {"step": asarray(0.0, dtype="f32")}

    def directions(
        self, gradients: Sequence[Tensor], state: Any, params: Sequence[Parameter]
    ) -> Found:
        factor = self.factor(state["step"])
        return [way * like(factor, way) for way in gradients], {"step": state["step"] + 1.0}


class Decay(Optimiser):
    """A part of the parameters themselves is added."""

    def __init__(self, weight: float) -> None:
        self.weight = weight

    def begin(self, params: Sequence[Parameter]) -> Any:
        return ()

    def directions(
        self, gradients: Sequence[Tensor], state: Any, params: Sequence[Parameter]
    ) -> Found:
        pairs = zip(gradients, params, strict=True)
        return [way + param.tensor * self.weight for way, param in pairs], state


class Average(Optimiser):
    """Beside the parameters, a running mean of them. Gradients are handed on as they are."""

    def __init__(self, decay: float) -> None:
        self.decay = decay

    def begin(self, params: Sequence[Parameter]) -> Any:
        return {"average": [asarray(param.tensor, copy=True) for param in params]}

    def directions(
        self, gradients: Sequence[Tensor], state: Any, params: Sequence[Parameter]
    ) -> Found:
        found = []
        for old, param, way in zip(state["average"], params, gradients, strict=True):
            # Last in its chain, it is given what will be subtracted, and averages what comes out.
            found.append(old + (param.tensor - way - old) * (1.0 - self.decay))
        return list(gradients), {"average": found}


@public
def clip(*, norm: float | None = None, value: float | None = None) -> Optimiser:
    """Scale all gradients down together where they are longer than `norm`; bound each element by
    `value` in size."""
    if norm is None and value is None:
        raise UserError("give norm, value, or both")
    for name, limit in (("norm", norm), ("value", value)):
        if limit is not None:
            number("clip", name, limit)
    return Clip(norm, value)


@public
def scale(factor: float | Schedule) -> Optimiser:
    """Everything times a number, or a schedule: `chain(Adam(1.0), scale(one_cycle(...)))`."""
    return Scale(as_schedule(factor))


@public
def decay(weight: float, where: Where | None = None) -> Optimiser:
    """`weight` times the parameters, added to what is subtracted from them; with `where(name,
    tensor)` of those parameters only. Before an optimiser it is a penalty on the loss; behind Adam
    and before its rate it is the decay of AdamW."""
    made = Decay(number("decay", "weight", weight))
    if where is None:
        return made
    return Partition(Mask(where), {"inside": made, "outside": Unchanged()})


@public
def average(decay: float = 0.999) -> Optimiser:
    """A running mean of the parameters in the state: the last part of a chain. `averaged(state,
    params)` is the model with it."""
    return Average(number("average", "decay", decay, below=1.0))


@public
def averaged(state: Any, params: P) -> P:
    """The parameters with their running means, which `average` keeps in the state, in the place of
    their values."""
    means = _means(state)
    leaves, structure = flatten(params)
    marked = zip(leaves, learnt(structure), strict=True)
    places = [at for at, (leaf, own) in enumerate(marked) if own and trainable(leaf)]
    if len(means) != 1 or len(means[0]) != len(places):
        raise UserError(
            f"[averaged] the state has {len(means)} averages, and one is wanted, of these "
            f"{len(places)} parameters; put optim.average() last in a chain"
        )
    for at, mean in zip(places, means[0], strict=True):
        leaves[at] = mean
    made: P = unflatten(structure, leaves)
    return made


def _means(state: Any) -> list[list[Tensor]]:
    """Every average in a state."""
    if isinstance(state, dict) and "average" in state:
        return [state["average"]]
    return [found for _, child in children(state) or [] for found in _means(child)]
