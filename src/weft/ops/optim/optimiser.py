"""What an optimiser is: a first state, and an update of parameters by gradients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from weft.foundation.errors import SpecViolation, UserError, a_type
from weft.ops.array.creation import asarray, zeros_like
from weft.ops.calls import public
from weft.ops.nn.module import learnt
from weft.ops.optim.schedules import Schedule, as_schedule
from weft.ops.pytree import Structure, flatten, leaf_names, unflatten
from weft.ops.tensor import Tensor

P = TypeVar("P")


class Optimiser(ABC):
    """The base of all: walks over parameters, gradients and state together.

    The state is a dict: `step`, and for each name in `slots` one tensor like every parameter.
    Arrays count as tensors. Leaves that are no floats (settings, counters) and the buffers of
    modules are left as they are.
    """

    slots: tuple[str, ...] = ()

    def __init__(self, rate: float | Schedule) -> None:
        self.rate = as_schedule(rate)

    @public
    def init(self, params: Any) -> dict[str, Any]:
        """The state before the first step: zeros."""
        leaves, structure = tensor_leaves(params)
        chosen = [leaves[index] for index in _chosen(leaves, structure)]
        if not chosen:
            raise UserError("[init] there is no float tensor to learn in the parameters")
        state: dict[str, Any] = {"step": asarray(0.0, dtype="f32")}
        for slot in self.slots:
            state[slot] = [zeros_like(leaf) for leaf in chosen]
        return state

    @public
    def update(self, gradients: Any, state: dict[str, Any], params: P) -> tuple[P, dict[str, Any]]:
        """The parameters and the state after one step."""
        leaves, structure = tensor_leaves(params)
        slopes, shape = tensor_leaves(gradients)
        if shape != structure:
            raise UserError("[update] the gradients are not nested as the parameters are")
        chosen = _chosen(leaves, structure)
        names = leaf_names(structure, "params")
        self._check(state, [leaves[index] for index in chosen])
        step = state["step"]
        rate = self.rate(step)
        after: dict[str, Any] = {"step": step + 1.0}
        made = list(leaves)
        columns: dict[str, list[Tensor]] = {slot: [] for slot in self.slots}
        for number, index in enumerate(chosen):
            held = {slot: state[slot][number] for slot in self.slots}
            slope = _fitting(names[index], slopes[index], leaves[index])
            made[index], kept = self.step(leaves[index], slope, held, step, rate)
            for slot in self.slots:
                columns[slot].append(kept[slot])
        after.update(columns)
        return unflatten(structure, made), after

    def _check(self, state: Any, params: Sequence[Tensor]) -> None:
        """Say so where a state is not one that `init` or `update` made for these parameters."""
        wanted = ("step", *self.slots)
        if not isinstance(state, dict) or any(name not in state for name in wanted):
            found = ", ".join(state) if isinstance(state, dict) else type(state).__name__
            raise UserError(
                f"[update] the state of {type(self).__name__} has {', '.join(wanted)}, but this is "
                f"{found or 'empty'}; begin with init(params)"
            )
        for slot in self.slots:
            shapes = [getattr(tensor, "shape", None) for tensor in state[slot]]
            if shapes != [param.shape for param in params]:
                raise UserError(
                    f"[update] {slot} of the state was made for other parameters than these; begin "
                    "with init(params)"
                )

    @abstractmethod
    def step(
        self, param: Tensor, gradient: Tensor, held: dict[str, Tensor], step: Tensor, rate: Any
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """One parameter after the step, and what is kept for it."""


def tensor_leaves(tree: Any) -> tuple[list[Any], Structure]:
    """The leaves of a container, arrays as tensors, and its structure."""
    leaves, structure = flatten(tree)
    return [asarray(x) if isinstance(x, np.ndarray) else x for x in leaves], structure


def _fitting(name: str, gradient: Any, param: Tensor) -> Tensor:
    """A gradient in the dtype of its parameter. It must have the shape: what only broadcasts to it
    would change the parameter's."""
    if not isinstance(gradient, Tensor):
        raise UserError(f"[update] the gradient of {name} is {a_type(gradient)}, not a tensor")
    if gradient.shape != param.shape:
        raise SpecViolation(
            "ShapeMismatch",
            f"[update] the gradient of {name} is {gradient.type}, but that is {param.type}",
            "give the gradient that weft.grad takes of these parameters",
        )
    return gradient if gradient.dtype == param.dtype else gradient.astype(param.dtype)


def _chosen(leaves: Sequence[Any], structure: Structure) -> list[int]:
    """The positions of the leaves that an optimiser changes."""
    marked = zip(leaves, learnt(structure), strict=True)
    return [index for index, (leaf, own) in enumerate(marked) if own and trainable(leaf)]


def trainable(leaf: Any) -> bool:
    """Whether a leaf can be learnt: it is a tensor of floats."""
    return isinstance(leaf, Tensor) and leaf.dtype.is_float


def like(value: Any, model: Tensor) -> Any:
    """A number that was computed in f32, in the dtype of a parameter."""
    return value.astype(model.dtype) if isinstance(value, Tensor) else value
