"""Dropout as a function of a key: the same seed and offset give the same numbers on every backend,
however a program is split into kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from weft.foundation.dtypes import F32, FLOATS, SI64
from weft.ops.array.creation import asarray
from weft.ops.array.manipulation import concat, reshape
from weft.ops.functional.capture import capture
from weft.ops.functional.checks import Checked, ensure_dtype, ensure_tensor, wrong_value
from weft.ops.functional.registry import functional
from weft.ops.session import Handle, Session
from weft.ops.tensor import Tensor


@dataclass(frozen=True)
class DropoutChecked(Checked):
    """The share of elements that are dropped."""

    rate: float


def check_dropout(x: Any, rate: Any) -> DropoutChecked:
    ensure_dtype("x", ensure_tensor("x", x), FLOATS, "floats")
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate <= 1:
        raise wrong_value("rate", rate, "it must be a number from 0 to 1")
    return DropoutChecked(float(rate))


def capture_dropout(s: Session, checked: DropoutChecked, x: Handle, state: Handle) -> Handle:
    draws = s.emit("philox_uniform", state, shape=x.shape, dtype=F32)
    kept = draws.compare("greater_equal", checked.rate)
    scale = 1.0 / (1.0 - checked.rate) if checked.rate < 1 else 0.0
    return s.select(kept, x * scale, s.full(0.0, x.dtype, x.shape))


@functional
def dropout(
    x: Tensor, rate: float = 0.5, *, seed: Any, offset: Any = 0, training: bool = True
) -> Tensor:
    """Each element set to 0 with probability `rate`, the others divided by `1 - rate`.

    Seed and offset, numbers or integer scalars, determine which elements: give every use in a model
    its own offset, and every step its own seed."""
    checked = check_dropout(x, rate)
    if not training or checked.rate == 0:
        return ensure_tensor("x", x)
    return capture(capture_dropout, checked, ensure_tensor("x", x), random_state(seed, offset))


def random_state(seed: Any, offset: Any) -> Tensor:
    """The pair (seed, offset) as a tensor."""
    parts = [reshape(asarray(part, dtype=SI64), (1,)) for part in (seed, offset)]
    return concat(parts)
