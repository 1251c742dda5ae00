"""Factorisations and triangular systems of real matrices, by compiled code that the host calls
(`codegen.cpu.matrices`); what each op means is said where it is defined.

The code wants rows that are filled up with zeros, so that matrices are copied, and what is wanted
of the results is copied out.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Collection, Sequence
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from weft.codegen.cpu.matrices.factors import FEW_ROWS
from weft.codegen.cpu.matrices.function import NARROW, WIDE
from weft.codegen.cpu.matrices.module import ENTRIES, module_text
from weft.codegen.cpu.matrices.product import PACKED
from weft.foundation.whole_numbers import round_up
from weft.ptir.op import Op
from weft.ptir.ops.linear_algebra import Cholesky, Lu, TriangularSolve, not_positive_definite
from weft.runtime.host_memory import address_of
from weft.runtime.jit import Library, object_code
from weft.target.cpu import host

Array = NDArray[Any]
_TURN: Final = 512
"""Bytes: rows that lie whole multiples apart have few places in the cache."""
_SCALARS: Final = {np.dtype(np.float32): "float", np.dtype(np.float64): "double"}


def computed(op: Op, arrays: Sequence[Array], wanted: Collection[int]) -> list[Array] | None:
    """All results of an op; those that are not wanted may hold anything. None for an op, or a
    dtype, that has no code here."""
    if not all(array.size for array in arrays):
        return None
    match op:
        case TriangularSolve() if arrays[0].dtype.kind != "c":
            return [_triangular_solve(op, *arrays)]
        case Lu() if arrays[0].dtype in _SCALARS:
            return _lu(arrays[0], wanted)
        case Cholesky() if arrays[0].dtype in _SCALARS:
            return [_cholesky(arrays[0], op.upper)]
    return None


@cache
def _library(scalar: str) -> Library:
    limits = host().limits
    text = module_text(scalar, limits.vector_bits, limits.vector_registers)
    code, _ = object_code(text)
    return Library([code], list(ENTRIES))


@cache
def _function(dtype: np.dtype[Any], name: str, numbers: int, places: int) -> Callable[..., None]:
    kinds = [ctypes.c_int64] * numbers + [ctypes.c_void_p] * places
    address = _library(_SCALARS[dtype]).address(name)
    return ctypes.CFUNCTYPE(None, *kinds)(address)


def _run_function(dtype: np.dtype[Any], name: str, numbers: Sequence[int], *arrays: Array) -> None:
    places = [address_of(array) for array in arrays]
    _function(dtype, name, len(numbers), len(places))(*numbers, *places)


def _packing_memory(dtype: np.dtype[Any]) -> Array:
    """Memory in which products pack columns."""
    return np.empty(PACKED, dtype)


def _stack(x: Array) -> Array:
    return x.reshape(math.prod(x.shape[:-2]), *x.shape[-2:])


def _fill_rows(stack: Array, widths: Sequence[int] = NARROW) -> Array:
    """A copy with rows of one of some widths, or of whole multiples of 16."""
    count, rows, columns = stack.shape
    wide = next((wide for wide in widths if columns <= wide), round_up(columns, WIDE))
    if wide * stack.itemsize % _TURN == 0:
        wide += WIDE
    copy = np.empty((count, rows, wide), stack.dtype)
    copy[:, :, :columns] = stack
    copy[:, :, columns:] = 0
    return copy


def _lu(x: Array, wanted: Collection[int]) -> list[Array]:
    stack = _stack(x)
    count, m, n = stack.shape
    work, k = _fill_rows(stack), min(m, n)
    order = np.empty((count, m), np.int32)
    order[...] = np.arange(m, dtype=np.int32)
    _run_function(
        x.dtype,
        "lu",
        (count, m, n, work.shape[-1]),
        work,
        order,
        np.empty_like(order[0]),
        _packing_memory(x.dtype),
    )
    lower = _triangle(work, "below", m, k) if 1 in wanted else np.empty((count, m, k), x.dtype)
    upper = _triangle(work, "above", k, n) if 2 in wanted else np.empty((count, k, n), x.dtype)
    return [part.reshape(*x.shape[:-2], *part.shape[1:]) for part in (order, lower, upper)]


def _triangle(work: Array, name: str, rows: int, columns: int) -> Array:
    """A triangle of each matrix, and zeros."""
    part = np.empty((len(work), rows, columns), work.dtype)
    _run_function(work.dtype, name, (len(work), rows, columns, *work.shape[1:]), work, part)
    return part


def _cholesky(x: Array, upper: bool) -> Array:
    stack = _stack(x)
    count, n, _ = stack.shape
    # The code reads and makes the upper triangle.
    work = _fill_rows(stack if upper else np.swapaxes(stack, 1, 2))
    failed = np.zeros(count, np.int8)
    _run_function(
        x.dtype, "cholesky", (count, n, work.shape[-1]), work, failed, _packing_memory(x.dtype)
    )
    if failed.any():
        raise not_positive_definite(int(np.argmax(failed)), x.shape[:-2])
    factor = _triangle(work, "above", n, n)
    return np.reshape(factor if upper else np.swapaxes(factor, 1, 2), x.shape)


def _triangular_solve(op: TriangularSolve, a: Array, b: Array) -> Array:
    wide = b.dtype if b.dtype in _SCALARS else np.dtype(np.float32)
    t, x = _stack(np.ascontiguousarray(a, wide)), _stack(b.astype(wide))
    x = np.ascontiguousarray(x) if a.shape[-1] <= FEW_ROWS else _fill_rows(x, ())
    count, rows, columns = x.shape
    strides = (1, rows) if op.transpose else (rows, 1)
    way = 1 if op.lower != op.transpose else -1
    numbers = (count, rows, columns, way, int(op.unit_diagonal), rows * rows, *strides)
    _run_function(wide, "triangular_solve", numbers, t, x, _packing_memory(wide))
    return x[:, :, : b.shape[-1]].reshape(b.shape).astype(b.dtype, copy=False)
