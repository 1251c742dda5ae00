"""Packed sequences on the dialect's interpreter: masks that compare numbers of queries with numbers
of keys leave out the blocks of keys that nobody sees, and compare nothing where all are seen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.cases import one_in
from tests.support.gpu_interpreted import InterpretedGpu
from tests.support.gpu_packed import CASES, Packed, numbered
from weft.codegen.gpu import ir
from weft.codegen.gpu.compile import compile_cuda
from weft.codegen.gpu.spelling.print import cuda
from weft.ptir import Program
from weft.ptir.gradient import vjp
from weft.testing.compare import compare

Array = NDArray[Any]


def kernels(program: Program, pattern: str, target: str = "sm90") -> list[ir.Kernel]:
    code = InterpretedGpu(target).compile(program).compilation["gpu"]
    names = [name for name in code.launches if name.startswith(pattern)]
    return [code.kernels[code.launches[name].symbol] for name in names]


@pytest.mark.parametrize("name", one_in(12, CASES))
def test_packed_sequences_agree(name: str) -> None:
    program = CASES[name].program()
    (kernel,) = kernels(program, "attention")
    assert any(buffer.startswith("hull") for buffer in kernel.buffers)
    report = compare(program, CASES[name].inputs(program), InterpretedGpu("sm90"))
    assert report.agrees, str(report)


@pytest.mark.parametrize("name", one_in(2, ["causal", "from a number of each query on"]))
def test_packed_sequences_agree_by_single_warps(name: str) -> None:
    program = CASES[name].program()
    (kernel,) = kernels(program, "attention", "sm80")
    assert any(buffer.startswith("hull") for buffer in kernel.buffers)
    assert compile_cuda(cuda(kernel), "sm_80").report.findings == []
    report = compare(program, CASES[name].inputs(program), InterpretedGpu("sm80"))
    assert report.agrees, str(report)


@pytest.mark.parametrize("name", one_in(3, ["causal", "shared heads", "nothing in common"]))
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
            arrays |= executable.launch([kernel], arrays)
    names = ("first", "last", "wholefrom", "wholeto")
    found = {n: next(a for t, a in arrays.items() if t.endswith(f"_{n}")) for n in names}
    starts = np.arange(32) // 2 * 128
    np.testing.assert_array_equal(found["first"], starts)
    np.testing.assert_array_equal(found["last"], starts + 128)
    np.testing.assert_array_equal(found["wholefrom"], starts)
    np.testing.assert_array_equal(found["wholeto"], starts + 128)


@pytest.mark.parametrize("pattern", one_in(2, ["attention", "stream"]))
def test_machine_code_holds_everything_in_registers(pattern: str) -> None:
    program = vjp(CASES["causal"].program(), (0, 1, 2))
    for kernel in kernels(program, pattern):
        assert compile_cuda(cuda(kernel), "sm_90a").report.findings == []
