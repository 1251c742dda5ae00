"""DLPack between Weft and torch: every dtype both have, in both directions, and nobody writes into
a tensor of Weft."""

from __future__ import annotations

import numpy as np
import pytest

import weft

torch = pytest.importorskip("torch")

DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "float16", "bfloat16", "float32", "float64",
    "complex64", "complex128",
)  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_goes_both_ways(dtype: str) -> None:
    source = torch.tensor([[0, 1, 3], [5, 7, 2]]).to(getattr(torch, dtype))
    taken = weft.from_dlpack(source)
    assert taken.dtype is getattr(weft, dtype)
    back = torch.from_dlpack(taken)
    assert back.dtype == source.dtype
    assert torch.equal(back, source)
    wide = source.to(torch.complex128 if source.is_complex() else torch.float64)
    np.testing.assert_array_equal(np.asarray(taken).astype(wide.numpy().dtype), wide.numpy())


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_floats_of_eight_bits_go_both_ways(dtype: str) -> None:
    source = torch.tensor([0.0, 1.0, -2.0, 0.5]).to(getattr(torch, dtype))
    taken = weft.from_dlpack(source)
    assert taken.astype(weft.float32).tolist() == [0.0, 1.0, -2.0, 0.5]
    back = torch.from_dlpack(taken)
    assert back.dtype == source.dtype
    assert back.float().tolist() == [0.0, 1.0, -2.0, 0.5]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_torch_cannot_write_into_a_tensor(dtype: str) -> None:
    x = weft.asarray([1.0, 2.0, 3.0], dtype=dtype) + 0
    theirs = torch.from_dlpack(x)
    theirs[0] = 9
    assert x.tolist() == [1.0, 2.0, 3.0]


def test_a_view_with_strides_is_taken_over() -> None:
    source = torch.arange(12.0).reshape(3, 4).to(torch.bfloat16).T
    assert weft.from_dlpack(source).tolist() == source.tolist()


def test_asarray_takes_what_numpy_does_not_have() -> None:
    made = weft.asarray(torch.tensor([1.0, 2.5]).to(torch.bfloat16))
    assert made.dtype is weft.bfloat16
    assert made.tolist() == [1.0, 2.5]
