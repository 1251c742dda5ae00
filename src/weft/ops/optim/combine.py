"""Optimisers made of optimisers: one after the other, on some parameters only, every few steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from weft.foundation.errors import UserError, a_type
from weft.ops.array.creation import asarray, zeros_like
from weft.ops.array.searching import where
from weft.ops.calls import check_function, public
from weft.ops.optim.optimiser import Optimiser, Parameter
from weft.ops.optim.settings import count
from weft.ops.pytree import map_leaves
from weft.ops.tensor import Tensor

Where: TypeAlias = Callable[[str, Tensor], bool]
"""Whether a parameter is meant, by its name (`params.norm.weight`) and its tensor."""
Found: TypeAlias = tuple[list[Tensor], Any]


class Chain(Optimiser):
    """Optimisers one after the other: each takes what the one before gives."""

    def __init__(self, parts: Sequence[Optimiser]) -> None:
        self.parts = tuple(parts)

    def begin(self, params: Sequence[Parameter]) -> Any:
        return tuple(part.begin(params) for part in self.parts)

    def directions(
        self, gradients: Sequence[Tensor], state: Any, params: Sequence[Parameter]
    ) -> Found:
        if not isinstance(state, tuple) or len(state) != len(self.parts):
            raise UserError(
                f"[update] the state of a chain is a tuple of {len(self.parts)}, and this is "
                f"{a_type(state)}; begin with init(params)"
            )
        ways, after = list(gradients), []
        for part, own in zip(self.parts, state, strict=True):
            ways, kept = part.directions(ways, own, params)
            after.append(kept)
        return ways, tuple(after)


class Partition(Optimiser):
    """For every parameter the optimiser that its label names."""

    def __init__(self, label: Callable[[str, Tensor], str], parts: Mapping[str, Optimiser]) -> None:
        self.label, self.parts = label, dict(parts)

    def begin(self, params: Sequence[Parameter]) -> Any:
        places = self._places(params)
        return {
            name: part.begin([params[at] for at in places[name]])
            for name, part in self.parts.items()
        }

    def directions(
        self, gradients: Sequence[Tensor], state: Any, params: Sequence[Parameter]
    ) -> Found:
        if not isinstance(state, dict) or state.keys() != self.parts.keys():
            raise UserError(
                f"[update] the state of a partition has {', '.join(self.parts)}; begin with "
                "init(params)"
            )
        ways, after = list(gradients), {}
        for name, places in self._places(params).items():
            slopes, own = [gradients[at] for at in places], [params[at] for at in places]
            found, after[name] = self.parts[name].directions(slopes, state[name], own)
            for at, way in zip(places, found, strict=True):
                ways[at] = way
        return ways, after

    def _places(self, params: Sequence[Parameter]) -> dict[str, list[int]]:
        """Which parameters belong to which part."""
        found: dict[str, list[int]] = {name: [] for name in self.parts}
        for at, param in enumerate(params):
            name = self.label(param.name, param.tensor)
            if name not in found:
                known = ", ".join(self.parts)
                raise UserError(
                    f"[partition] the label of {param.name} is {name!r}; there are {known}"
                )
            found[name].append(at)
        return found


class Accumulate(Optimiser):
    """A step by the mean of several gradients; none in between."""

    def __init__(self, optimiser: Optimiser, steps: int) -> None:
        self.optimiser, self.steps = optimiser, steps

    def begin(self, params: Sequence[Parameter]) -> Any:
        return {
            "count": asarray(0.0, dtype="f32"),
            "sum": [zeros_like(param.tensor) for param in params],
            "inner": self.optimiser.begin(params),
        }

    def directions(
        self, gradients: Sequence[Tensor], state: Any, params: Sequence[Parameter]
    ) -> Found:
        if not isinstance(state, dict) or not {"count", "sum", "inner"} <= state.keys():
            raise UserError("[update] this is not a state of accumulate; begin with init(params)")
        sums = [old + new for old, new in zip(state["sum"], gradients, strict=True)]
        due = state["count"] + 1.0 >= float(self.steps)
        means = [each / float(self.steps) for each in sums]
        ways, after = self.optimiser.directions(means, state["inner"], params)

        def chosen(new: Any, old: Any) -> Any:
            return where(due, new, old) if isinstance(new, Tensor) else new

        return [where(due, way, zeros_like(way)) for way in ways], {
            "count": where(due, 0.0, state["count"] + 1.0),
            "sum": [where(due, zeros_like(each), each) for each in sums],
            "inner": map_leaves(chosen, after, state["inner"]),
        }


class Frozen(Optimiser):
    """Parameters that stay as they are."""

    def begin(self, params: Sequence[Parameter]) -> Any:
        return ()

    def directions(
        self, gradients: Sequence[Tensor], state: Any, params: Sequence[Parameter]
    ) -> Found:
        return [zeros_like(slope) for slope in gradients], state


class Unchanged(Frozen):
    """Gradients that are handed on as they are."""

    def directions(
        self, gradients: Sequence[Tensor], state: Any, params: Sequence[Parameter]
    ) -> Found:
        return list(gradients), state


@public
def chain(*optimisers: Optimiser) -> Optimiser:
    """Optimisers one after the other: `chain(clip(norm=1.0), AdamW(3e-4), average(0.999))`."""
    for part in optimisers:
        check_optimiser("chain", part)
    return Chain(optimisers)


@public
def partition(
    label: Callable[[str, Tensor], str], optimisers: Mapping[str, Optimiser]
) -> Optimiser:
    """An optimiser for each group of parameters. `label(name, tensor)` says which group."""
    check_function("partition", label)
    if not isinstance(optimisers, Mapping) or not optimisers:
        raise UserError(f"optimisers are given by label, not as {a_type(optimisers)}")
    for part in optimisers.values():
        check_optimiser("partition", part)
    return Partition(label, optimisers)


@public
def masked(optimiser: Optimiser, where: Where) -> Optimiser:
    """An optimiser for the parameters of which `where(name, tensor)` holds; the gradients of others
    are handed on as they are."""
    check_function("masked", where)
    check_optimiser("masked", optimiser)
    return Partition(Mask(where), {"inside": optimiser, "outside": Unchanged()})


class Mask:
    """The label of a parameter that a condition gives: inside or outside."""

    def __init__(self, where: Where) -> None:
        self.where = where

    def __call__(self, name: str, tensor: Tensor) -> str:
        return "inside" if self.where(name, tensor) else "outside"


@public
def freeze() -> Optimiser:
    """What leaves parameters as they are: one group of a `partition`."""
    return Frozen()


@public
def accumulate(optimiser: Optimiser, steps: int) -> Optimiser:
    """A step of the optimiser by the mean of `steps` gradients, and none in between."""
    check_optimiser("accumulate", optimiser)
    return Accumulate(optimiser, count("accumulate", "steps", steps, 1))


def check_optimiser(owner: str, value: Any) -> None:
    """Say so where something else is given."""
    if not isinstance(value, Optimiser):
        raise UserError(f"[{owner}] {a_type(value)} is given where an optimiser is wanted")
