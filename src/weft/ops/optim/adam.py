"""Adam, and AdamW with its decoupled weight decay."""

from __future__ import annotations

from typing import Any

from weft.foundation.errors import UserError
from weft.ops.array.elementwise import sqrt
from weft.ops.calls import public
from weft.ops.optim.optimiser import Optimiser, like
from weft.ops.optim.schedules import Schedule
from weft.ops.optim.settings import number
from weft.ops.tensor import Tensor


class Adam(Optimiser):
    """Steps of the mean gradient over the root of the mean square, both corrected for their start
    at 0. `weight_decay` is added to the gradient."""

    slots = ("mean", "square")

    @public
    def __init__(
        self,
        rate: float | Schedule = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(rate)
        name = type(self).__name__
        if not isinstance(betas, list | tuple) or len(betas) != 2:
            raise UserError(f"[{name}] betas is {betas!r}; it must be a pair of numbers")
        first, second = (number(name, "each of betas", beta, below=1.0) for beta in betas)
        self.betas = (first, second)
        self.eps = number(name, "eps", eps)
        self.weight_decay = number(name, "weight_decay", weight_decay)

    def step(
        self, param: Tensor, gradient: Tensor, held: dict[str, Tensor], step: Tensor, rate: Any
    ) -> tuple[Tensor, dict[str, Tensor]]:
        slope = gradient + param * self.weight_decay if self.weight_decay else gradient
        way, kept = self._way(param, slope, held, step)
        return param - way * like(rate, param), kept

    def _way(
        self, param: Tensor, slope: Tensor, held: dict[str, Tensor], step: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        first, second = self.betas
        mean = held["mean"] * first + slope * (1.0 - first)
        square = held["square"] * second + slope * slope * (1.0 - second)
        # Correct for moments that begin at 0; powers of a number by a traced step.
        corrected = mean / like(1.0 - first ** (step + 1.0), param)
        spread = sqrt(square / like(1.0 - second ** (step + 1.0), param)) + self.eps
        return corrected / spread, {"mean": mean, "square": square}


class AdamW(Adam):
    """Adam whose weight decay shrinks the parameters themselves, `rate * weight_decay` a step."""

    @public
    def __init__(
        self,
        rate: float | Schedule = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(rate, betas, eps, weight_decay)

    def step(
        self, param: Tensor, gradient: Tensor, held: dict[str, Tensor], step: Tensor, rate: Any
    ) -> tuple[Tensor, dict[str, Tensor]]:
        way, kept = self._way(param, gradient, held, step)
        pull = way + param * self.weight_decay if self.weight_decay else way
        return param - pull * like(rate, param), kept
