"""The middle of the compiler agrees with the reference on random programs: as Tiny, and as
Poly-View."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.cases import one_in
from tests.support.lowered import given
from tests.support.scop_executor import run_scop
from weft.driver.reference import ReferenceBackend
from weft.foundation.numeric import as_complex
from weft.indexbook.from_tiny import build_book
from weft.indexbook.verify import verify as verify_book
from weft.poly_view.from_tiny import build_scop
from weft.poly_view.verify import verify as verify_view
from weft.ptir import Program
from weft.ptir.interp import Observer
from weft.ptir.streams import assign_streams
from weft.ptir.types import leaves
from weft.testing.compare import compare
from weft.testing.generators import GENERATORS
from weft.testing.random_programs import random_program
from weft.tiny.from_ptir import evaluate_opaque, lower_program
from weft.tiny.interp import run
from weft.tiny.ir import Graph
from weft.tiny.verify import verify as verify_graph

Array = NDArray[Any]
Runner = Callable[[Graph, dict[str, Array]], Sequence[Array]]
OPS = [op for op in GENERATORS if not op.random or op.family == "random"]
"""Those that draw from a stream of the run and stay whole need the run around them."""


def as_tiny(graph: Graph, inputs: dict[str, Array]) -> Sequence[Array]:
    return run(graph, inputs, evaluate_opaque)


def as_view(graph: Graph, inputs: dict[str, Array]) -> Sequence[Array]:
    book = build_book(graph)
    verify_book(book)
    scop = build_scop(graph, book)
    verify_view(scop)
    return list(run_scop(scop, {**graph.constants, **inputs}, evaluate_opaque).values())


class StageExecutable:
    def __init__(self, program: Program, runner: Runner) -> None:
        self.program, self.runner = program, runner
        self.graph = lower_program(program)
        verify_graph(self.graph)

    def execute(
        self, inputs: Sequence[Array], *, seed: int = 0, observer: Observer | None = None
    ) -> list[Array]:
        found = self.runner(self.graph, given(self.graph, inputs, seed))
        kinds = [leaf for kind in self.program.main.results for leaf in leaves(kind)]
        return [
            as_complex(array) if kind.dtype.is_complex else np.array(array, order="C")
            for array, kind in zip(found, kinds, strict=True)
        ]


class StageBackend(ReferenceBackend):
    """A stage of the compiler, run as a backend."""

    def __init__(self, name: str, runner: Runner) -> None:
        self.name, self._runner = name, runner

    def compile(self, program: Program) -> Any:
        return StageExecutable(assign_streams(program), self._runner)


BACKENDS = [StageBackend("tiny", as_tiny), StageBackend("poly_view", as_view)]


@pytest.mark.parametrize("block", one_in(6, range(6)))
@pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: b.name)
def test_random_programs(backend: StageBackend, block: int) -> None:
    for seed in range(block * 5, block * 5 + 5):
        case = random_program(seed, 20, ops=OPS, control_flow=False)
        report = compare(case.program, case.inputs, backend)
        assert report.agrees, f"seed {seed}: {report}"


@pytest.mark.slow
@pytest.mark.parametrize("first", range(5000, 5200, 20))
@pytest.mark.parametrize("backend", BACKENDS, ids=lambda b: b.name)
def test_many_random_programs(backend: StageBackend, first: int) -> None:
    for seed in range(first, first + 20):
        case = random_program(seed, 30, ops=OPS, control_flow=False)
        report = compare(case.program, case.inputs, backend)
        assert report.agrees, f"seed {seed}: {report}"
