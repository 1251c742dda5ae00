"""Learning rates as functions of the step, a number or a traced scalar. They are functions of this
module with their settings filled in: an optimiser can be pickled with its schedule."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeAlias

from weft.foundation.errors import UserError
from weft.ops.array.creation import asarray
from weft.ops.array.elementwise import cos, maximum, minimum
from weft.ops.array.searching import where
from weft.ops.calls import public
from weft.ops.optim.settings import count, number
from weft.ops.tensor import Tensor

Schedule: TypeAlias = Callable[[Any], Any]
"""From the step (a number or an f32 scalar, 0 for the first) to the learning rate."""


def as_schedule(rate: float | Schedule) -> Schedule:
    """A schedule as it is; a number as one that never changes."""
    if callable(rate):
        return rate
    plain = isinstance(rate, int | float) and not isinstance(rate, bool)
    if not plain or not 0 <= rate < math.inf:
        raise UserError(f"a learning rate is a number, 0 or more, or a schedule, not {rate!r}")
    return constant(float(rate))


@public
def constant(rate: float) -> Schedule:
    """The same rate at every step."""
    number("constant", "rate", rate)
    return partial(_constant, rate=rate)


@public
def warmup(rate: float | Schedule, steps: int) -> Schedule:
    """From 0 up to a rate, linearly over the first steps; then that rate, or the schedule it is."""
    count("warmup", "steps", steps, 0)
    return partial(_warmup, after=as_schedule(rate), steps=steps)


@public
def cosine(rate: float, steps: int, end: float = 0.0) -> Schedule:
    """From a rate down to the end along half a cosine."""
    number("cosine", "rate", rate)
    number("cosine", "end", end)
    count("cosine", "steps", steps, 1)
    return partial(_cosine, rate=rate, steps=steps, end=end)


@public
def step_decay(rate: float, boundaries: Sequence[int], factor: float = 0.1) -> Schedule:
    """The rate times `factor` once for every boundary that the step has reached."""
    number("step_decay", "rate", rate)
    number("step_decay", "factor", factor)
    if not isinstance(boundaries, Iterable):
        raise UserError(f"[step_decay] boundaries is {boundaries!r}; it must be a list of steps")
    reached = tuple(count("step_decay", "a boundary", boundary, 0) for boundary in boundaries)
    return partial(_step_decay, rate=rate, boundaries=reached, factor=factor)


# -- the rate at a step ----------------------------------------------------------------------------


def _constant(step: Any, rate: float) -> Any:
    return rate


def _warmup(step: Any, after: Schedule, steps: int) -> Any:
    at = _as_tensor(step)
    return minimum((at + 1.0) / max(steps, 1), 1.0) * after(maximum(at - steps, 0.0))


def _cosine(step: Any, rate: float, steps: int, end: float) -> Any:
    done = minimum(_as_tensor(step) / steps, 1.0)
    return end + (rate - end) * 0.5 * (1.0 + cos(done * math.pi))


def _step_decay(step: Any, rate: float, boundaries: Sequence[int], factor: float) -> Any:
    at = _as_tensor(step)
    current: Any = at * 0.0 + rate
    for boundary in boundaries:
        current = where(at >= float(boundary), current * factor, current)
    return current


def _as_tensor(step: Any) -> Tensor:
    return step if isinstance(step, Tensor) else asarray(step, dtype="f32")
