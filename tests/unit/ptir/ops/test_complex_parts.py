"""Complex parts against the bytes: a complex element is its real part followed by its imaginary."""

from __future__ import annotations

import numpy as np

from tests.support.cases import each
from tests.support.one_op import Array, apply, bits, by_name, infer, random_array
from weft.foundation.dtypes import CF32, CF64, COMPLEX, F32, F64, DType
from weft.ptir.ops import complex_parts as c
from weft.ptir.types import tensor

PART = {CF32: F32, CF64: F64}


def values(dtype: DType) -> Array:
    """Random values, and every pair of special parts."""
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1.5], PART[dtype].numpy)
    pairs = np.stack([a.reshape(-1) for a in np.meshgrid(special, special)], axis=-1)
    random = random_array(dtype, (30,)).view(PART[dtype].numpy).reshape(-1, 2)
    return np.concatenate([pairs, random]).reshape(-1).view(dtype.numpy)


def split(x: Array, dtype: DType) -> tuple[Array, Array]:
    both = x.view(PART[dtype].numpy).reshape(*x.shape, 2)
    return both[..., 0], both[..., 1]


@each("dtype", by_name(COMPLEX))
def test_real_and_imag_are_the_stored_halves(dtype: DType) -> None:
    x = values(dtype)
    real, imag = split(x, dtype)
    assert bits(apply(c.Real(), x)) == bits(real)
    assert bits(apply(c.Imag(), x)) == bits(imag)


@each("dtype", by_name(COMPLEX))
def test_complex_stores_both_parts_untouched(dtype: DType) -> None:
    x = values(dtype)
    assert bits(apply(c.Complex(), *split(x, dtype))) == bits(x)


@each("dtype", by_name(COMPLEX))
def test_conj_flips_only_the_sign_of_the_imaginary_part(dtype: DType) -> None:
    x = values(dtype)
    real, imag = split(x, dtype)
    out_real, out_imag = split(apply(c.Conj(), x), dtype)
    assert bits(out_real) == bits(real)
    np.testing.assert_array_equal(np.signbit(out_imag), ~np.signbit(imag))
    np.testing.assert_array_equal(np.abs(out_imag), np.abs(imag))


@each("dtype", by_name(COMPLEX))
def test_views_scalars_and_empty_tensors(dtype: DType) -> None:
    x = random_array(dtype, (3, 4))
    x.flags.writeable = False
    before = bits(x)
    for view in (x.T[::2], np.broadcast_to(x[:1], (2, 4)), np.asarray(x[1, 1]), x[:, :0]):
        dense = view.copy()
        real, imag = split(dense.reshape(-1), dtype)
        assert bits(apply(c.Real(), view)) == bits(real)
        assert bits(apply(c.Imag(), view)) == bits(imag)
        assert bits(apply(c.Conj(), view)) == bits(dense.real - 1j * dense.imag)
        assert bits(apply(c.Complex(), view.real, view.imag)) == bits(dense)
    apply(c.Real(), x)[...] = 0
    assert bits(x) == before


def test_types() -> None:
    z = tensor("cf32", ["B", 2])
    assert str(infer(c.Real(), z)) == "f32[?B, 2]"
    assert str(infer(c.Imag(), tensor("cf64"))) == "f64[]"
    assert str(infer(c.Conj(), z)) == "cf32[?B, 2]"
    assert str(infer(c.Complex(), tensor("f64", [3]), tensor("f64", [3]))) == "cf64[3]"
