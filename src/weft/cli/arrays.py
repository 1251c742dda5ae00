"""Arrays in .npz files: how the inputs of a run come in and its outputs go out.

An archive holds one array for each flattened input or output. Arrays that have the names of the
inputs are taken by name, those named `arr_0`, `arr_1`, ... (as `numpy.savez` names them) by number,
others in the order of the file.
NumPy's format cannot name five dtypes; their arrays have a name that ends in the dtype, such as
`arr_0:bf16`, and hold

    bf16                  the bits, as uint16
    fp8_e4m3, fp8_e5m2    the bits, as uint8
    si4, ui4              the values, as int8 and uint8
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.foundation.dtypes import BF16, BY_NAME, FP8_E4M3, FP8_E5M2, SI4, UI4, DType, as_dtype
from weft.foundation.errors import UserError

Array = NDArray[Any]

STORED: dict[DType, np.dtype[Any]] = {
    BF16: np.dtype(np.uint16),
    FP8_E4M3: np.dtype(np.uint8),
    FP8_E5M2: np.dtype(np.uint8),
    SI4: np.dtype(np.int8),
    UI4: np.dtype(np.uint8),
}
"""What an .npz file holds for the dtypes that NumPy's format cannot name."""


def read_arrays(path: Path, inputs: Sequence[str] = ()) -> list[Array]:
    """The arrays of an .npz file, in the order of the inputs they are meant for: by the names of
    the inputs where the file has exactly these."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in _order_names(archive.files, inputs)}
    except (AttributeError, TypeError):
        raise UserError(
            f"{path} holds a single array; save a list of them with numpy.savez"
        ) from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None
    except Exception as error:
        # A damaged archive makes zipfile, zlib, tokenize and NumPy raise whatever comes to them.
        why = "it is not an .npz file" if "pickle" in str(error) else str(error)
        raise UserError(f"cannot read {path} as an .npz file of arrays: {why}") from None
    return [_decode(name, array) for name, array in arrays.items()]


def read_one(text: str) -> tuple[str, Array]:
    """The array of an .npy file, and the name of the input it is meant for, as in x=x.npy."""
    name, equals, path = text.rpartition("=")
    if not equals or not name or not path:
        raise UserError(f"--input takes NAME=FILE, such as x=x.npy, not {text!r}")
    try:
        found = np.load(path, allow_pickle=False)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None
    except Exception as error:
        raise UserError(f"cannot read {path} as an .npy file: {error}") from None
    if not isinstance(found, np.ndarray):
        raise UserError(f"{path} holds several arrays; give them with --inputs {path}")
    return name, found


def _order_names(names: Sequence[str], inputs: Sequence[str]) -> list[str]:
    if sorted(names) == sorted(inputs):
        return list(inputs)
    numbers = [re.fullmatch(r"arr_(\d+)(:\w+)?", name) for name in names]
    if not all(numbers):
        return list(names)
    return sorted(names, key=lambda name: int(name.removeprefix("arr_").partition(":")[0]))


def _decode(name: str, array: Array) -> Array:
    if not isinstance(array, np.ndarray):
        raise UserError(f"{name!r} in the .npz file is not an array; save arrays with numpy.savez")
    dtype = BY_NAME.get(name.rpartition(":")[2])
    if dtype is None or dtype not in STORED:
        if array.dtype.kind == "V":
            raise UserError(
                f"array {name!r} has lost its dtype, which the .npz format cannot name; save its "
                "bits under a name that ends in the dtype, as in 'arr_0:bf16' with .view('uint16')"
            )
        return array
    if array.dtype != STORED[dtype]:
        raise UserError(f"array {name!r} holds {array.dtype}, not {STORED[dtype]} as {dtype} needs")
    if dtype not in (SI4, UI4):
        return array.view(dtype.numpy)
    if array.size and (array.min() < dtype.lowest or array.max() > dtype.highest):
        raise UserError(f"array {name!r} has values that {dtype} cannot hold")
    return array.astype(dtype.numpy)


def write_arrays(path: Path, arrays: Sequence[Array]) -> None:
    """Write arrays as `arr_0`, `arr_1`, ...; `read` gives them back."""
    named = dict(_encode(index, array) for index, array in enumerate(arrays))
    try:
        with path.open("wb") as file:
            np.savez(file, allow_pickle=False, **named)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from None


def _encode(index: int, array: Array) -> tuple[str, Array]:
    dtype = as_dtype(array.dtype)
    if dtype not in STORED:
        return f"arr_{index}", array
    stored = array.astype(STORED[dtype]) if dtype in (SI4, UI4) else array.view(STORED[dtype])
    return f"arr_{index}:{dtype}", stored
