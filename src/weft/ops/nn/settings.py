"""Checks of the settings that layers are made with."""

from __future__ import annotations

from typing import Any

from weft.foundation.errors import UserError, a_type


def is_positive_whole(value: Any) -> bool:
    """Whether it is a whole number over 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def divides(part: Any, total: Any) -> bool:
    """Whether both are whole numbers over 0, and the first divides the second."""
    return is_positive_whole(part) and is_positive_whole(total) and total % part == 0


def check_callable(owner: str, name: str, value: Any, more: str = "") -> None:
    """Say so where a function is wanted and something else is given."""
    if not callable(value):
        raise UserError(
            f"[{owner}] {name} is {a_type(value)}; it must be a module or a function{more}"
        )


def hashable(value: Any) -> Any:
    """A setting with tuples in the place of lists: settings are part of a module's structure."""
    return tuple(map(hashable, value)) if isinstance(value, list | tuple) else value
