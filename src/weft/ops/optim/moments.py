"""Adam, and what grew out of it: AdamW, LAMB, Lion."""

from __future__ import annotations

from typing import Any

from weft.ops.array.elementwise import sign, sqrt
from weft.ops.array.searching import where
from weft.ops.array.statistics import sum as total
from weft.ops.calls import public
from weft.ops.optim.optimiser import ByParameter, like
from weft.ops.optim.schedules import Schedule
from weft.ops.optim.settings import number, pair
from weft.ops.tensor import Tensor


class Adam(ByParameter):
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
        self.betas = pair(name, "betas", betas)
        self.eps = number(name, "eps", eps)
        self.weight_decay = number(name, "weight_decay", weight_decay)

    def direction(
        self, param: Tensor, gradient: Tensor, held: dict[str, Any], step: Tensor
    ) -> tuple[Tensor, dict[str, Any]]:
        slope = gradient + param * self.weight_decay if self.weight_decay else gradient
        return self._way(param, slope, held, step)

    def _way(
        self, param: Tensor, slope: Tensor, held: dict[str, Any], step: Tensor
    ) -> tuple[Tensor, dict[str, Any]]:
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

    def direction(
        self, param: Tensor, gradient: Tensor, held: dict[str, Any], step: Tensor
    ) -> tuple[Tensor, dict[str, Any]]:
        way, kept = self._way(param, gradient, held, step)
        return way + param * self.weight_decay if self.weight_decay else way, kept


class LAMB(AdamW):
    """AdamW whose step of each parameter is as long as the parameter, times the rate: for very
    large batches."""

    elementwise = False

    @public
    def __init__(
        self,
        rate: float | Schedule = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(rate, betas, eps, weight_decay)

    def direction(
        self, param: Tensor, gradient: Tensor, held: dict[str, Any], step: Tensor
    ) -> tuple[Tensor, dict[str, Any]]:
        way, kept = super().direction(param, gradient, held, step)
        own, long = (sqrt(total(x * x)) for x in (param.astype("f32"), way.astype("f32")))
        trust = where((own > 0) & (long > 0), own / where(long > 0, long, 1.0), 1.0)
        return way * like(trust, way), kept


class Lion(ByParameter):
    """Steps by the sign of a mean between gradient and momentum; the weight decay shrinks the
    parameters themselves."""

    slots = ("mean",)

    @public
    def __init__(
        self,
        rate: float | Schedule = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(rate)
        self.betas = pair("Lion", "betas", betas)
        self.weight_decay = number("Lion", "weight_decay", weight_decay)

    def direction(
        self, param: Tensor, gradient: Tensor, held: dict[str, Any], step: Tensor
    ) -> tuple[Tensor, dict[str, Any]]:
        first, second = self.betas
        way = sign(held["mean"] * first + gradient * (1.0 - first))
        kept = held["mean"] * second + gradient * (1.0 - second)
        return way + param * self.weight_decay if self.weight_decay else way, {"mean": kept}
