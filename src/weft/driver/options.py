"""Options by name: one that a function does not have is told, with those whose names are near."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import wraps
from typing import ParamSpec, TypeVar

from weft.foundation.errors import WrongArguments

P = ParamSpec("P")
R = TypeVar("R")


def options_told(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """For a function that users know by `name`: a call with an option that it does not have is a
    sentence with the options it has."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        known = list(inspect.signature(function).parameters)

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            strange = next((option for option in kwargs if option not in known), None)
            if strange is not None:
                raise _unknown_option(name, strange, known)
            return function(*args, **kwargs)

        return call

    return decorate


def _unknown_option(name: str, option: str, known: Sequence[str]) -> WrongArguments:
    near = get_close_matches(option, known, 1, 0.5)
    hint = f", but {near[0]}" if near else ""
    why = f"{name} has no option {option!r}{hint}; it takes {', '.join(known)}"
    return WrongArguments(why, "WrongArguments")
