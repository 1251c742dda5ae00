"""Random numbers without keys: one seed for the process, and a count of what was drawn.

A traced function runs once and its program many times, so what is drawn here inside one would be
the same in every call: it is refused, with the way out.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from weft.foundation.errors import UserError
from weft.ops.calls import public
from weft.ops.graph.context import current
from weft.ops.random.continuous import normal
from weft.ops.random.keys import from_words
from weft.ops.random.uniform import uniform
from weft.ops.tensor import Tensor

_lock = threading.Lock()


class _Default:
    """The seed in force, how many keys it has given, and a generator for first values."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.drawn = 0
        self.generator = np.random.default_rng(seed)


_default = _Default(0)


@public
def seed(number: int) -> None:
    """Start the random numbers of `rand`, `randn` and of the first values of layers again."""
    start(number)


def start(number: int) -> None:
    """The same for whoever has another name for it, which errors then have."""
    global _default  # noqa: PLW0603
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 1 << 64:
        raise UserError(f"seed is {number!r}; it must be a whole number from 0, of 64 bits")
    _default = _Default(number)


def generator() -> np.random.Generator:
    """What first values of layers are drawn from."""
    return _default.generator


def _next_key() -> Tensor:
    """A key that was not given before. The key of the seed itself is the user's."""
    if current().tracing:
        raise UserError(
            "random numbers without a key are drawn in a traced function, where every call would "
            "see the same ones; take a key as an argument, draw with weft.random.uniform(key, "
            "shape) or weft.random.normal(key, shape), and pass another key in every call",
            "HiddenRandomState",
        )
    with _lock:
        _default.drawn += 1
        return from_words(_default.seed, _default.drawn)


def _shape_from_arguments(shape: tuple[Any, ...]) -> Any:
    return shape[0] if len(shape) == 1 and isinstance(shape[0], list | tuple) else shape


@public
def rand(*shape: Any, dtype: Any = None) -> Tensor:
    """Floats in [0, 1), equally likely, of the seed in force: `rand(2, 3)` or `rand((2, 3))`."""
    return uniform(_next_key(), _shape_from_arguments(shape), dtype)


@public
def randn(*shape: Any, dtype: Any = None) -> Tensor:
    """Standard normal floats of the seed in force: `randn(2, 3)` or `randn((2, 3))`."""
    return normal(_next_key(), _shape_from_arguments(shape), dtype)
