"""PTIR written as StableHLO: what is read back means the same, and the reference interpreter of
StableHLO agrees."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.support.cases import one_in
from weft.driver.conversion import convert
from weft.foundation.errors import SpecViolation, Unimplemented
from weft.ptir import Builder, Program, TensorType
from weft.ptir.ir import operand_type
from weft.ptir.ops.contraction import DotGeneral
from weft.testing import random_inputs, random_program

pytest.importorskip("jaxlib", reason="the extra weft[stablehlo] is not installed")

from tests.support.stablehlo_oracle import interpret
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


@pytest.mark.parametrize("dynamic", one_in(3, [False, True]))
@pytest.mark.parametrize("start", one_in(2, range(0, 40, 10)))
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


def ends_the_interpreter(program: Program) -> bool:
    """A product that contracts an axis without elements makes the interpreter end the process."""
    for body in program.bodies:
        types = dict(zip(body.parameter_ids, body.parameters, strict=True))
        for made in body.body:
            types[made.id] = made.output
            if isinstance(made.op, DotGeneral):
                left = operand_type(made.operands[0], types)
                if any(left.shape[axis] == 0 for axis in made.op.contract_lhs):  # type: ignore[union-attr]
                    return True
    return False


@pytest.mark.parametrize(
    "start", [0, 20, *(pytest.param(n, marks=pytest.mark.slow) for n in range(40, 400, 40))]
)
def test_the_reference_interpreter_agrees(start: int) -> None:
    asked = 0
    for seed in range(start, start + (20 if start < 40 else 40)):
        case = random_program(
            seed, 8, ops=SAID_BY_ALL, dtypes=["f32", "si32", "si64", "i1"], dynamic=False
        )
        wanted = run(case.program, case.inputs)
        plain = all(isinstance(kind, TensorType) for kind in case.program.main.parameters)
        if plain and not isinstance(wanted, str) and not ends_the_interpreter(case.program):
            assert_close(interpret(stablehlo.dumps(case.program), case.inputs), wanted)
            asked += 1
    assert asked >= 10


def test_a_scan_over_nothing() -> None:
    b = Builder("main")
    x, rows = b.param("f32", [2]), b.param("f32", [0, 2])

    def step(inner: Any, carry: Any, row: Any) -> list[Any]:
        return [carry + row, carry * row]

    found = b.scan(step, [x], [rows])
    program = b.build(found[0], found[1])
    inputs = [np.array([1.0, 2.0], np.float32), np.zeros((0, 2), np.float32)]
    assert_round_trip(program, inputs)


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
    x = b.param("f32", [1, "N", 2])
    patches = b.emit(
        "extract_patches", x, window=[2], strides=[1], dilation=[1], padding=[(0, 0)], pad_value=0
    )
    program = b.build(patches)
    with pytest.raises(Unimplemented) as caught:
        stablehlo.dumps(program)
    assert str(caught.value).startswith(
        "Unimplemented extract_patches: how many windows f32[1, ?N, 2] has is known only at run "
        "time; its first and last axis may be open, the others not; %1 = extract_patches(%0)"
    )


def test_gradients_still_stop() -> None:
    b = Builder("main")
    x = b.param("f32", [3])
    program = b.build(b.stop_gradient(b.sin(x)) * b.barrier(x, b.sin(x)))
    text = stablehlo.dumps(program)
    assert "optimization_barrier" in text
    back = stablehlo.loads(text)
    names = [made.op.mnemonic for made in back.main.body]
    assert names.count("stop_gradient") == 1
    assert "barrier" in names
    values = np.array([0.5, 1.0, 2.0], np.float32)
    for form in (program, back):
        gradient = weft.ptir.gradient(_total(form), wrt=[0])
        found = weft.run(gradient, [values], backend="reference")
        np.testing.assert_allclose(found[-1], np.sin(values), rtol=1e-5)


def _total(program: Program) -> Program:
    """The program with the sum of its result as its result."""
    main = program.main
    b = Builder("main")
    x = b.param_of(main.parameters[0])
    values = {main.parameter_ids[0]: x}
    for made in main.body:
        args = [values[operand.id] for operand in made.operands if hasattr(operand, "id")]
        values[made.id] = b.append(made.op, args)
    return b.build(b.reduce_sum(values[main.result_ids[0]], [0]))


QUANTISED = [("si4", None), ("ui4", 1), ("si8", 1), ("ui16", None)]


@pytest.mark.parametrize(("dtype", "axis"), QUANTISED)
@pytest.mark.parametrize("wide", ["f32", "f16", "f64"])
def test_quantisation_in_every_form(dtype: str, axis: int | None, wide: str) -> None:
    b = Builder("main")
    shape = [] if axis is None else [4]
    x = b.param(wide, [3, 4])
    scale = b.param(wide, shape)
    zero = b.param(dtype, shape)
    made = b.emit("quantize", x, scale, zero, output_dtype=dtype, axis=axis)
    plain = b.emit("quantize", x, scale, output_dtype=dtype, axis=axis)
    again = b.emit(
        "requantize", made, scale, zero, scale * 0.5, b.full(shape, 1, "ui8"),
        output_dtype="ui8", axis=axis,
    )  # fmt: skip
    back = b.emit("dequantize", made, scale, zero, axis=axis)
    sums = b.emit("dequantize", b.cast(made, "si32"), scale, axis=axis, output_dtype="f32")
    program = b.build(made, plain, again, back, sums)
    random = np.random.default_rng(0)
    kinds = [kind.dtype.numpy for kind in program.main.parameters]  # type: ignore[union-attr]
    values = [random.standard_normal((3, 4)) * 4, np.full(shape, 0.4), np.full(shape, 3)]
    assert_round_trip(program, [v.astype(k) for v, k in zip(values, kinds, strict=True)])


@pytest.mark.parametrize("dtype", ["fp8_e4m3", "fp8_e5m2"])
@pytest.mark.parametrize("wide", ["f32", "f16", "f64"])
@pytest.mark.parametrize("axis", [None, 1])
def test_fp8_saturates_and_keeps_fractions(dtype: str, wide: str, axis: int | None) -> None:
    b = Builder("main")
    shape = [] if axis is None else [4]
    x, scale, zero = b.param(wide, [3, 4]), b.param(wide, shape), b.param(dtype, shape)
    made = b.emit("quantize", x, scale, zero, output_dtype=dtype, axis=axis)
    plain = b.emit("quantize", x, scale, output_dtype=dtype, axis=axis)
    back = b.emit("dequantize", made, scale, zero, axis=axis, output_dtype="f32")
    program = b.build(made, plain, back, b.emit("dequantize", plain, scale, axis=axis))
    values = np.asarray([[0.1, -3.3, 6e4, -6e4], [np.inf, np.nan, 140, 190], [0, 1, 2, 3]])
    kinds = [kind.dtype.numpy for kind in program.main.parameters]  # type: ignore[union-attr]
    given = [values, np.full(shape, 0.4), np.full(shape, 0.5)]
    assert_round_trip(program, [v.astype(k) for v, k in zip(given, kinds, strict=True)])


def test_open_sizes_are_asked_for() -> None:
    b = Builder("main")
    x = b.param("f32", ["N", 3])
    rows = b.emit("take", b.transpose(x, [1, 0]), b.literal([2, 0], "si32"))
    program = b.build(
        b.emit("tile", x, repeats=[2, 2]), b.pad(x, low=[1, 0], high=[0, 2], interior=[0, 0],
        pad_value=1.5), rows, b.emit("bitcast", x, dtype="si32"),
    )  # fmt: skip
    text = stablehlo.dumps(program)
    assert "dynamic_gather" in text
    assert "stablehlo.bitcast_convert" in text
    assert_round_trip(program, [np.arange(6, dtype=np.float32).reshape(2, 3)])
