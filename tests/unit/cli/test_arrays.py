"""Archives of arrays: dtypes that NumPy's format cannot name, and members that are none."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import weft
from tests.support.cases import each
from weft.cli import arrays
from weft.foundation.dtypes import ALL, DType


@each("dtype", ALL)
@each("shape", [(), (3,), (0, 2)])
def test_every_dtype_goes_through_an_archive(
    tmp_path: Path, dtype: DType, shape: tuple[int, ...]
) -> None:
    array = np.asarray(np.resize([0, 1, 7], shape)).astype(dtype.numpy)
    arrays.write_arrays(tmp_path / "a.npz", [array, array])
    first, second = arrays.read_arrays(tmp_path / "a.npz")
    for read in (first, second):
        assert (read.dtype, read.shape) == (dtype.numpy, shape)
        assert read.tobytes() == array.tobytes()


def test_the_bits_have_the_documented_form(tmp_path: Path) -> None:
    given = [
        np.array([1.0, -2.0], ml_dtypes.bfloat16),
        np.array([1.0], ml_dtypes.float8_e4m3fn),
        np.array([-8, 7], ml_dtypes.int4),
    ]
    arrays.write_arrays(tmp_path / "a.npz", given)
    with np.load(tmp_path / "a.npz") as archive:
        assert archive.files == ["arr_0:bf16", "arr_1:fp8_e4m3", "arr_2:si4"]
        assert archive["arr_0:bf16"].tolist() == [0x3F80, 0xC000]
        assert archive["arr_0:bf16"].dtype == np.uint16
        assert archive["arr_1:fp8_e4m3"].tolist() == [0x38]
        assert archive["arr_2:si4"].tolist() == [-8, 7]
        assert archive["arr_2:si4"].dtype == np.int8


def test_arrays_come_by_number_or_in_file_order(tmp_path: Path) -> None:
    numbered = {f"arr_{n}": np.int32(n) for n in (10, 2, 0)}
    np.savez(tmp_path / "a.npz", **numbered)  # type: ignore[arg-type]
    assert [int(a) for a in arrays.read_arrays(tmp_path / "a.npz")] == [0, 2, 10]
    np.savez(tmp_path / "b.npz", zebra=np.int32(1), ant=np.int32(2))
    assert [int(a) for a in arrays.read_arrays(tmp_path / "b.npz")] == [1, 2]


@pytest.mark.parametrize(
    ("name", "array", "sentence"),
    [
        ("x", np.zeros(2, ml_dtypes.bfloat16), "array 'x' has lost its dtype"),
        ("x:bf16", np.zeros(2, np.float32), "array 'x:bf16' holds float32, not uint16"),
        ("x:ui4", np.array([16], np.uint8), "array 'x:ui4' has values that ui4 cannot hold"),
    ],
)
def test_wrong_bits_are_refused(tmp_path: Path, name: str, array: Any, sentence: str) -> None:
    np.savez(tmp_path / "a.npz", **{name: array})
    with pytest.raises(weft.UserError, match=sentence):
        arrays.read_arrays(tmp_path / "a.npz")


def test_a_member_of_an_archive_that_is_no_array_is_told(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as file:
        file.writestr("notes.txt", "no array")
    with pytest.raises(
        weft.UserError, match=r"'notes.txt' in the .npz file is not an array; save arrays"
    ):
        arrays.read_arrays(tmp_path / "a.npz")
