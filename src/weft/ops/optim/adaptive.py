"""Optimisers that divide by the size of earlier gradients: RMSprop, Adagrad, Adafactor."""

from __future__ import annotations

from functools import partial
from typing import Any

from weft.ops.array.creation import asarray, full_like, zeros
from weft.ops.array.data_types import finfo
from weft.ops.array.elementwise import maximum, minimum, sqrt
from weft.ops.array.statistics import mean
from weft.ops.calls import public
from weft.ops.optim.optimiser import ByParameter, like
from weft.ops.optim.schedules import Schedule, as_schedule
from weft.ops.optim.settings import number
from weft.ops.tensor import Tensor


class RMSprop(ByParameter):
    """Steps of the gradient over the root of its mean square; `centred` takes the square of the
    mean off it, `momentum` adds up steps."""

    @public
    def __init__(
        self,
        rate: float | Schedule = 1e-2,
        decay: float = 0.99,
        eps: float = 1e-8,
        *,
        momentum: float = 0.0,
        centred: bool = False,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(rate)
        self.decay = number("RMSprop", "decay", decay, below=1.0)
        self.eps = number("RMSprop", "eps", eps)
        self.momentum = number("RMSprop", "momentum", momentum, below=1.0)
        self.weight_decay = number("RMSprop", "weight_decay", weight_decay)
        self.centred = centred
        self.slots = ("square", *(["mean"] if centred else []), *(["velocity"] if momentum else []))

    def direction(
        self, param: Tensor, gradient: Tensor, held: dict[str, Any], step: Tensor
    ) -> tuple[Tensor, dict[str, Any]]:
        slope = gradient + param * self.weight_decay if self.weight_decay else gradient
        kept = {"square": held["square"] * self.decay + slope * slope * (1.0 - self.decay)}
        spread = kept["square"]
        if self.centred:
            kept["mean"] = held["mean"] * self.decay + slope * (1.0 - self.decay)
            spread = spread - kept["mean"] * kept["mean"]
        way = slope / (sqrt(spread) + self.eps)
        if self.momentum:
            way = kept["velocity"] = held["velocity"] * self.momentum + way
        return way, kept


class Adagrad(ByParameter):
    """Steps of the gradient over the root of the sum of all squares so far, which begins with
    `initial`; the rate falls as `1 / (1 + rate_decay * step)`."""

    slots = ("square",)

    @public
    def __init__(
        self,
        rate: float | Schedule = 1e-2,
        eps: float = 1e-10,
        *,
        initial: float = 0.0,
        rate_decay: float = 0.0,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(rate)
        self.eps = number("Adagrad", "eps", eps)
        self.initial = number("Adagrad", "initial", initial)
        self.rate_decay = number("Adagrad", "rate_decay", rate_decay)
        self.weight_decay = number("Adagrad", "weight_decay", weight_decay)

    def first(self, slot: str, param: Tensor) -> Any:
        return full_like(param, self.initial)

    def direction(
        self, param: Tensor, gradient: Tensor, held: dict[str, Any], step: Tensor
    ) -> tuple[Tensor, dict[str, Any]]:
        slope = gradient + param * self.weight_decay if self.weight_decay else gradient
        square = held["square"] + slope * slope
        way = slope / (sqrt(square) + self.eps)
        if self.rate_decay:
            way = way / like(1.0 + step * self.rate_decay, way)
        return way, {"square": square}


class Adafactor(ByParameter):
    """Steps of the gradient over the root of the mean square, of which a matrix keeps the means of
    rows and columns only. A step is as long as the parameter, times the rate, and shortened where
    its own mean square is over `clip`. The rate of step t is at most `1 / sqrt(t)`."""

    elementwise = False

    slots = ("square",)

    @public
    def __init__(
        self,
        rate: float | Schedule = 1e-2,
        *,
        decay: float = 0.8,
        eps: float | None = None,
        least: float = 1e-3,
        clip: float = 1.0,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(partial(_bound_by_root, after=as_schedule(rate)))
        self.decay = number("Adafactor", "decay", decay)
        self.eps = None if eps is None else number("Adafactor", "eps", eps)
        self.least = number("Adafactor", "least", least)
        self.clip = number("Adafactor", "clip", clip, 1e-3)
        self.weight_decay = number("Adafactor", "weight_decay", weight_decay)

    def first(self, slot: str, param: Tensor) -> Any:
        """The mean squares of rows and of columns of a matrix; those of all elements of others."""
        if param.ndim < 2:
            return zeros(param.shape, dtype=param.dtype)
        rows, columns = (*param.shape[:-1], 1), (*param.shape[:-2], 1, param.shape[-1])
        return tuple(zeros(shape, dtype=param.dtype) for shape in (rows, columns))

    def direction(
        self, param: Tensor, gradient: Tensor, held: dict[str, Any], step: Tensor
    ) -> tuple[Tensor, dict[str, Any]]:
        tiny = finfo(param.dtype).eps if self.eps is None else self.eps
        weight = like((step + 1.0) ** -self.decay, param)
        square = gradient * gradient
        if param.ndim < 2:
            kept: Any = held["square"] + (square - held["square"]) * weight
            spread = kept
        else:
            means = (mean(square, axis=-1, keepdims=True), mean(square, axis=-2, keepdims=True))
            pairs = zip(held["square"], means, strict=True)
            rows, columns = kept = tuple(old + (new - old) * weight for old, new in pairs)
            whole = mean(rows, axis=-2, keepdims=True)
            spread = rows * columns / maximum(whole, tiny)
        way = gradient / sqrt(maximum(spread, tiny * tiny))
        shortened = way / maximum(_root_mean_square(way) / self.clip, 1.0)
        scaled = shortened * maximum(_root_mean_square(param), self.least)
        return scaled + param * self.weight_decay if self.weight_decay else scaled, {"square": kept}


def _bound_by_root(step: Any, after: Schedule) -> Any:
    at = step if isinstance(step, Tensor) else asarray(step, dtype="f32")
    return minimum(after(at), 1.0 / sqrt(at + 1.0))


def _root_mean_square(x: Tensor) -> Tensor:
    """The root of the mean square of a parameter."""
    return sqrt(mean(x * x))
