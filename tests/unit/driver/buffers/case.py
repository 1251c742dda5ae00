"""A hand-written program with its exact buffer plan, and parts that such programs share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from weft.ptir import Builder, Program, Value
from weft.ptir.verify import verify

Build = Callable[[Any], Any]
"""Builds a program and answers its result or results."""


def program_of(build: Build) -> Program:
    b = Builder()
    results = build(b)
    program = b.build(*([results] if isinstance(results, Value) else results))
    verify(program)
    return program


@dataclass(frozen=True)
class Case:
    """A program and what its plan must be. Value ids count the parameters, then the ops."""

    name: str
    build: Build
    peak: int
    total: int | None = None
    shares: dict[int, int] = field(default_factory=dict)
    """value: the value whose buffer it lies in."""
    views: dict[int, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    """value: (offset in the buffer, strides)."""
    owns: tuple[int, ...] = ()
    """Values in the arena that no earlier value shares."""
    offsets: dict[int, int] = field(default_factory=dict)
    """value: offset of its buffer in the arena."""
    returned: tuple[tuple[int, int], ...] = ()
    constants: int = 0
    scratch: tuple[int, ...] = ()


def unit(b: Any, units: int = 1) -> Any:
    """A parameter of `units` * 64 bytes."""
    return b.param("f32", [16 * units])


def chain(b: Any, x: Value, length: int) -> Value:
    for _ in range(length):
        x = b.neg(x)
    return x


def full(b: Any, dims: Sequence[int]) -> Any:
    """A value in the arena."""
    return b.neg(b.param("f32", dims))
