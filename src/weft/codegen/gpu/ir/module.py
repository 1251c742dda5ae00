"""All kernels of a program in the dialect, and which step launches them."""

from __future__ import annotations

from dataclasses import field

from weft.codegen.gpu import ir
from weft.foundation.records import dataclass


@dataclass(frozen=True)
class Launch:
    """What carries out one kernel of the program: a dialect kernel, by its symbol, and for each of
    its buffers the position of the tensor among those of the program's kernel."""

    symbol: str
    tensors: tuple[int, ...]


@dataclass(frozen=True)
class GpuModule:
    """Dialect kernels by symbol, and launches by the name of the program's kernel. Equal kernels of
    a program have one symbol. Those that name a dialect kernel of several sets of buffers are one
    launch, so many at a time, in the order of the program: each brings one set. `hosted` are the
    kernels that no template carries out, and why."""

    kernels: dict[str, ir.Kernel] = field(default_factory=dict)
    launches: dict[str, Launch] = field(default_factory=dict)
    hosted: dict[str, str] = field(default_factory=dict)
