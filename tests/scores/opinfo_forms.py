"""What the tables of equivalents are written in. The names and the order of arguments are torch's;
an axis of a scalar may be 0 or -1 there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import weft
from weft import functional

F: Any = functional
w: Any = weft
OPS: dict[str, Callable[..., Any]] = {}
"""The equivalent of every op that has one."""


def op(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The equivalent of these ops."""

    def keep(function: Callable[..., Any]) -> Callable[..., Any]:
        for name in names or (function.__name__.rstrip("_"),):
            OPS[name] = function
        return function

    return keep


def tupled(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def along(function: Callable[..., Any], x: Any, axis: Any, keeps: bool = False, **more: Any) -> Any:
    """A function along an axis, which a scalar has too."""
    if x.ndim or axis not in (0, -1, (0,), (-1,)):
        return function(x, axis=tupled(axis), **more)
    found = function(w.reshape(x, (1,)), axis=0, **more)
    if not (keeps or more.get("keepdims")):
        return found
    if isinstance(found, tuple):
        return tuple(w.reshape(each, ()) for each in found)
    return w.reshape(found, ())


def sizes(shape: Sequence[Any]) -> tuple[int, ...]:
    return (
        tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], tuple | list) else tuple(shape)
    )


def part(x: Any, dim: int, start: int, stop: Any) -> Any:
    return x[tuple(slice(start, stop) if a == dim % x.ndim else slice(None) for a in range(x.ndim))]


def padded(x: Any, pad: Sequence[int], value: Any = 0, mode: str = "constant") -> Any:
    around = list(zip(pad[::2], pad[1::2], strict=True))[::-1]
    names = {"replicate": "edge", "circular": "wrap"}
    widths = [(0, 0)] * (x.ndim - len(around)) + around
    return F.pad(x, widths, names.get(mode, mode), value)
