"""Few queries over a cache in pages on the dialect's interpreter: read where they lie, whatever the
size of a page and the order of its axes; tables are checked; what does not fit is gathered."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.cases import one_in
from tests.support.example_inputs import inputs_for
from tests.support.gpu_interpreted import InterpretedGpu
from weft.codegen.gpu import ir
from weft.codegen.gpu.compile import compile_cuda
from weft.codegen.gpu.spelling.print import cuda
from weft.ptir import Builder, Program, Value
from weft.testing.compare import compare

ORDERS = {
    "heads, pages": [1, 0, 2, 3],
    "pages, heads": [0, 1, 2, 3],
    "pages, tokens, heads": [0, 2, 1, 3],
}
"""How a cache with those axes becomes one of pages, heads, tokens and elements."""


@dataclass(frozen=True)
class Paged:
    """An attention over pages of `size` tokens, `pages` for each of two sequences."""

    size: int = 64
    pages: int = 4
    heads: int = 4
    shared: int = 2
    queries: int = 1
    depth: int = 64
    order: str = "heads, pages"
    length: bool = False
    """Whether a sequence sees its first tokens alone."""

    @property
    def keys(self) -> int:
        return self.size * self.pages

    def program(self) -> Program:
        b = Builder("paged")
        q = b.param("bf16", [2, self.heads, self.queries, self.depth])
        own = self.heads // self.shared
        sizes = {"heads": own, "pages": 2 * self.pages + 1, "tokens": self.size}
        turn = ORDERS[self.order]
        shape = [sizes["pages"], own, self.size, self.depth]
        stored = [shape[turn.index(n)] for n in range(4)]
        k, v = (b.param("bf16", stored) for _ in range(2))
        table = b.param("si32", [2, self.pages])
        more = self.mask(b) if self.length else []
        kv = [self.gathered(b, cache, table) for cache in (k, v)]
        return b.build(b.emit("weft.attention", q, *kv, *more, causal=False)[0])

    def mask(self, b: Builder) -> list[Value]:
        lengths, shape = b.param("si32", [2]), [2, 1, 1, self.keys]
        seen = b.iota("si32", shape, 3) < b.broadcast_to(b.reshape(lengths, [2, 1, 1, 1]), shape)
        hidden = b.full(shape, -math.inf, "f32")
        made = b.emit("select", seen, b.full(shape, 0.0, "f32"), hidden)
        assert isinstance(made, Value)
        return [made]

    def gathered(self, b: Builder, cache: Value, table: Value) -> Value:
        found = b.take(b.transpose(cache, ORDERS[self.order]), table)
        turned = b.transpose(found, [0, 2, 1, 3, 4])
        return b.reshape(turned, [2, self.heads // self.shared, self.keys, self.depth])

    def inputs(self) -> list[NDArray[Any]]:
        made = [*inputs_for(self.program(), 3)]
        rng = np.random.default_rng(5)
        made[3] = rng.permutation(2 * self.pages + 1)[: 2 * self.pages].astype(np.int32)
        made[3] = made[3].reshape(2, self.pages)
        if self.length:
            made[4] = np.array([self.keys - 3, 5], np.int32)
        return made


CASES = {
    "a page is a tile": Paged(),
    "pages of 16": Paged(size=16, pages=12),
    "pages of 128, rows of 128": Paged(size=128, pages=2, depth=128),
    "pages first": Paged(order="pages, heads"),
    "tokens before heads": Paged(order="pages, tokens, heads", size=32, pages=8),
    "one head": Paged(heads=2, shared=1),
    "several queries": Paged(queries=6),
    "lengths": Paged(length=True, size=16, pages=16),
}


def kernels_of(program: Program) -> dict[str, ir.Kernel]:
    code = InterpretedGpu("sm90").compile(program).compilation["gpu"]
    return {name: code.kernels[launch.symbol] for name, launch in code.launches.items()}


@pytest.mark.parametrize("name", one_in(8, CASES))
def test_pages_are_read_where_they_lie(name: str) -> None:
    case = CASES[name]
    program = case.program()
    kernels = kernels_of(program)
    assert sum(found.startswith("attention") for found in kernels) == 1
    # All that is left of the gathers: the numbers of pages, checked.
    moved = [kernel for found, kernel in kernels.items() if found.startswith("map")]
    assert [kernel.grid for kernel in moved] == [1]
    report = compare(program, case.inputs(), InterpretedGpu("sm90"))
    assert report.agrees, str(report)


def test_pages_that_are_not_there_are_reported() -> None:
    """Before the attention reads any: what it reads is held to those that are there."""
    kernels = kernels_of(Paged().program())
    assert [kernel.reports for kernel in kernels.values()] == [True, False]


@pytest.mark.parametrize("case", one_in(2, [Paged(size=16, pages=9), Paged(size=20, pages=16)]))
def test_pages_that_tiles_do_not_fit_are_gathered(case: Paged) -> None:
    program = case.program()
    assert max(kernel.grid for kernel in kernels_of(program).values()) > 1
    report = compare(program, case.inputs(), InterpretedGpu("sm90"))
    assert report.agrees, str(report)


def test_machine_code_keeps_everything_in_registers() -> None:
    kernels = kernels_of(CASES["pages of 16"].program())
    (kernel,) = [found for name, found in kernels.items() if name.startswith("attention")]
    assert compile_cuda(cuda(kernel), "sm_90a").report.findings == []
