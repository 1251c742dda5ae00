"""Elementwise operations on integers and on complex numbers where these differ from floats, against
StableHLO's own interpreter and NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import weft

pytest.importorskip("jaxlib", reason="the extra weft[stablehlo] is not installed")

from tests.support.stablehlo_oracle import Array, check, function
from weft.interop import stablehlo
from weft.ptir.gradient import vjp

ELEMENTS = {"complex64": "complex<f32>", "float32": "f32", "int32": "i32"}
Z = np.array([1.5 + 2.5j, 1.5 + 7.5j, 0 + 1.5j, 3 - 4j, -2 + 0j, -1 - 1j], np.complex64)
W = np.array([7.5 + 1.5j, 1.5 + 2.5j, 0 + 2.5j, 3 - 4j, -2 - 1j, 5 - 0.5j], np.complex64)
BASES = np.array([-1, -1, -3, 1, -3, 0, -1, -(2**31), 2, 7, -1], np.int32)
POWERS = np.array([1, 0, -3, -3, 3, 2, -2, -1, -1, 3, -(2**31)], np.int32)


def module(name: str, *inputs: Array) -> str:
    kind = f"tensor<{len(inputs[0])}x{ELEMENTS[str(inputs[0].dtype)]}>"
    names = [f"%x{index}" for index in range(len(inputs))]
    types = ", ".join(kind for _ in names)
    body = f'%0 = "stablehlo.{name}"({", ".join(names)}) : ({types}) -> {kind}'
    return function(", ".join(f"{n}: {kind}" for n in names), body, f"%0 : {kind}")


def computed(name: str, *inputs: Array) -> Array:
    """What it gives, also after it was written and read again."""
    program = stablehlo.loads(module(name, *inputs))
    weft.ptir.verify(program)
    (found,) = weft.run(program, list(inputs), backend="reference")
    again = stablehlo.loads(stablehlo.dumps(program))
    np.testing.assert_array_equal(weft.run(again, list(inputs), backend="reference")[0], found)
    return found


def test_complex_numbers_are_ordered_by_their_parts() -> None:
    assert np.array_equal(computed("maximum", Z, W), np.maximum(Z, W))
    assert np.array_equal(computed("minimum", Z, W), np.minimum(Z, W))


def test_the_angle_of_complex_numbers() -> None:
    np.testing.assert_allclose(np.tan(computed("atan2", Z, W)), Z / W, rtol=1e-4, atol=1e-5)


def test_the_cube_root_of_complex_numbers_is_the_principal_one() -> None:
    found = computed("cbrt", Z)
    np.testing.assert_allclose(found**3, Z, rtol=1e-5, atol=1e-5)
    assert (np.abs(np.angle(found)) <= np.pi / 3 + 1e-6).all()


def test_the_square_of_large_complex_numbers() -> None:
    """Parts that cancel do so before they overflow; infinities make what they make in XLA."""
    z = np.array([3e19 + 3e19j, 3e38 - 3e38j, 1.5e19 + 2e19j, 1 + 3e19j, 1.0000001 + 1j], "c8")
    z = np.append(z, np.array([complex(np.inf, 1), complex(np.inf, np.inf)], "c8"))
    text = module("square", z).replace("stablehlo.square", "chlo.square")
    wanted = [0, 0, -1.75e38, -np.inf, 2.3841858e-07, np.inf, np.nan]
    for backend in ("reference", "cpu"):
        (found,) = weft.run(stablehlo.loads(text), [z], backend=backend)
        np.testing.assert_allclose(found.real, np.asarray(wanted, "f4"), rtol=1e-6)
        np.testing.assert_allclose(found.imag[3:5], [6e19, 2.0000002], rtol=1e-6)
        assert found.imag[:3].tolist() == [np.inf, -np.inf, np.inf]


def test_the_gradient_of_a_square_where_its_parts_are_equal() -> None:
    z = np.array([3 + 3j, 2 - 2j, 0j], np.complex64)
    text = module("square", z).replace("stablehlo.square", "chlo.square")
    square = vjp(stablehlo.loads(text), 0, of=0)
    _, found = weft.run(square, [z, np.ones(3, np.complex64)], backend="reference")
    np.testing.assert_allclose(np.abs(found), np.abs(2 * z))


@pytest.mark.parametrize("name", ["real", "imag"])
def test_the_parts_of_real_numbers(name: str) -> None:
    x = np.array([1.5, -2.0, 0.0, np.inf], np.float32)
    check(module(name, x), x)


def test_integers_to_negative_powers() -> None:
    check(module("power", BASES, POWERS), BASES, POWERS)
    assert computed("power", BASES, POWERS)[[2, 3, 6, 8, 10]].tolist() == [0, 1, 1, 0, 1]


def test_a_power_that_is_known_to_be_positive_is_one_instruction() -> None:
    kind = "tensor<4xi32>"
    body = f"%c = stablehlo.constant dense<3> : {kind}\n%0 = stablehlo.power %x, %c : {kind}"
    program = stablehlo.loads(function(f"%x: {kind}", body, f"%0 : {kind}"))
    assert [instruction.op.mnemonic for instruction in program.main.body] == ["pow"]
