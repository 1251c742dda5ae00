"""Loss scaling for f16, whose smallest numbers are too large for many gradients.

    scaling = optim.LossScale()
    scale = scaling.init()
    loss, slopes = weft.value_and_grad(lambda m: scaling.scaled(loss_of(m), scale))(model)
    model, state, scale = scaling.update(optimiser, slopes, state, model, scale)

The loss is multiplied by a factor before its gradient is taken, and the gradient divided by it
after. The factor is as large as it can be: it grows after some good steps, and where a gradient is
not finite it shrinks and the step is left out. bf16 has the range of f32 and needs none of this.
"""

from __future__ import annotations

from typing import Any, TypeVar

from weft.foundation.errors import UserError
from weft.ops.array.creation import asarray
from weft.ops.array.elementwise import isfinite, logical_and
from weft.ops.array.searching import where
from weft.ops.array.utility import all as every
from weft.ops.calls import public
from weft.ops.optim.optimiser import Optimiser, trainable
from weft.ops.optim.settings import count, number
from weft.ops.pytree import flatten, map_leaves
from weft.ops.tensor import Tensor

P = TypeVar("P")
State = dict[str, Tensor]
"""`scale`, and how many `good` steps there were since it changed; f32 scalars."""


class LossScale:
    """A factor that follows the range of the gradients. `growth` after `interval` good steps,
    `backoff` after a bad one, between 1 and `largest`."""

    @public
    def __init__(
        self,
        initial: float = 2.0**15,
        *,
        growth: float = 2.0,
        backoff: float = 0.5,
        interval: int = 2_000,
        largest: float = 2.0**24,
    ) -> None:
        owner = type(self).__name__
        number(owner, "initial", initial, 1.0)
        number(owner, "largest", largest, 1.0)
        count(owner, "interval", interval, 1)
        if number(owner, "growth", growth) <= 1:
            raise UserError(f"[{owner}] growth is {growth!r}; it must be a number over 1")
        if not 0 < number(owner, "backoff", backoff) < 1:
            raise UserError(f"[{owner}] backoff is {backoff!r}; it must be between 0 and 1")
        self.initial, self.growth, self.backoff = initial, growth, backoff
        self.interval, self.largest = interval, largest

    @public
    def init(self) -> State:
        """The state before the first step."""
        return {
            "scale": asarray(self.initial, dtype="f32"), "good": asarray(0.0, dtype="f32")
        }  # fmt: skip

    @public
    def scaled(self, loss: Tensor, state: State) -> Tensor:
        """The loss whose gradient is to be taken, in f32."""
        _check_state("scaled", state)
        return loss.astype("f32") * state["scale"]

    @public
    def unscaled(self, gradients: P, state: State) -> tuple[P, Tensor]:
        """The gradients of the loss itself, and whether all of them are finite."""
        _check_state("unscaled", state)
        factor = 1.0 / state["scale"]
        finite: Tensor = isfinite(factor)
        for leaf in flatten(gradients)[0]:
            if trainable(leaf):
                finite = logical_and(finite, every(isfinite(leaf)))
        made: P = map_leaves(lambda x: x * factor.astype(x.dtype) if trainable(x) else x, gradients)
        return made, finite

    @public
    def after(self, finite: Tensor, state: State) -> State:
        """The state after a step whose gradients were finite or not."""
        scale, good = state["scale"], state["good"] + 1.0
        due = good >= float(self.interval)
        grown = where(due & (scale * self.growth <= self.largest), scale * self.growth, scale)
        shrunk = where(scale * self.backoff >= 1.0, scale * self.backoff, scale)
        return {
            "scale": where(finite, grown, shrunk),
            "good": where(logical_and(finite, ~due), good, good * 0.0),
        }

    @public
    def update(
        self, optimiser: Optimiser, gradients: Any, state: dict[str, Any], params: P, scale: State
    ) -> tuple[P, dict[str, Any], State]:
        """One step of the optimiser by gradients of the scaled loss, or none where they are not
        finite: parameters, the optimiser's state, and the scale after it."""
        _check_state("update", scale)
        slopes, finite = self.unscaled(gradients, scale)
        moved = optimiser.update(slopes, state, params)

        def chosen(new: Any, old: Any) -> Any:
            return where(finite, new, old) if isinstance(new, Tensor) else new

        params, state = map_leaves(chosen, moved, (params, state))
        return params, state, self.after(finite, scale)


def _check_state(name: str, state: Any) -> None:
    """Say so where a state is not one that `init` or `update` made."""
    if not isinstance(state, dict) or not {"scale", "good"} <= state.keys():
        found = ", ".join(map(str, state)) if isinstance(state, dict) else type(state).__name__
        raise UserError(
            f"[LossScale.{name}] the state of a loss scale has scale, good, but this is "
            f"{found or 'empty'}; begin with init()"
        )
