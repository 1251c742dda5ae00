"""Hooks for tracing and profiling: called with what is compiled and what runs. Off, they cost one
comparison a program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from weft.driver.execute import Prepared
from weft.ptir.ir import Program
from weft.ptir.passes.log import PassLog


class Tracer(Protocol):
    """Somebody who watches."""

    def compiled(
        self, kind: str, source: Program, made: Prepared, log: PassLog, seconds: float
    ) -> None:
        """A program was compiled. `kind` says for whom: `eval`, `jit` or `arena`."""
        ...

    def execute(self, compiled: Prepared, inputs: Sequence[Any], seed: int) -> list[Any]:
        """Run a program and tell about it."""
        ...


class _Watch:
    """The tracer in force; None: nobody watches."""

    tracer: Tracer | None = None


WATCH = _Watch()


def execute(
    compiled: Prepared,
    inputs: Sequence[Any],
    seed: int = 0,
    holder: object = None,
    data: Sequence[int] = (),
) -> list[Any]:
    """Run a program, watched or not. While `holder` stays the same, so do all inputs but those at
    the positions `data`."""
    tracer = WATCH.tracer
    if tracer is None:
        return compiled.execute(inputs, seed=seed, holder=holder, data=data)
    return tracer.execute(compiled, inputs, seed)
