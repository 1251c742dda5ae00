"""The table from an op class to the function that adds such an op to a random program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from weft.ptir.op import Op
from weft.testing.generator import Generator

Generate: TypeAlias = Callable[[Generator], None]


@dataclass(frozen=True)
class Entry:
    """How an op is generated, and how often compared with others."""

    generate: Generate
    weight: int
    control_flow: bool
    needs: tuple[str, ...] = ()
    """Spellings without which it is hopeless."""


GENERATORS: dict[type[Op], Entry] = {}
IDIOMS: list[Entry] = []
"""Groups of ops that models are made of."""


def generates(
    *classes: type[Op], weight: int = 2, control_flow: bool = False
) -> Callable[[Generate], Generate]:
    """Declare that a function generates these ops. Authors of further ops use it too."""

    def decorate(function: Generate) -> Generate:
        for cls in classes:
            GENERATORS[cls] = Entry(function, weight, control_flow)
        return function

    return decorate


def idiom(weight: int, *needs: str) -> Callable[[Generate], Generate]:
    """Declare a function that adds several ops which belong together."""

    def decorate(function: Generate) -> Generate:
        IDIOMS.append(Entry(function, weight, control_flow=False, needs=needs))
        return function

    return decorate
