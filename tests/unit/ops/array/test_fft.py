"""Fourier transforms against NumPy: sizes with small and large factors, norms, padding."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import weft
from tests.unit.ops.array.arrays import data
from weft.foundation.dtypes import CF32, F32
from weft.foundation.errors import SpecViolation, UserError
from weft.ptir import Builder, fourier
from weft.ptir.types import TensorType

SIZES = [1, 2, 3, 5, 8, 12, 63, 64, 65, 67, 100, 128, 134, 210, 243, 360]
NORMS = ["backward", "ortho", "forward"]


def near(found: Any, expected: Any, scale: float = 1e-12) -> None:
    elements = found.numpy()
    assert elements.dtype == expected.dtype
    assert elements.shape == expected.shape
    limit = scale if expected.dtype in (np.float64, np.complex128) else scale * 1e7
    np.testing.assert_allclose(elements, expected, rtol=0, atol=limit * max(1, abs(expected).max()))


@pytest.mark.parametrize("n", SIZES)
def test_sizes(n: int) -> None:
    x = data("complex128", (2, n))
    near(weft.fft.fft(weft.asarray(x)), np.fft.fft(x))
    near(weft.fft.ifft(weft.asarray(x)), np.fft.ifft(x))
    near(weft.fft.rfft(weft.asarray(x.real)), np.fft.rfft(x.real))
    near(weft.fft.irfft(weft.asarray(x), n=n), np.fft.irfft(x, n=n))


@pytest.mark.parametrize("n", [8, 67, 360])
def test_roots_of_one_are_constants_with_the_bits_of_the_reference(
    n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short tables are no kernels of sines."""

    def roots() -> tuple[list[str], Any]:
        b = Builder("roots")
        one = b.param("cf32", [])
        made = fourier._roots(b, 8, 8, n, -1, CF32)
        program = b.build(made * one.broadcast_to(made.shape))
        ops = [instruction.op.name for instruction in program.main.body]
        return ops, weft.run(program, [np.complex64(1)], backend="reference")[0]

    ops, found = roots()
    assert not {"sin", "cos", "iota"}.intersection(ops)
    monkeypatch.setattr(fourier, "_LARGEST_TABLE", 0)
    ops, computed = roots()
    assert {"sin", "cos", "iota"} <= set(ops)
    np.testing.assert_array_equal(found, computed)


@pytest.mark.parametrize("n", [8, 67, 360, 4096])
@pytest.mark.parametrize("rows", [2, "B"])
def test_short_transforms_are_one_real_product_for_each_factor(n: int, rows: Any) -> None:
    """Long ones, and those of which nobody knows how many there are, are complex products."""
    b = Builder("transform")
    program = b.build(fourier.fourier_sums(b.param("cf32", [rows, n]), n, 1))
    x = data("complex64", (2, n))
    found = weft.run(program, [x], backend="reference")[0]
    near(weft.asarray(found), (np.fft.ifft(x) * n).astype(np.complex64))
    products = [i.output for i in program.main.body if i.op.name == "dot_general"]
    short = rows == 2 and n != 67
    dtypes = [kind.dtype for kind in products if isinstance(kind, TensorType)]
    assert dtypes == [F32 if short else CF32] * (1 + (n > 67))


@pytest.mark.parametrize(("n", "radix"), [(65, 13), (256, 16), (512, 32), (4096, 64), (8192, 64)])
def test_the_nearest_two_factors_are_taken(n: int, radix: int) -> None:
    """They cost least; the largest one goes first where two are not enough."""
    assert fourier._radix(n) == radix


def test_the_products_of_a_square_are_one_kernel() -> None:
    b = Builder("transform")
    program = b.build(fourier.fourier_sums(b.param("cf32", [1024]), 1024, 1))
    plans = json.loads(weft.compile(program, target="sm90").stages["plan"])["kernels"]
    products = [kernel for name, kernel in plans.items() if name.startswith("matmul")]
    assert len(products) == 2
    assert len(set(products)) == 1


@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"])
@pytest.mark.parametrize("norm", NORMS)
def test_one_axis(name: str, norm: Any) -> None:
    real = name in ("rfft", "ihfft")
    x = data("float64" if real else "complex128", (3, 6, 5))
    for axis in (0, 1, -1):
        for n in (None, 4, 9):
            options: Any = {"n": n, "axis": axis, "norm": norm}
            near(getattr(weft.fft, name)(weft.asarray(x), **options),
                 getattr(np.fft, name)(x, **options))  # fmt: skip


@pytest.mark.parametrize("name", ["fftn", "ifftn", "rfftn", "irfftn"])
@pytest.mark.parametrize("norm", NORMS)
def test_several_axes(name: str, norm: Any) -> None:
    x = data("float64" if name == "rfftn" else "complex128", (3, 4, 5))
    for s, axes in [(None, None), (None, (0, 2)), ((4, 3), (1, 2)), ((2, 6, 4), (0, 1, 2))]:
        options: Any = {"s": s, "axes": axes, "norm": norm}
        near(getattr(weft.fft, name)(weft.asarray(x), **options),
             getattr(np.fft, name)(x, **options))  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "result"),
    [("float32", "complex64"), ("int32", "complex64"), ("complex64", "complex64"),
     ("float64", "complex128")],
)  # fmt: skip
def test_dtypes(dtype: str, result: str) -> None:
    x = data(dtype, (7,))
    near(weft.fft.fft(weft.asarray(x)), np.fft.fft(x).astype(result))


@pytest.mark.parametrize("n", [1, 2, 5, 8])
@pytest.mark.parametrize("d", [1.0, 0.25])
def test_frequencies(n: int, d: float) -> None:
    near(weft.fft.fftfreq(n, d=d), np.fft.fftfreq(n, d).astype(np.float32))
    near(weft.fft.rfftfreq(n, d=d, dtype=weft.float64), np.fft.rfftfreq(n, d))


@pytest.mark.parametrize("axes", [None, 0, (0, 1), -1])
def test_shifts(axes: Any) -> None:
    x = data("float64", (4, 5))
    near(weft.fft.fftshift(weft.asarray(x), axes=axes), np.fft.fftshift(x, axes))
    near(weft.fft.ifftshift(weft.asarray(x), axes=axes), np.fft.ifftshift(x, axes))


def test_mistakes() -> None:
    x = weft.ones(4)
    with pytest.raises(UserError, match="norm is 'other'; it can be 'backward'"):
        weft.fft.fft(x, norm="other")
    with pytest.raises(SpecViolation, match="at least one element, not 0"):
        weft.fft.fft(x, n=0)
    with pytest.raises(SpecViolation, match="cf32 is given where a real one is wanted"):
        weft.fft.rfft(weft.asarray([1j]))
    with pytest.raises(UserError, match="2 sizes do not go with 1 axes"):
        weft.fft.fftn(x, s=(2, 2), axes=(0,))
    with pytest.raises(SpecViolation, match="n is 0"):
        weft.fft.fftfreq(0)
