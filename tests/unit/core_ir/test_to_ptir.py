"""The lowering to PTIR: what it keeps apart, where values come from, and that tables are whole."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.support.cases import one_in
from weft.core_ir import INSTRUCTIONS, from_expression, gradient, loads, lower, to_ptir
from weft.core_ir.gradient_rules import GRADIENTS
from weft.core_ir.infer import RULES
from weft.core_ir.to_ptir import CONSTANTS, LOWERINGS
from weft.ptir import dumps, verify

OPCODES = set(INSTRUCTIONS) - {"Input"}


def test_every_table_has_a_row_for_every_instruction() -> None:
    assert set(RULES) == OPCODES
    assert set(LOWERINGS) | CONSTANTS == OPCODES
    without_gradient = {o for o in OPCODES if not INSTRUCTIONS[o].operands} | {"Div"}
    assert set(GRADIENTS) == OPCODES - without_gradient


def test_values_know_where_they_come_from() -> None:
    lowered = lower(
        loads(
            "%3 = Input () {name=x} : tensor<f32[2]>\n"
            "%5 = Relu (%3) : tensor<f32[2]>\n"
            "%9 = Neg (%5) : tensor<f32[2]>\noutputs: %9, %3"
        )
    )
    main = lowered.program.main
    verify(lowered.program)
    assert [lowered.origin[i.id] for i in main.body] == [5, 5, 5, 9]
    assert lowered.origin[0] == 3
    assert main.result_ids == (4, 0)
    places = set(lowered.program.locations.values())
    assert places == {"line 2: %5 = Relu (%3)", "line 3: %9 = Neg (%5)"}


def names(source: str) -> list[str]:
    program = to_ptir(from_expression(source, extensions=["gradient"]))
    verify(program)
    return [instruction.op.mnemonic for instruction in program.main.body]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x: f32[2, 3]; y: f32[2, 3]; x + y", ["add"]),
        ("x: f32[2, 3]; y: f32[3]; x + y", ["broadcast_to", "add"]),
        ("x: f32[2, 3]; sum(x, [1], true)", ["reduce_sum", "reshape"]),
        ("x: f32; sum(x, [])", []),
        ("x: f32[2, 3]; w: f32[3, 4]; x @ w", ["dot_general"]),
        ("x: f32[5, 2, 3]; w: f32[3, 4]; x @ w", ["dot_general"]),
        ("x: f32[2, 3]; w: f32[5, 3, 4]; x @ w", ["broadcast_to", "dot_general"]),
        ("x: f32[4]; x[1:3]", ["slice"]),
        ("x: f32[4]; x[::2]", ["reshape", "slice", "reshape"]),
        ("x: f32[5]; x[::2]", ["pad", "reshape", "slice", "reshape"]),
        ("x: f32[2, 3]; x[1, 2]", ["slice", "reshape"]),
        ("x: f32[2, 3]; x[0:0] + x[0:0]", ["broadcast_to", "broadcast_to"]),
        (
            "x: f32[1, 4, 4, 1]; k: f32[2, 2, 1, 3]; conv2d(x, k)",
            ["reshape", "extract_patches", "dot_general"],
        ),
    ],
)
def test_what_is_emitted(source: str, expected: list[str]) -> None:
    found = names(source)
    assert found[-len(expected) :] == expected if expected else not found


def test_lowering_is_deterministic() -> None:
    source = "x: f32[5, 4]; mean(relu(x[::2] @ transpose(x, [1, 0])), [])"
    texts = {dumps(to_ptir(from_expression(source)), "json") for _ in range(3)}
    assert len(texts) == 1


def test_an_output_may_be_an_input_or_a_constant_or_given_twice() -> None:
    module = loads(
        "%0 = Input () {name=x} : tensor<f32[]>\n%1 = ConstF32 () {value=2.0} : tensor<f32[]>\n"
        "outputs: %0, %1, %0"
    )
    assert weft.run(module, [np.float32(1)]) == [1, 2, 1]


def chain(count: int) -> str:
    ops = "".join(f"%{i} = Add (%{i - 1}, %0) : tensor<f32[]>\n" for i in range(1, count))
    return f"%0 = Input () {{name=x}} : tensor<f32[]>\n{ops}outputs: %{count - 1}\n"


@pytest.mark.parametrize("count", one_in(2, [10_000, 100_000]))
def test_a_long_chain(count: int) -> None:
    text = chain(count)
    module = loads(text)
    assert weft.core_ir.dumps(module) == text
    assert len(to_ptir(module).main.body) == count - 1


def test_the_gradient_of_a_long_chain() -> None:
    (_, found) = weft.run(gradient(loads(chain(4_000))), [np.float32(0)])
    assert found == 4_000
