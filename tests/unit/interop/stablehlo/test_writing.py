"""PTIR written as StableHLO: what is read back means the same, and the reference interpreter of
StableHLO agrees."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft.driver.conversion import convert
from weft.foundation.errors import SpecViolation, Unimplemented
from weft.ptir import Builder, Program, TensorType
from weft.testing import random_inputs, random_program

pytest.importorskip("jaxlib", reason="the extra weft[stablehlo] is not installed")

from tests.stablehlo_oracle import interpret
from weft.interop import stablehlo

GOLDEN = sorted((Path(__file__).parents[3] / "compat" / "2026-11-ptir-golden").rglob("*.json"))
SAID_BY_ALL = (
    "add", "sub", "mul", "div", "maximum", "minimum", "neg", "abs", "exp", "tanh", "compare",
    "select", "cast", "clamp", "reshape", "transpose", "broadcast_to", "slice", "concat", "pad",
    "tile", "iota", "dot_general", "reduce_sum", "reduce_max", "reduce_min", "reduce_prod",
    "arg_max", "argmin", "take", "gather", "dynamic_slice",
    "dynamic_update_slice", "extract_patches", "reduce_window", "top_k", "sort", "argsort", "sqrt",
    "floor", "sign", "segment_sum", "segment_max", "cond", "while", "scan",
)  # fmt: skip
"""Ops that the reference interpreter can run in the form they are written. Scatters are not among
them: it writes into their operand, which others may still read."""


def run(program: Program, inputs: Sequence[Any]) -> list[Any] | str:
    try:
        return weft.run(program, list(inputs), backend="reference", seed=3)
    except SpecViolation as error:
        return error.code
    except Unimplemented as error:
        return error.op


def assert_close(found: Sequence[Any], wanted: Sequence[Any], rtol: float = 1e-4) -> None:
    for got, want in zip(found, wanted, strict=True):
        got, want = np.asarray(got), np.asarray(want)
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        with np.errstate(all="ignore"):
            left, right = got.astype(np.complex128), want.astype(np.complex128)
        np.testing.assert_allclose(left, right, rtol=rtol, atol=1e-5)


def assert_round_trip(program: Program, inputs: Sequence[Any]) -> None:
    text = stablehlo.dumps(program)
    assert stablehlo.dumps(program) == text
    back = stablehlo.loads(text)
    weft.ptir.verify(back)
    wanted = run(program, inputs)
    if not isinstance(wanted, str):
        found = run(back, inputs)
        assert not isinstance(found, str), found
        assert_close(found, wanted)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("start", range(0, 40, 10))
def test_random_programs_mean_the_same_when_read_back(start: int, dynamic: bool) -> None:
    said = 0
    for seed in range(start, start + 10):
        case = random_program(seed, 12, dynamic=dynamic)
        try:
            assert_round_trip(case.program, case.inputs)
        except Unimplemented:
            continue
        said += 1
    assert said >= 4


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_golden_programs(path: Path) -> None:
    if path.stem == "pad_neginf":
        pytest.skip("the file has null for a number that is not finite, and does not load")
    program = weft.ptir.load(path)
    if weft.ptir.verify(program, collect=True):
        with pytest.raises(SpecViolation):
            stablehlo.dumps(program)
        return
    assert_round_trip(program, random_inputs(program))


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, 30, 10))
def test_the_reference_interpreter_agrees(start: int) -> None:
    for seed in range(start, start + 10):
        case = random_program(
            seed, 8, ops=SAID_BY_ALL, dtypes=["f32", "si32", "si64", "i1"], dynamic=False
        )
        wanted = run(case.program, case.inputs)
        plain = all(isinstance(kind, TensorType) for kind in case.program.main.parameters)
        if plain and not isinstance(wanted, str):
            assert_close(interpret(stablehlo.dumps(case.program), case.inputs), wanted)


def test_the_text_is_what_people_know() -> None:
    b = Builder("main")
    x, w = b.param("f32", [2, 3]), b.param("f32", [3, 4])
    program = b.build(b.tanh(b.dot_general(x, w, contract=([1], [0]))))
    assert stablehlo.dumps(program) == convert(program, "weft.interop.stablehlo:TARGET")
    assert stablehlo.dumps(program) == (
        "module {\n"
        "  func.func @main(%arg0: tensor<2x3xf32>, %arg1: tensor<3x4xf32>) -> tensor<2x4xf32> {\n"
        "    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] : "
        "(tensor<2x3xf32>, tensor<3x4xf32>) -> tensor<2x4xf32>\n"
        "    %1 = stablehlo.tanh %0 : tensor<2x4xf32>\n"
        "    return %1 : tensor<2x4xf32>\n"
        "  }\n"
        "}\n"
    )


def test_hostile_names_stay_names() -> None:
    name = 'a"}) : () -> () \\ é\n'
    b = Builder(name)
    program = b.build(b.sin(b.param("f32", [2])))
    back = stablehlo.loads(stablehlo.dumps(program))
    assert back.entry == name


def test_casts_saturate_as_ptir_says() -> None:
    b = Builder("main")
    x, n = b.param("f32", [6]), b.param("si32", [4])
    program = b.build(b.cast(x, "si8"), b.cast(n, "ui8"), b.cast(x, "i1"))
    values = np.array([np.nan, np.inf, -np.inf, 300.0, -1.5, 0.0], np.float32)
    whole = np.array([-5, 256, 7, 2**31 - 1], np.int32)
    wanted = [
        np.array([0, 127, -128, 127, -1, 0], np.int8),
        np.array([0, 255, 7, 255], np.uint8),
        np.array([True, True, True, True, True, False]),
    ]
    assert_close(interpret(stablehlo.dumps(program), [values, whole]), wanted)
    assert_round_trip(program, [values, whole])


def test_what_cannot_be_said_is_named_with_its_place() -> None:
    b = Builder("main")
    q, s, z = b.param("si8", [2]), b.param("f32", []), b.param("si8", [])
    program = b.build(b.emit("requantize", q, s, z, s, z, output_dtype="si8"))
    with pytest.raises(Unimplemented) as caught:
        stablehlo.dumps(program)
    assert str(caught.value).startswith(
        "Unimplemented requantize: StableHLO has no operation of its meaning; %3 = requantize("
    )
