"""Programs on their way through the middle of the compiler, for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.foundation.dims import static
from weft.foundation.numeric import as_pairs
from weft.indexbook.from_tiny import build_book
from weft.poly_view.from_tiny import build_scop
from weft.poly_view.ir import Scop
from weft.region.from_poly_view import lower_scop
from weft.region.ir import Module
from weft.region.verify import verify
from weft.target.known import target_named
from weft.target.target import Target
from weft.tiny.from_ptir import RUN
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


def given(graph: Graph, arrays: Sequence[Array], seed: int = 0) -> dict[str, Array]:
    """The inputs of a program under the names that its graph has for them, and in its types; a
    graph with random numbers is given a run as well."""
    names = [i.name for i in graph.inputs if i.name != RUN]
    found = dict(zip(names, map(as_pairs, arrays), strict=True))
    return found | ({RUN: np.array([seed, 0])} if len(names) < len(graph.inputs) else {})


def graph_of(inputs: tuple[Any, ...], **outputs: Value) -> Graph:
    return Graph(inputs, tuple(outputs.items()))


def sizes(value: Value) -> tuple[int, ...]:
    """The shape of a value, as numbers."""
    return tuple(static(size) for size in value.shape)
