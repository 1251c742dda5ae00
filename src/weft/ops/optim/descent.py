"""Stochastic gradient descent."""

from __future__ import annotations

from typing import Any

from weft.foundation.errors import UserError
from weft.ops.calls import public
from weft.ops.optim.optimiser import ByParameter
from weft.ops.optim.schedules import Schedule
from weft.ops.optim.settings import number
from weft.ops.tensor import Tensor


class SGD(ByParameter):
    """`p -= rate * v`, where v is the gradient, or with momentum `v = momentum * v + gradient`."""

    @public
    def __init__(
        self,
        rate: float | Schedule,
        momentum: float = 0.0,
        *,
        nesterov: bool = False,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(rate)
        self.momentum = number("SGD", "momentum", momentum, below=1.0)
        if nesterov and not momentum:
            raise UserError("[SGD] nesterov looks ahead along the momentum, which is 0; give one")
        self.nesterov = nesterov
        self.weight_decay = number("SGD", "weight_decay", weight_decay)
        self.slots = ("velocity",) if momentum else ()

    def direction(
        self, param: Tensor, gradient: Tensor, held: dict[str, Any], step: Tensor
    ) -> tuple[Tensor, dict[str, Any]]:
        slope = gradient + param * self.weight_decay if self.weight_decay else gradient
        if not self.momentum:
            return slope, {}
        velocity = held["velocity"] * self.momentum + slope
        way = slope + velocity * self.momentum if self.nesterov else velocity
        return way, {"velocity": velocity}
