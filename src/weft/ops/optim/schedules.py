"""Learning rates as functions of the step, a number or a traced scalar. They are functions of this
module with their settings filled in: an optimiser can be pickled with its schedule."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

from weft.foundation.errors import UserError, a_type
from weft.ops.array.creation import asarray
from weft.ops.array.elementwise import cos, maximum, minimum
from weft.ops.array.searching import where
from weft.ops.calls import public
from weft.ops.optim.settings import count, number
from weft.ops.state import Holder
from weft.ops.tensor import Tensor

Schedule: TypeAlias = Callable[[Any], Any]
"""From the step (a number or an f32 scalar, 0 for the first) to the learning rate."""


def as_schedule(rate: float | Schedule) -> Schedule:
    """A schedule as it is; a number as one that never changes."""
    if callable(rate) and not isinstance(rate, Holder):
        return rate
    plain = isinstance(rate, int | float) and not isinstance(rate, bool)
    if not plain or not 0 <= rate < math.inf:
        what = repr(rate)
        if isinstance(rate, list | tuple | dict | Iterator | Holder | Tensor):
            what = f"{a_type(rate)}; what is learnt is given to the optimiser's init"
        raise UserError(f"a learning rate is a number, 0 or more, or a schedule, not {what}")
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


@public
def linear(rate: float, steps: int, end: float = 0.0) -> Schedule:
    """From a rate to the end along a straight line."""
    number("linear", "rate", rate)
    number("linear", "end", end)
    count("linear", "steps", steps, 1)
    return partial(_linear, rate=rate, steps=steps, end=end)


@public
def exponential(rate: float, factor: float, steps: int = 1) -> Schedule:
    """The rate times `factor` every `steps` steps, and smoothly in between."""
    number("exponential", "rate", rate)
    number("exponential", "factor", factor)
    count("exponential", "steps", steps, 1)
    return partial(_exponential, rate=rate, factor=factor, steps=steps)


@public
def warmup_cosine(rate: float, steps: int, warm: int, end: float = 0.0) -> Schedule:
    """From 0 up to a rate over the first `warm` of `steps` steps, then down to the end along half a
    cosine."""
    count("warmup_cosine", "warm", warm, 0)
    count("warmup_cosine", "steps", steps, warm + 1)
    return warmup(cosine(rate, steps - warm, end), warm)


@public
def one_cycle(
    rate: float, steps: int, warm: float = 0.3, start: float = 25.0, end: float = 1e4
) -> Schedule:
    """Up to a rate over the part `warm` of the steps, from `rate / start`, and down again to the
    `end`-th part of that beginning, both along half a cosine."""
    number("one_cycle", "rate", rate)
    count("one_cycle", "steps", steps, 2)
    number("one_cycle", "warm", warm, below=1.0)
    for name, value in (("start", start), ("end", end)):
        number("one_cycle", name, value, 1.0)
    return partial(
        _one_cycle, rate=rate, steps=steps, top=max(warm * steps - 1.0, 0.0), first=rate / start,
        last=rate / start / end,
    )  # fmt: skip


@public
def joined(schedules: Sequence[float | Schedule], boundaries: Sequence[int]) -> Schedule:
    """One schedule after the other: the next begins, with its step 0, where a boundary is
    reached."""
    parts = tuple(as_schedule(each) for each in schedules)
    ends = tuple(count("joined", "a boundary", boundary, 0) for boundary in boundaries)
    if len(parts) != len(ends) + 1 or list(ends) != sorted(set(ends)):
        raise UserError(
            f"[joined] {len(parts)} schedules have {len(parts) - 1} boundaries between them, each "
            f"after the one before, not {list(boundaries)}"
        )
    return partial(_join_schedules, parts=parts, ends=ends)


# -- the rate at a step ----------------------------------------------------------------------------


def _constant(step: Any, rate: float) -> Any:
    return rate


def _warmup(step: Any, after: Schedule, steps: int) -> Any:
    at = _as_tensor(step)
    return minimum((at + 1.0) / max(steps, 1), 1.0) * after(maximum(at - steps, 0.0))


def _cosine(step: Any, rate: float, steps: int, end: float) -> Any:
    done = minimum(_as_tensor(step) / steps, 1.0)
    return end + (rate - end) * 0.5 * (1.0 + cos(done * math.pi))


def _linear(step: Any, rate: float, steps: int, end: float) -> Any:
    return rate + (end - rate) * minimum(_as_tensor(step) / steps, 1.0)


def _exponential(step: Any, rate: float, factor: float, steps: int) -> Any:
    return rate * factor ** (_as_tensor(step) / steps)


def _one_cycle(step: Any, rate: float, steps: int, top: float, first: float, last: float) -> Any:
    at = _as_tensor(step)
    up = minimum(at / max(top, 1e-9), 1.0)
    down = minimum(maximum(at - top, 0.0) / (steps - 1.0 - top), 1.0)
    rising = rate + (first - rate) * 0.5 * (1.0 + cos(up * math.pi))
    falling = last + (rate - last) * 0.5 * (1.0 + cos(down * math.pi))
    return where(at <= top, rising, falling) if top > 0 else falling


def _join_schedules(step: Any, parts: Sequence[Schedule], ends: Sequence[int]) -> Any:
    at = _as_tensor(step)
    current: Any = at * 0.0 + parts[0](at)
    for end, part in zip(ends, parts[1:], strict=True):
        current = where(at >= float(end), part(maximum(at - float(end), 0.0)), current)
    return current


def _step_decay(step: Any, rate: float, boundaries: Sequence[int], factor: float) -> Any:
    at = _as_tensor(step)
    current: Any = at * 0.0 + rate
    for boundary in boundaries:
        current = where(at >= float(boundary), current * factor, current)
    return current


def _as_tensor(step: Any) -> Tensor:
    return step if isinstance(step, Tensor) else asarray(step, dtype="f32")
