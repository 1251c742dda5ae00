"""Python numbers with fractions under `jit` mean what they mean without: a function gives the same
with it and without it, whatever tensors its numbers meet."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import weft
from tests.support.cases import each
from tests.support.one_op import assert_ulp
from weft import SpecViolation, functional
from weft.ptir.verify import verify

DTYPES = [weft.float16, weft.bfloat16, weft.float32, weft.float64]
BACKENDS = ["reference", "cpu"]
FUNCTIONS: dict[str, Any] = {
    "beside a tensor": lambda x, n, m: x * n + m,
    "before a tensor": lambda x, n, m: n - x / m,
    "computed": lambda x, n, m: x * (n * m / 3 - 0.1),
    "of whole numbers": lambda x, n, m: x * ((n > 0) + 1) / (7 - m),
    "large on the way": lambda x, n, m: x * (n * 1e30 * 1e30 / 1e60),
    "small on the way": lambda x, n, m: x * (n * 1e-30 * 1e-30 * 1e60),
    "signs": lambda x, n, m: x * -n + abs(-m) + (+n),
    "quotient and rest": lambda x, n, m: x * (n // 0.03) + n % 0.03,
    "power": lambda x, n, m: x * n**0.3,
    "compared": lambda x, n, m: weft.where(x < n * m, x * n, x * m),
    "chosen": lambda x, n, m: weft.where(x > n, n, m),
    "chosen beside": lambda x, n, m: weft.where(x > n, x, m * n),
    "bounds": lambda x, n, m: weft.clip(x, n, m),
    "made a tensor": lambda x, n, m: x * weft.asarray(n),
    "made a tensor of a dtype": lambda x, n, m: x * weft.asarray(n, dtype=weft.float64),
    "repeated": lambda x, n, m: x + weft.full((4,), n),
    "repeated in a dtype": lambda x, n, m: x + weft.full_like(x, n),
    "in a list": lambda x, n, m: weft.asarray([n, m, 1.0, n]) + x,
    "dtype asked for": lambda x, n, m: x.astype(weft.result_type(x, n)),
    "complex": lambda x, n, m: (x * (n + 2j)).imag,
    "in a branch": lambda x, n, m: weft.cond(x[0] > 0, lambda y: y * n, lambda y: y + n, x),
    "carried": lambda x, n, m: weft.while_loop(
        lambda c: c[0] < 1.0, lambda c: (c[0] + m, c[1] * m), (n, x)
    )[1],
    "beside a gradient": lambda x, n, m: weft.grad(lambda y: (y * n * m).sum())(x),
    "of a gradient": lambda x, n, m: weft.grad(lambda y, s: (y * s).sum())(x, n),
    "mapped": lambda x, n, m: weft.vmap(lambda y, s: y * s, in_axes=(0, None))(x, n),
}  # fmt: skip


def assigned(x: Any, n: Any, m: Any) -> Any:
    y = x + 0
    y[1] = n / m
    y += m
    return y


FUNCTIONS["assigned"] = assigned


@each("dtype", DTYPES)
@each("name", FUNCTIONS)
def test_with_jit_and_without(name: str, dtype: Any) -> None:
    function = FUNCTIONS[name]
    x = weft.asarray([-1.5, 0.2, 0.1, 3.0], dtype=dtype)
    expected, f = function(x, 0.1, 0.7), weft.jit(function)
    found = f(x, 0.1, 0.7)
    assert found.dtype is expected.dtype
    if name == "power":
        # Python's power and NumPy's need not be rounded alike.
        assert_ulp(found.numpy(), expected.numpy(), 2)
    else:
        np.testing.assert_array_equal(found.numpy(), expected.numpy())
    f(x, 0.25, 0.5)
    assert len(f.versions) == 1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_number_is_rounded_once(dtype: Any, backend: str) -> None:
    rng = np.random.default_rng(5)
    bits = dtype.numpy.itemsize * 8
    halfway = [1 + 2.0**-e + d for e in (8, 9, 11, 12, 24, 25) for d in (0, 2.0**-40, -(2.0**-40))]
    numbers = [*rng.normal(size=20).tolist(), *halfway, 0.1, 1e-7, 65519.9, math.inf, -0.0]
    f = weft.jit(lambda x, n: x * n)
    x = weft.ones((1,), dtype=dtype).to(backend)
    for number in numbers:
        found, expected = f(x, number).numpy(), (x * number).numpy()
        assert found.tobytes() == expected.tobytes(), (number, bits)


RETURNED: list[tuple[Any, float]] = [
    (lambda n: n, 0.1),
    (lambda n: n * n, 1e30),
    (lambda n: n * n, 1e-30),
    (lambda n: 1 / n, 3),
    (lambda n: (n + 0.1) // 0.01, 0.3),
    (lambda n: n * 2j, 0.1),
]


@pytest.mark.parametrize(("function", "number"), RETURNED)
def test_a_number_that_is_returned(function: Any, number: Any) -> None:
    found = weft.jit(function)(number)
    assert found.item() == function(number)


def test_a_returned_number_takes_the_dtype_beside_it() -> None:
    rate = weft.jit(lambda base, step: base * 0.5 ** (step / 10))(0.1, 3)
    assert rate.item() == 0.1 * 0.5 ** (3 / 10)
    for dtype in DTYPES:
        x = weft.ones((2,), dtype=dtype)
        expected = x * rate.item()
        for found in (x * rate, weft.jit(lambda x, r: x * r)(x, rate)):
            assert found.dtype is dtype
            np.testing.assert_array_equal(found.numpy(), expected.numpy())
    assert weft.asarray(rate).dtype is weft.float32
    assert (rate * 2).item() == rate.item() * 2


def test_the_program_shows_where_a_number_meets_a_tensor() -> None:
    program = weft.jit(lambda x, n: x * (n * n)).program(weft.ones((3,)), 0.5)
    verify(program)
    body = [(i.op.mnemonic, str(i.output)) for i in program.main.body]
    assert [str(kind) for kind in program.main.parameters] == ["f32[3]", "f64[]"]
    assert body[:2] == [("mul", "f64[]"), ("cast", "f32[]")]
    assert body[-1] == ("mul", "f32[3]")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_numbers_beside_what_is_differentiated_or_mapped_stay_numbers(dtype: Any) -> None:
    x = weft.asarray([-1.5, 0.2, 0.1, 3.0], dtype=dtype)
    slope = weft.grad(lambda x, s: (x * s).sum())(x, 0.1)
    mapped = weft.vmap(lambda x, s: x * s, in_axes=(0, None))(x, 0.1)
    assert slope.dtype is mapped.dtype is dtype
    np.testing.assert_array_equal(slope.numpy(), (weft.ones_like(x) * 0.1).numpy())
    np.testing.assert_array_equal(mapped.numpy(), (x * 0.1).numpy())
    assert weft.grad(lambda s: s * s)(0.5).item() == 1.0


def test_a_traced_number_is_no_setting() -> None:
    f = weft.jit(lambda x, eps: functional.layer_norm(x, eps=eps))
    with pytest.raises(SpecViolation, match=r"\[layer_norm\] eps is .* where static= names it"):
        f(weft.ones((2,)), 1e-5)
