"""Memoisation with a limit on the number of answers, and one way to clear them all.

Whoever compiles one program after the other is not to keep something of every one: what is kept for
as long as the process lives has a bound here, and `weft.clear_caches` gives it back.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Final, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")
_FORGETTING: Final[list[Callable[[], None]]] = []


def memo(most: int, *, typed: bool = False) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Keep the answers of a function, those that were asked for last."""

    def keep(function: Callable[P, R]) -> Callable[P, R]:
        kept = lru_cache(most, typed)(function)
        forgettable(kept.cache_clear)
        return cast(Callable[P, R], kept)

    return keep


def forgettable(forgets: Callable[[], None]) -> None:
    """Name what empties a table of answers."""
    _FORGETTING.append(forgets)


def forget() -> None:
    """Drop every answer; each is worked out again when it is asked for."""
    # A table that is filled by another one's answers may be emptied in any order: nothing that is
    # kept is wrong.
    for forgets in list(_FORGETTING):
        forgets()
    # Python keeps up to 4,096 names under which attributes were found. NumPy makes those of its own
    # anew each time, so they end up between everything else, and keep its pages from becoming free.
    if hasattr(sys, "_clear_type_cache"):
        sys._clear_type_cache()
