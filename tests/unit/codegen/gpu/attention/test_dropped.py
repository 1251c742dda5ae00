"""Attention with dropout on the dialect's interpreter: what is dropped is drawn inside the kernels,
the same words as the reference draws, on the way forward and on the way back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from tests.support.cases import one_in
from tests.support.example_inputs import inputs_for
from tests.support.gpu_dropped import CASES, STATE, Dropped
from tests.support.gpu_faults import planted
from tests.support.gpu_interpreted import InterpretedGpu
from weft import functional as F
from weft.codegen.gpu import ir
from weft.codegen.gpu.compile import compile_cuda
from weft.codegen.gpu.spelling.print import cuda
from weft.codegen.gpu.spelling.text import parse_module, print_module
from weft.codegen.gpu.verify.kernel import findings
from weft.ptir import Program
from weft.ptir.gradient import vjp
from weft.target.sm90 import SM90
from weft.testing.compare import compare

Array = NDArray[Any]


GRADIENTS: Final = {
    "plain": Dropped(queries=72, keys=80, heads=1),
    "shared heads, causal": Dropped(queries=48, keys=48, heads=4, shared=2, causal=True),
}


def agree(program: Program, target: str = "sm90") -> None:
    inputs: list[Array] = inputs_for(program, 3)
    inputs[3] = STATE
    report = compare(program, inputs, InterpretedGpu(target))
    assert report.agrees, str(report)


def kernels(program: Program, target: str = "sm90") -> dict[str, ir.Kernel]:
    code = InterpretedGpu(target).compile(program).compilation["gpu"]
    return {name: code.kernels[launch.symbol] for name, launch in code.launches.items()}


@pytest.mark.parametrize("name", one_in(3, CASES))
def test_dropped_weights_are_drawn_in_one_kernel(name: str) -> None:
    program = CASES[name].program()
    assert [found[:9] for found in kernels(program)] == ["attention"]
    agree(program)


@pytest.mark.parametrize("name", one_in(2, ["causal", "by hand"]))
def test_single_warps_draw_in_one_kernel(name: str) -> None:
    program = CASES[name].program()
    ((name, kernel),) = kernels(program, "sm80").items()
    assert name.startswith("attention")
    assert compile_cuda(cuda(kernel), "sm_80").report.findings == []
    agree(program, "sm80")


@pytest.mark.parametrize("name", one_in(2, GRADIENTS))
def test_gradients_draw_again_what_was_dropped(name: str) -> None:
    program = vjp(GRADIENTS[name].program(), (0, 1, 2))
    found = kernels(program)
    assert sorted(kernel.rstrip("0123456789") for kernel in found) == (
        ["attention", "row", "stream", "stream"]
    )
    agree(program)


def test_nothing_of_queries_and_keys_is_stored() -> None:
    """Neither weights nor which of them are dropped, where these are a million a head."""
    case = Dropped(queries=1024, keys=1024, heads=16, causal=True)
    module = InterpretedGpu("sm90").compile(vjp(case.program(), (0, 1, 2))).compilation["region"]
    assert max(tensor.bytes for tensor in module.tensors.values()) == 2 * 16 * 1024 * 64


def test_a_state_may_be_put_together() -> None:
    """A seed and an offset that a program is given apart: which of them an element of the state is
    is known."""

    def attended(q: Any, k: Any, v: Any, seed: Any, offset: Any, back: Any) -> Any:
        def weighed(*given: Any) -> Any:
            return (F.attention(*given, dropout=0.3, seed=seed, offset=offset) * back).sum()

        return weft.grad(weighed, argnums=(0, 1, 2))(q, k, v)

    x = weft.zeros((1, 2, 96, 64), dtype="bf16")
    program = weft.jit(attended).program(x, x, x, np.int64(1), np.int64(2), x)
    found = [kernel.rstrip("0123456789") for kernel in kernels(program)]
    assert found.count("attention") == 1
    assert found.count("stream") == 2
    assert "matmul" not in found


@pytest.mark.parametrize("target", ["sm90", "sm80"])
def test_a_seed_may_be_a_number(target: str) -> None:
    """What the stream begins with is known then, and read nowhere."""

    def attended(q: Any, k: Any, v: Any, back: Any) -> Any:
        result, pull = weft.vjp(lambda *x: F.attention(*x, dropout=0.3, seed=3), q, k, v)
        return (result, *pull(back))

    x = weft.zeros((1, 1, 72, 64), dtype="bf16")
    program = weft.jit(attended).program(x, x, x, x)
    assert [name.rstrip("0123456789") for name in kernels(program, target)].count("stream") == 2
    report = compare(program, inputs_for(program, 3), InterpretedGpu(target))
    assert report.agrees, str(report)


def test_few_queries_drop_in_several_kernels() -> None:
    """The kernel of few queries draws nothing."""
    program = Dropped(queries=4, keys=200).program()
    assert len(kernels(program)) > 1
    agree(program)


def bits_drawn(kernel: ir.Kernel) -> list[ir.DrawBits]:
    return [found for found in ir.walk(kernel.body) if isinstance(found, ir.DrawBits)]


@pytest.mark.parametrize(
    ("keys", "shared"),
    one_in(3, [(144, 4), (146, 2), (145, 1)], unpack=True),
    ids=["four", "a pair", "one"],
)
def test_neighbours_share_blocks_of_their_stream(keys: int, shared: int) -> None:
    case = Dropped(queries=64, keys=keys, heads=2)
    (kernel,) = kernels(case.program()).values()
    assert {found.shared for found in bits_drawn(kernel)} == {shared}
    agree(case.program())


def test_gradients_of_keys_share_blocks_in_columns() -> None:
    """Words follow one another along keys, which are rows there; both results have the bits that
    are drawn once for a block of columns."""
    found = kernels(vjp(GRADIENTS["plain"].program(), (0, 1, 2)))
    streams = [kernel for name, kernel in found.items() if name.startswith("stream")]
    factors = [{(d.row_factor, d.column_factor) for d in bits_drawn(kernel)} for kernel in streams]
    assert sorted(factors, key=str) == [{(1, 80)}, {(80, 1)}]
    for kernel in streams:
        assert {d.shared for d in bits_drawn(kernel)} == {4}
        loops = [s for s in ir.walk(kernel.body) if isinstance(s, ir.For)]
        assert max(sum(isinstance(s, ir.DrawBits) for s in loop.body) for loop in loops) == 1


def test_gradients_of_odd_lengths_draw_for_each_element() -> None:
    agree(vjp(Dropped(queries=51, keys=67, heads=1).program(), (0, 1, 2)))


def test_bits_that_are_not_of_one_block_are_found() -> None:
    (kernel,) = kernels(CASES["plain"].program()).values()
    statement = bits_drawn(kernel)[0]
    assert statement.narrow

    def apart(found: ir.Stmt) -> ir.Stmt:
        return replace(found, row_factor=142) if isinstance(found, ir.DrawBits) else found

    faults = findings(planted(kernel, apart), SM90)
    assert any("one block of their stream" in fault.why for fault in faults)


def test_the_text_of_a_kernel_reads_back() -> None:
    module = InterpretedGpu("sm90").compile(CASES["plain"].program()).compilation["gpu"]
    assert parse_module(print_module(module)) == module


@pytest.mark.parametrize("keys", one_in(2, [144, 145]), ids=["shared", "alone"])
def test_machine_code_holds_everything_in_registers(keys: int) -> None:
    """Random bits are made while matrix instructions run, which stay asynchronous."""
    program = vjp(Dropped(queries=80, keys=keys, heads=1).program(), (0, 1, 2))
    for name, kernel in kernels(program).items():
        if name.startswith(("attention", "stream")):
            assert compile_cuda(cuda(kernel), "sm_90a").report.findings == []
