"""A failing program as a short Python script that anyone with Weft can run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.driver.backends import DEFAULT
from weft.foundation.dtypes import DType, as_dtype
from weft.ptir.ir import Program
from weft.ptir.text import print_program

Array = NDArray[Any]

_SHORT = 64
"""Arrays of more elements are written as bytes."""

_SCRIPT = '''\
"""{title}"""

import weft
from weft.testing import array_of, compare

program = weft.ptir.loads({text})
inputs = [{inputs}]

report = compare(program, inputs, {backend!r}, seed={seed})
print(report)
raise SystemExit(not report.agrees)
'''


def reproducer(
    program: Program, inputs: Sequence[Any], backend: str = DEFAULT, *, seed: int = 0
) -> str:
    """A script that compares a backend with the reference on this program and these inputs. It
    prints the report and exits with 1 if they differ."""
    arrays = "".join(f"\n    {_array(np.asarray(array))}," for array in inputs)
    return _SCRIPT.format(
        title=f"Does {backend.replace(chr(34), '')} agree with the reference here?",
        text=_quote_text(print_program(program)),
        inputs=arrays + ("\n" if arrays else ""),
        backend=backend,
        seed=seed,
    )


def _quote_text(text: str) -> str:
    """Text as a Python literal, over several lines where that is safe."""
    plain = "'''" not in text and "\\" not in text
    return f"'''\\\n{text}'''" if plain else repr(text)


def _array(array: Array) -> str:
    dtype = as_dtype(array.dtype)
    shape = list(array.shape)
    if array.size <= _SHORT and _is_decimal(array, dtype):
        return f"array_of({dtype.name!r}, {shape}, {_python_numbers(array, dtype)})"
    return f"array_of({dtype.name!r}, {shape}, {np.ascontiguousarray(array).tobytes().hex()!r})"


def _is_decimal(array: Array, dtype: DType) -> bool:
    """Whether decimal numbers say it all: finite, and not of the signed zeros."""
    if dtype.is_complex:
        return False
    wide = array.astype(np.float64) if dtype.is_float else array
    return not dtype.is_float or bool(np.all(np.isfinite(wide) & ~((wide == 0) & np.signbit(wide))))


def _python_numbers(array: Array, dtype: DType) -> list[Any]:
    flat = array.reshape(-1)
    if dtype.is_float:
        return [float(value) for value in flat]
    return [bool(value) if dtype.bits == 1 else int(value) for value in flat]


def array_of(dtype: str, shape: Sequence[int], values: Sequence[Any] | str) -> Array:
    """An array from numbers in row-major order, or from its bytes in hex."""
    kind = as_dtype(dtype)
    if isinstance(values, str):
        flat = np.frombuffer(bytearray.fromhex(values), np.uint8).view(kind.numpy)
    else:
        wide: Any = np.float64 if kind.is_float else object if kind.bits == 64 else None
        flat = np.asarray(values, wide if len(values) else np.float64).astype(kind.numpy)
    return flat.reshape(tuple(shape))
