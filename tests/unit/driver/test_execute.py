"""`weft.run`: what it accepts as inputs, and the sentence for everything else."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import weft
from weft.foundation.errors import SpecViolation, UserError
from weft.ptir import Builder, Instruction, Program, Ref, tensor
from weft.ptir.ops.elementwise import ElementwiseUnary, UnaryFn


def identity(dtype: str, *dims: int | str) -> Program:
    b = Builder()
    return b.build(b.param(dtype, dims))


def rejected(program: Program, inputs: Any, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        weft.run(program, inputs, **options)
    return str(caught.value)


def test_the_number_of_inputs_is_checked() -> None:
    b = Builder("pair")
    program = b.build(b.param("f32", [2, "?B"]), b.param("si8"))
    assert rejected(program, [0]) == "@pair takes 2 inputs (f32[2, ?B], si8[]) but got 1"
    b = Builder("none")
    program = b.build(b.literal(1.0))
    assert rejected(program, [1]) == "@none takes 0 inputs (nothing) but got 1"
    assert weft.run(program)[0] == 1.0


@pytest.mark.parametrize("inputs", [np.zeros(2, np.float32), "ab", {"x": 1}, 3, iter([1])])
def test_inputs_are_a_list(inputs: Any) -> None:
    assert rejected(identity("f32", 2), inputs) == (
        f"inputs must be a list with 1 arrays, not {type(inputs).__name__}"
    )


def test_an_array_has_exactly_the_declared_dtype() -> None:
    assert rejected(identity("f32", 2), [np.zeros(2)]) == (
        "input 0 has dtype float64, but the program takes f32[2]; convert it with .astype first"
    )
    assert "input 0 has dtype int64" in rejected(identity("si32"), [np.int64(3)])
    assert "input 0 has dtype >f4" in rejected(identity("f32", 2), [np.zeros(2, ">f4")])


def test_the_shape_is_checked() -> None:
    assert rejected(identity("f32", 2, 3), [np.zeros((3, 2), np.float32)]) == (
        "input 0 has shape [3, 2], but the program takes f32[2, 3]"
    )
    assert rejected(identity("f32", "?B"), [np.zeros((1, 1), np.float32)]) == (
        "input 0 has shape [1, 1], but the program takes f32[?B]"
    )


def test_dims_of_one_name_agree() -> None:
    b = Builder()
    x, y = b.param("f32", ["?B"]), b.param("f32", ["?B"])
    with pytest.raises(SpecViolation) as caught:
        weft.run(b.build(x + y), [np.zeros(2, np.float32), np.zeros(3, np.float32)])
    assert str(caught.value) == (
        "DynamicDimensionMismatch: axis 0 of input 1 has size 3, not ?B = 2"
    )


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        ("f32", 1.5, np.float32(1.5)),
        ("f32", 0.1, np.float32(0.1)),
        ("si8", -128, np.int8(-128)),
        ("i1", True, np.True_),
        ("ui64", 2**64 - 1, np.uint64(2**64 - 1)),
        ("bf16", 1.5, ml_dtypes.bfloat16(1.5)),
        ("cf64", 1 + 2j, np.complex128(1 + 2j)),
        ("f64", 3, np.float64(3)),
    ],
)
def test_python_numbers_are_converted(dtype: str, value: Any, expected: Any) -> None:
    (out,) = weft.run(identity(dtype), [value])
    assert out.dtype == expected.dtype
    assert out == expected


def test_lists_are_converted() -> None:
    (out,) = weft.run(identity("si16", 2, 2), [[[1, 2], [3, 4]]])
    np.testing.assert_array_equal(out, np.array([[1, 2], [3, 4]], np.int16))
    assert weft.run(identity("f32", 0), [[]])[0].shape == (0,)


@pytest.mark.parametrize(
    ("dtype", "value", "sentence"),
    [
        ("si8", 128, "input 0 has values that si8 cannot hold"),
        ("si32", 1.5, "input 0 has values that si32 cannot hold"),
        ("ui8", -1, "input 0 has values that ui8 cannot hold"),
        ("i1", 2, "input 0 has values that i1 cannot hold"),
        ("f32", "abc", "input 0 cannot become f32[]"),
        ("f32", None, "input 0 cannot become f32[]"),
        ("f32", 1j, "input 0 cannot become f32[]"),
        ("f32", object(), "input 0 cannot become f32[]"),
        ("si64", 2**80, "input 0 cannot become si64[]"),
    ],
)
def test_what_a_dtype_cannot_hold_is_refused(dtype: str, value: Any, sentence: str) -> None:
    assert rejected(identity(dtype), [value]) == sentence


def test_a_ragged_list_is_refused() -> None:
    assert rejected(identity("f32", 2, 2), [[[1, 2], [3]]]).startswith("input 0 is not an array: ")


def test_views_and_read_only_arrays_are_fine() -> None:
    data = np.arange(12, dtype=np.float32).reshape(3, 4)
    for view in (data.T, data[::2], np.broadcast_to(data[0], (2, 4))):
        program = identity("f32", *view.shape)
        np.testing.assert_array_equal(weft.run(program, [view])[0], view)


@pytest.mark.parametrize("seed", [-1, 2**64, 1.0, True, "1"])
def test_the_seed_is_a_64_bit_number(seed: Any) -> None:
    assert rejected(identity("f32"), [1.0], seed=seed) == (
        f"seed {seed!r} is not a whole number from 0 to 2^64 - 1"
    )


def test_an_unknown_backend_is_named() -> None:
    assert "there is no backend 'tpu'; the backends are reference" in rejected(
        identity("f32"), [1.0], backend="tpu"
    )


def test_a_program_that_does_not_verify_is_not_run() -> None:
    program = identity("f32", 2)
    kind = tensor("f32", [2])
    wrong = Instruction(1, ElementwiseUnary(UnaryFn.NEG), (Ref(9),), kind)
    function = program.main
    broken = program.with_main(type(function)("main", (kind,), (0,), (kind,), (wrong,), (), (1,)))
    with pytest.raises(SpecViolation) as caught:
        weft.run(broken, [np.zeros(2, np.float32)])
    assert caught.value.code == "UseBeforeDefinition"


@pytest.mark.parametrize(
    ("dtype", "value"), [("ui64", -1), ("si64", 2**63), ("si64", 2.0**63), ("si8", 200)]
)
def test_lists_are_never_wrapped(dtype: str, value: float) -> None:
    b = Builder()
    program = b.build(b.param(dtype, [1]))
    with pytest.raises(UserError):
        weft.run(program, [[value]])


def test_what_is_not_a_program_or_a_backend_is_a_sentence() -> None:
    with pytest.raises(UserError, match="run takes a program, not str"):
        weft.run("foo", [])  # type: ignore[arg-type]
    b = Builder()
    program = b.build(b.param("f32", []))
    with pytest.raises(UserError, match="3 is neither the name of a backend nor"):
        weft.run(program, [1.0], backend=3)  # type: ignore[arg-type]
    assert weft.run(program, [1.0], seed=np.int64(1))[0] == 1.0  # type: ignore[arg-type]
