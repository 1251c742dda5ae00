"""What an optimiser is: it makes directions of gradients, which a step subtracts from parameters.

    directions, state = optimiser.directions(gradients, state, params)
    params = params - directions

Everything in `optim` that changes a gradient on its way is one of these: Adam with its rate, a
clip, a decay, a factor. `chain` puts them one after the other, and others hold one and say when or
where it acts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from weft.foundation.calls import told_methods
from weft.foundation.errors import SpecViolation, UserError, a_type
from weft.foundation.tracebacks import ending_outside
from weft.ops.array.creation import asarray, zeros_like
from weft.ops.calls import public
from weft.ops.nn.module import learnt
from weft.ops.optim.schedules import Schedule, as_schedule
from weft.ops.other_names import optimiser_advice
from weft.ops.pytree import Structure, alike, flatten, leaf_names, unflatten
from weft.ops.tensor import Tensor

P = TypeVar("P")


@told_methods
@dataclass(frozen=True)
class Parameter:
    """A tensor that is learnt, and its name: `params.blocks[0].weight`."""

    name: str
    tensor: Tensor


class Optimiser(ABC):
    """The base of all. Arrays count as tensors. Leaves that are no floats (settings, counters) and
    the buffers of modules are left as they are."""

    @abstractmethod
    def begin(self, params: Sequence[Parameter]) -> Any:
        """The state before the first step, nested in any way."""

    @abstractmethod
    def directions(
        self, gradients: Sequence[Tensor], state: Any, params: Sequence[Parameter]
    ) -> tuple[list[Tensor], Any]:
        """What is made of the gradients, one for each parameter, and the state after it."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            why = f"{type(self).__name__} has no attribute {name!r}{optimiser_advice(name)}"
            error = AttributeError(why, name=name)
            raise error if name.startswith("__") else ending_outside(error)

    @public
    def init(self, params: Any) -> Any:
        """The state before the first step."""
        chosen = _choose_leaves(*tensor_leaves(params))
        if not chosen:
            raise UserError("[init] there is no float tensor to learn in the parameters")
        return self.begin(list(chosen.values()))

    @public
    def update(self, gradients: Any, state: Any, params: P) -> tuple[P, Any]:
        """The parameters and the state after one step."""
        leaves, structure = tensor_leaves(params)
        slopes, shape = tensor_leaves(gradients)
        if not alike(shape, structure):
            _check_nesting(shape, structure)
        chosen = _choose_leaves(leaves, structure)
        given = [_fit_gradient(param, slopes[index]) for index, param in chosen.items()]
        found, after = self.directions(given, state, list(chosen.values()))
        for (index, param), way in zip(chosen.items(), found, strict=True):
            leaves[index] = param.tensor - way
        return unflatten(structure, leaves), after


class ByParameter(Optimiser):
    """An optimiser that looks at one parameter at a time. The state is a dict: `step`, and for each
    name in `slots` one tensor for every parameter."""

    slots: tuple[str, ...] = ()
    elementwise: bool = True
    """Whether a part of a parameter can be learnt without the rest of it."""

    def __init__(self, rate: float | Schedule) -> None:
        self.rate = rate

    @property
    def rate(self) -> Schedule:
        """The learning rate by the step. It may be set to a number, or to another schedule."""
        found: Schedule = vars(self)["rate"]
        return found

    @rate.setter
    def rate(self, rate: float | Schedule) -> None:
        vars(self)["rate"] = as_schedule(rate)

    @abstractmethod
    def direction(
        self, param: Tensor, gradient: Tensor, held: dict[str, Any], step: Tensor
    ) -> tuple[Tensor, dict[str, Any]]:
        """The direction of one parameter, which the rate is still to be multiplied with, and what
        is kept for it."""

    def first(self, slot: str, param: Tensor) -> Any:
        """What is kept for a parameter before the first step: zeros."""
        return zeros_like(param)

    def begin(self, params: Sequence[Parameter]) -> dict[str, Any]:
        state: dict[str, Any] = {"step": asarray(0.0, dtype="f32")}
        for slot in self.slots:
            state[slot] = [self.first(slot, param.tensor) for param in params]
        return state

    def directions(
        self, gradients: Sequence[Tensor], state: Any, params: Sequence[Parameter]
    ) -> tuple[list[Tensor], Any]:
        self._check(state, params)
        step = state["step"]
        rate = self.rate(step)
        columns: dict[str, list[Any]] = {slot: [] for slot in self.slots}
        found = []
        for number, (param, slope) in enumerate(zip(params, gradients, strict=True)):
            held = {slot: state[slot][number] for slot in self.slots}
            way, kept = self.direction(param.tensor, slope, held, step)
            found.append(way * like(rate, way))
            for slot in self.slots:
                columns[slot].append(kept[slot])
        return found, {"step": step + 1.0, **columns}

    def _check(self, state: Any, params: Sequence[Parameter]) -> None:
        """Say so where a state is not one that `init` or `update` made for these parameters."""
        wanted = ("step", *self.slots)
        if not isinstance(state, dict) or any(name not in state for name in wanted):
            found = ", ".join(map(str, state)) if isinstance(state, dict) else type(state).__name__
            raise UserError(
                f"[update] the state of {type(self).__name__} has {', '.join(wanted)}, but this is "
                f"{found or 'empty'}; begin with init(params)"
            )
        for slot in self.slots:
            shapes = [_shapes(held) for held in state[slot]]
            if shapes != [_shapes(self.first(slot, param.tensor)) for param in params]:
                raise UserError(
                    f"[update] {slot} of the state was made for other parameters than these; begin "
                    "with init(params)"
                )


def _check_nesting(gradients: Structure, params: Structure) -> None:
    """Modules may differ in settings, which a call has changed, and in nothing else."""
    have, want = leaf_names(gradients, "params"), leaf_names(params, "params")
    if have == want:
        return
    why = "the gradients are not nested as the parameters are"
    late = next((name for name in want if name not in have), None)
    if late is not None and set(have) < set(want):
        why += f": they have no {late}; make what is learnt before the gradients are taken"
    raise UserError(f"[update] {why}")


def _shapes(held: Any) -> list[Any]:
    """The shapes of what is kept for a parameter."""
    return [getattr(leaf, "shape", None) for leaf in flatten(held)[0]]


def tensor_leaves(tree: Any) -> tuple[list[Any], Structure]:
    """The leaves of a container, arrays as tensors, and its structure."""
    leaves, structure = flatten(tree)
    return [asarray(x) if isinstance(x, np.ndarray) else x for x in leaves], structure


def _fit_gradient(param: Parameter, gradient: Any) -> Tensor:
    """A gradient in the dtype of its parameter. It must have the shape: what only broadcasts to it
    would change the parameter's."""
    own = param.tensor
    if not isinstance(gradient, Tensor):
        raise UserError(
            f"[update] the gradient of {param.name} is {a_type(gradient)}, not a tensor"
        )
    if gradient.shape != own.shape:
        raise SpecViolation(
            "ShapeMismatch",
            f"[update] the gradient of {param.name} is {gradient.type}, but that is {own.type}",
            "give the gradient that weft.grad takes of these parameters",
        )
    return gradient if gradient.dtype == own.dtype else gradient.astype(own.dtype)


def _choose_leaves(leaves: Sequence[Any], structure: Structure) -> dict[int, Parameter]:
    """The leaves that an optimiser changes, by position."""
    marked = zip(leaves, learnt(structure), leaf_names(structure, "params"), strict=True)
    return {
        index: Parameter(name, leaf)
        for index, (leaf, own, name) in enumerate(marked)
        if own and trainable(leaf)
    }


def trainable(leaf: Any) -> bool:
    """Whether a leaf can be learnt: it is a tensor of floats."""
    return isinstance(leaf, Tensor) and leaf.dtype.is_float


def like(value: Any, model: Tensor) -> Any:
    """A number that was computed in f32, in the dtype of a parameter."""
    return value.astype(model.dtype) if isinstance(value, Tensor) else value
