"""One line of the GPU benchmark: a computation as a Weft program and as torch functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from weft.foundation.dtypes import BY_NAME
from weft.ptir import Builder, Program


@dataclass(frozen=True)
class Tensor:
    """An input: normally distributed floats, or integers below a limit."""

    shape: tuple[int, ...]
    dtype: str
    below: int = 0
    scale: float = 1.0
    ends: bool = False
    """Whether its integers say where groups end that `below` rows were dealt into by chance."""

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * BY_NAME[self.dtype].storage_bytes


@dataclass(frozen=True)
class Line:
    """A measured computation. Functions of torch take the module first, so that programs can be
    built where torch is not installed."""

    family: str
    name: str
    dtype: str
    inputs: tuple[Tensor, ...]
    weft: Callable[..., Any]
    """From a builder and its parameters to the result, or to several."""
    torch: Callable[..., Any]
    """What eager torch does; compiled, another peer. On wider inputs, the reference."""
    library: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    """Further ways to do it: fused library calls."""
    flops: float = 0.0
    target: str = "sm90"
    random: bool = False
    """Whether results are drawn and cannot be compared."""
    tolerance: float = 0.0
    """The relative error of the result that is allowed; 0 for what its dtype explains."""

    @property
    def key(self) -> str:
        return f"{self.family}/{self.name}/{self.dtype}"

    def program(self) -> Program:
        builder = Builder("line")
        params = [builder.param(found.dtype, list(found.shape)) for found in self.inputs]
        made = self.weft(builder, *params)
        return builder.build(*made) if isinstance(made, tuple) else builder.build(made)
