"""Numbers that Python's or NumPy's generators draw while a function is traced: they become part of
the program and are the same in every call. Whoever draws them is told."""

from __future__ import annotations

import inspect
import random
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from weft.foundation.errors import WeftWarning
from weft.foundation.lines import place_of, user_line

_PYTHON = "Python's random module"
_NUMPY = "numpy.random"


class FrozenNumbers:
    """Around the trace of a function: a warning where it drew from a generator that is seen to have
    moved, of the process or one that the function names."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.named = _generators(inspect.unwrap(function))
        self.before = _states(self.named)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        after = _states(self.named) if kind is None else self.before
        moved = [name for name, state in self.before.items() if after[name] != state]
        if moved:
            _warn(self.function, moved)


def _warn(function: Callable[..., Any], moved: list[str]) -> None:
    name = getattr(function, "__name__", "function")
    place = place_of(user_line())
    warnings.warn_explicit(
        f"[jit] {name} draws from {' and '.join(moved)} while it is traced, so the numbers are "
        "part of the compiled program and the same in every call; take a key as an argument and "
        "draw with weft.random, or pass what was drawn as an argument",
        WeftWarning,
        place.file if place else "weft",
        place.number if place else 1,
    )


def _states(named: dict[str, Any]) -> dict[str, Any]:
    """What each generator will draw next."""
    found: dict[str, Any] = {_PYTHON: random.getstate()}
    if "numpy.random" in sys.modules:
        found[_NUMPY] = _comparable(np.random.get_state(legacy=False))
    for name, generator in named.items():
        if isinstance(generator, random.Random):
            found[name] = generator.getstate()
        else:
            found[name] = _comparable(generator.bit_generator.state)
    return found


def _comparable(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _comparable(value) for key, value in state.items()}
    return state.tobytes() if isinstance(state, np.ndarray) else state


def _generators(function: Any) -> dict[str, Any]:
    """The generators that a function names: variables around it, and of its module."""
    code = getattr(function, "__code__", None)
    if code is None:
        return {}
    cells = zip(code.co_freevars, function.__closure__ or (), strict=False)
    reached = {name: _content(cell) for name, cell in cells}
    reached |= {name: function.__globals__.get(name) for name in code.co_names}
    kinds = (random.Random, np.random.Generator)
    return {name: value for name, value in reached.items() if isinstance(value, kinds)}


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None
