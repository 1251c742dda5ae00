"""Packed sequences on the dialect's interpreter: masks that compare numbers of queries with numbers
of keys leave out the blocks of keys that nobody sees, and compare nothing where all are seen."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.example_inputs import inputs_for
from tests.support.gpu_interpreted import InterpretedGpu
from weft.codegen.gpu import ir
from weft.codegen.gpu.compile import compile_cuda
from weft.codegen.gpu.spelling.print import cuda
from weft.ptir import Builder, Program, Value
from weft.ptir.gradient import vjp
from weft.testing.compare import compare

Array = NDArray[Any]
LENGTHS: Final = (5, 120, 64, 1, 90, 50)
"""Of the sequences that lie side by side, 330 positions in all."""


def numbered(lengths: tuple[int, ...] = LENGTHS) -> Array:
    """The number of the sequence of each position."""
    return np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)


def shuffled() -> Array:
    found = numbered()
    np.random.default_rng(1).shuffle(found)
    return found


@dataclass(frozen=True)
class Packed:
    """An attention whose mask compares two vectors."""

    queries: Array
    keys: Array
    ends: bool = False
    causal: bool = False
    heads: int = 1
    shared: int = 1
    batch: int = 1

    def program(self) -> Program:
        b = Builder("packed")
        rows, columns = self.queries.shape[-1], self.keys.shape[-1]
        own = self.heads // self.shared
        q = b.param("bf16", [self.batch, self.heads, rows, 64])
        k, v = (b.param("bf16", [self.batch, own, columns, 64]) for _ in range(2))
        given = [
            b.param("si64" if x.dtype == np.int64 else "si32", x.shape)
            for x in (self.queries, self.keys)
        ]
        shape = [self.batch if self.queries.ndim > 1 else 1, 1, rows, columns]
        sides = [
            b.broadcast_to(b.reshape(given[0], [*shape[:3], 1]), shape),
            b.broadcast_to(b.reshape(given[1], [shape[0], 1, 1, columns]), shape),
        ]
        seen = self._seen(b, sides, shape)
        zero, hidden = (b.full(shape, n, "f32") for n in (0.0, -math.inf))
        mask = b.emit("select", seen, zero, hidden)
        return b.build(b.emit("weft.attention", q, k, v, mask, causal=self.causal)[0])

    def _seen(self, b: Builder, sides: list[Value], shape: list[int]) -> Any:
        if not self.ends:
            return b.emit("compare", *sides, op="equal")
        # Between two numbers of each query: `keys` are ignored but for how many there are.
        key = b.iota("si32", shape, 3)
        after = b.emit("compare", key, sides[0], op="greater_equal")
        before = b.emit("compare", key, b.iota("si32", shape, 2) + 40, op="less")
        return b.emit("minimum", after, before)

    def inputs(self, program: Program) -> list[Array]:
        found = inputs_for(program, 4)
        found[3:5] = [self.queries, self.keys]
        return found


CASES: Final[dict[str, Packed]] = {
    "side by side": Packed(numbered(), numbered(), heads=2),
    "causal": Packed(numbered(), numbered(), causal=True),
    "of two kinds": Packed(numbered((70, 30)), numbered((10, 200))),
    "in any order": Packed(shuffled(), shuffled(), causal=True),
    "numbers of 64 bits": Packed(numbered().astype(np.int64), numbered().astype(np.int64)),
    "shared heads": Packed(numbered(), numbered(), heads=4, shared=2, causal=True),
    "one sequence": Packed(numbered((330,)), numbered((330,))),
    "nothing in common": Packed(numbered(), numbered() + 10),
    "from a number of each query on": Packed(
        np.maximum(np.arange(330, dtype=np.int32) - 60, 0), numbered(), ends=True
    ),
    "its own numbers in each batch": Packed(
        np.stack([numbered(), numbered((200, 130))]),
        np.stack([numbered(), numbered((200, 130))]),
        batch=2,
        heads=2,
    ),
}


def kernels(program: Program, pattern: str, target: str = "sm90") -> list[ir.Kernel]:
    code = InterpretedGpu(target).compile(program).compilation["gpu"]
    names = [name for name in code.launches if name.startswith(pattern)]
    return [code.kernels[code.launches[name].symbol] for name in names]


@pytest.mark.parametrize("name", CASES)
def test_packed_sequences_agree(name: str) -> None:
    program = CASES[name].program()
    (kernel,) = kernels(program, "attention")
    assert any(buffer.startswith("hull") for buffer in kernel.buffers)
    report = compare(program, CASES[name].inputs(program), InterpretedGpu("sm90"))
    assert report.agrees, str(report)


@pytest.mark.parametrize("name", ["causal", "from a number of each query on"])
def test_packed_sequences_agree_by_single_warps(name: str) -> None:
    program = CASES[name].program()
    (kernel,) = kernels(program, "attention", "sm80")
    assert any(buffer.startswith("hull") for buffer in kernel.buffers)
    assert compile_cuda(cuda(kernel), "sm_80").report.findings == []
    report = compare(program, CASES[name].inputs(program), InterpretedGpu("sm80"))
    assert report.agrees, str(report)


@pytest.mark.parametrize("name", ["causal", "shared heads", "nothing in common"])
def test_gradients_of_packed_sequences_agree(name: str) -> None:
    program = vjp(CASES[name].program(), (0, 1, 2))
    streams = kernels(program, "stream")
    assert len(streams) == 2
    for kernel in streams:
        assert any(buffer.startswith("hull") for buffer in kernel.buffers)
    report = compare(program, CASES[name].inputs(program), InterpretedGpu("sm90"))
    assert report.agrees, str(report)


def test_forward_and_the_gradient_of_queries_share_their_tables() -> None:
    """Of two vectors the numbers of tiles and of runs, and what is seen in both directions."""
    program = vjp(CASES["causal"].program(), (0, 1, 2))
    assert len(kernels(program, "row_hull")) == 6


def test_blocks_that_nobody_sees_are_left_out() -> None:
    """Of 16 sequences of 128 each tile of 128 queries goes through one block of keys, not 16."""
    case = Packed(numbered((128,) * 16), numbered((128,) * 16))
    program = case.program()
    executable = InterpretedGpu("sm90").compile(program)
    module = executable.compilation["region"]
    arrays: dict[str, Array] = dict(zip(module.inputs, case.inputs(program), strict=True))
    for kernel in module.kernels:
        if kernel.name.startswith("row_hull"):
            arrays |= executable.launch(kernel, arrays)
    names = ("first", "last", "wholefrom", "wholeto")
    found = {n: next(a for t, a in arrays.items() if t.endswith(f"_{n}")) for n in names}
    starts = np.arange(32) // 2 * 128
    np.testing.assert_array_equal(found["first"], starts)
    np.testing.assert_array_equal(found["last"], starts + 128)
    np.testing.assert_array_equal(found["wholefrom"], starts)
    np.testing.assert_array_equal(found["wholeto"], starts + 128)


@pytest.mark.parametrize("pattern", ["attention", "stream"])
def test_machine_code_holds_everything_in_registers(pattern: str) -> None:
    program = vjp(CASES["causal"].program(), (0, 1, 2))
    for kernel in kernels(program, pattern):
        assert compile_cuda(cuda(kernel), "sm_90a").report.findings == []
