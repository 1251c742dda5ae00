"""Checks of the numbers that optimisers and schedules are made with."""

from __future__ import annotations

import math
from typing import Any

from weft.foundation.errors import UserError


def number(owner: str, name: str, value: Any, low: float = 0.0, below: float = math.inf) -> float:
    """A finite number from `low` on that stays `below` a limit."""
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    if not plain or not math.isfinite(value) or not low <= value < below:
        end = f" and below {below:g}" if below < math.inf else ""
        raise UserError(
            f"[{owner}] {name} is {value!r}; it must be a number, at least {low:g}{end}"
        )
    return float(value)


def count(owner: str, name: str, value: Any, low: int) -> int:
    """A whole number from `low` on."""
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise UserError(f"[{owner}] {name} is {value!r}; it must be a whole number, at least {low}")
    return value


def pair(owner: str, name: str, value: Any) -> tuple[float, float]:
    """Two numbers from 0 to below 1."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise UserError(f"[{owner}] {name} is {value!r}; it must be a pair of numbers")
    first, second = (number(owner, f"each of {name}", each, below=1.0) for each in value)
    return first, second
