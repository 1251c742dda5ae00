"""Warnings about Python's or NumPy's random numbers in a traced function: they become constants of
the program and are the same in every call.
"""

from __future__ import annotations

import random
import sys
import threading
import warnings
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, Final, TypeAlias

import numpy as np

from weft.foundation.errors import WeftWarning
from weft.foundation.lines import place_of, user_line
from weft.ops.capture_paths import reached_by, settings_in
from weft.ops.pytree import Structure
from weft.ops.steps import written

_MOST_STEPS: Final = 1_000
"""How many things are looked at from a function: fewer than tracing it looks at."""
Source: TypeAlias = tuple[str, Callable[[], Any]]
"""A generator in words, and what changes with every number that it draws."""


class FrozenNumbers:
    """Around the trace of a function: a warning where it drew from a generator that is seen to have
    moved: of the process, one that the function reaches, or one that it made without a seed. One
    that is made with a seed draws the same numbers in every call, traced or not."""

    def __init__(self, function: Callable[..., Any], arguments: Structure) -> None:
        self.function = function
        self.sources = _number_sources(function, arguments)

    def __enter__(self) -> None:
        _SEEDS.watch()
        self.before = [state() for _, state in self.sources]

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        after = [state() for _, state in self.sources]
        _SEEDS.leave()
        pairs = zip(self.sources, self.before, after, strict=True)
        moved = dict.fromkeys(name for (name, _), old, new in pairs if old != new)
        if moved and kind is None:
            _warn(self.function, list(moved))


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


# -- generators that are there before ------------------------------------------------------------


def _number_sources(function: Any, arguments: Structure) -> list[Source]:
    """Where numbers may come from: the generators of the process, those that a function reaches
    from where it was written, and those that its arguments have as settings."""
    found: list[Source] = [("Python's random module", random.getstate)]
    found.append(("a generator without a seed", _SEEDS.taken))
    if "numpy.random" in sys.modules:
        found.append(("numpy.random", lambda: _comparable(np.random.get_state(legacy=False))))
    kinds: dict[type, None] = {}
    for value in settings_in(arguments, kinds):
        if _is_own(value):
            found.append(("a generator in its arguments", partial(_state, value)))
    for root in (function, *kinds):
        for way, value in reached_by(root, _MOST_STEPS):
            if _is_own(value):
                name = written(way)
                found.append((f"self{name}" if name[0] in ".[" else name, partial(_state, value)))
    return found


def _is_own(value: Any) -> bool:
    """Whether it is a generator, and not that of the process."""
    if isinstance(value, random.Random):
        return not isinstance(value, random.SystemRandom) and value is not random._inst
    if "numpy.random" not in sys.modules:
        return False
    return isinstance(value, np.random.Generator | np.random.RandomState)


def _state(generator: Any) -> Any:
    """What a generator will draw next."""
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.RandomState):
        return _comparable(generator.get_state(legacy=False))
    return _comparable(generator.bit_generator.state)


def _comparable(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _comparable(value) for key, value in state.items()}
    return state.tobytes() if isinstance(state, np.ndarray) else state


# -- generators that are made while a function is traced -----------------------------------------


class _Seeds:
    """How often a thread took a seed from the system. It counts only while something is traced.

    Generators cannot be watched, but one without a seed asks for it: NumPy's by way of `secrets`,
    which reads `random._urandom`, Python's by `Random.seed`."""

    def __init__(self) -> None:
        self.here = threading.local()
        self.lock = threading.Lock()
        self.watching = 0

    def taken(self) -> int:
        return getattr(self.here, "taken", 0)

    def watch(self) -> None:
        with self.lock:
            self.watching += 1
            if self.watching == 1:
                self.before = (getattr(random, "_urandom", None), random.Random.seed)
                _restore_sources(
                    self._noting_bytes(self.before[0]), self._noting_seed(self.before[1])
                )

    def leave(self) -> None:
        with self.lock:
            self.watching -= 1
            if not self.watching:
                _restore_sources(*self.before)

    def _noting_bytes(self, urandom: Any) -> Any:
        def noting(count: int) -> Any:
            self._note()
            return urandom(count)

        return noting

    def _noting_seed(self, seed: Any) -> Any:
        @wraps(seed)
        def noting(generator: random.Random, a: Any = None, *rest: Any, **named: Any) -> Any:
            if a is None:
                self._note()
            return seed(generator, a, *rest, **named)

        return noting

    def _note(self) -> None:
        frame = sys._getframe(2)
        while frame.f_back is not None and frame.f_globals.get("__name__") in _BETWEEN:
            frame = frame.f_back
        # Names of temporary files are random, and nobody computes with them.
        if frame.f_globals.get("__name__") != "tempfile":
            self.here.taken = self.taken() + 1


def _restore_sources(urandom: Any, seed: Any) -> None:
    if urandom is not None:
        random._urandom = urandom  # type: ignore[attr-defined]
    random.Random.seed = seed  # type: ignore[method-assign]


_BETWEEN: Final = frozenset({"random", "secrets"})
_SEEDS: Final = _Seeds()
