"""Programs on their way through the middle of the compiler, for tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from weft.foundation.dims import static
from weft.indexbook.from_tiny import build_book
from weft.poly_view.from_tiny import build_scop
from weft.poly_view.ir import Scop
from weft.region.from_poly_view import lower_scop
from weft.region.ir import Module
from weft.region.verify import verify
from weft.target.known import target_named
from weft.target.target import Target
from weft.tiny.interp import run
from weft.tiny.ir import Graph, Value

Array = NDArray[Any]


@dataclass(frozen=True)
class Lowered:
    """A Tiny graph, its Poly-View and its kernels."""

    graph: Graph
    scop: Scop
    module: Module

    def expected(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """What the Tiny interpreter says, by the names of the module's outputs."""
        return dict(zip(self.module.outputs, run(self.graph, arrays), strict=True))


def lowered(
    graph: Graph, target: str | Target = "cpu", roles: Mapping[str, str] | None = None
) -> Lowered:
    """Every stage up to verified kernels."""
    machine = target_named(target) if isinstance(target, str) else target
    scop = build_scop(graph, build_book(graph))
    module = lower_scop(scop, graph, machine, roles)
    verify(module)
    return Lowered(graph, scop, module)


def graph_of(inputs: tuple[Any, ...], **outputs: Value) -> Graph:
    return Graph(inputs, tuple(outputs.items()))


def sizes(value: Value) -> tuple[int, ...]:
    """The shape of a value, as numbers."""
    return tuple(static(size) for size in value.shape)
