"""How hard the compiler looks for what becomes one kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from weft.foundation.errors import UserError

DEFAULT_LEVEL: Final = 2
EXACT_LEVEL: Final = 3
LEVELS: Final[Mapping[int, str]] = {
    0: "nothing is fused",
    DEFAULT_LEVEL: "greedy",
    EXACT_LEVEL: "exact, window by window",
}


def check_level(level: int) -> None:
    """Refuse what is no level."""
    if type(level) is not int or level not in LEVELS:
        known = ", ".join(f"{number} ({what})" for number, what in LEVELS.items())
        raise UserError(f"there is no optimisation level {level!r}; the levels are {known}")
