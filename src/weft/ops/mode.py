"""Training mode of layers, and the key that random layers draw from.

`nn.training(key)` opens a block. It is a fact of the place in the program where a layer is called,
as `autocast` is: no module holds it, and no call hands it on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Final

from weft.foundation.errors import UserError


@dataclass
class Mode:
    """What holds inside a block."""

    training: bool = False
    key: Any = None
    drawn: int = 0
    """How many keys were made of `key`."""
    withheld: str = ""
    """What is traced once and runs often: a key drawn in it would be the same every time."""


_in_force: Final[ContextVar[Mode | None]] = ContextVar("training", default=None)


def mode() -> Mode:
    """The mode in force; evaluation outside of every block."""
    return _in_force.get() or Mode()


@contextmanager
def within_mode(wanted: Mode) -> Iterator[None]:
    """The mode inside the `with` block."""
    token = _in_force.set(wanted)
    try:
        yield
    finally:
        _in_force.reset(token)


@contextmanager
def keys_withheld(name: str) -> Iterator[None]:
    """No key is drawn inside the block: what `name` traces once runs many times."""
    now = mode()
    with within_mode(replace(now, withheld=name) if now.key is not None else now):
        yield


def called_in_training(name: str) -> bool:
    """Whether a function under `jit` is called in training. A key would be part of its program."""
    now = _in_force.get()
    if now is None:
        return False
    if now.key is not None:
        raise UserError(
            f"nn.training(key) is around the call of {name}, which would draw from that key once "
            f"and for all; open it inside {name}, and give {name} the key as an argument",
            "KeyOutside",
        )
    return now.training
