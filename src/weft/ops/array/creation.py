"""Tensors from data, from numbers and from counting. What can be said in a few instructions is not
stored: `zeros` is a broadcast, `arange` and `eye` count."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

from weft.foundation.dims import Shape, Symbol, shape_of
from weft.foundation.dtypes import CF64, F64, I1, SI64, UI64, DType
from weft.foundation.errors import OutOfRange, SizeWanted, SpecViolation, UserError
from weft.foundation.lines import user_line
from weft.ops.arithmetic import as_tensor, listed
from weft.ops.array.conversion import converted, home
from weft.ops.array.data_types import dtype_named
from weft.ops.array.linear_algebra import check_matrices
from weft.ops.array.operands import given, taken
from weft.ops.calls import public
from weft.ops.capture_recipes import recorded
from weft.ops.numbers import Number, is_number, number, number_type, widest
from weft.ops.promotion import DEFAULT_FLOAT, DEFAULT_INTEGER, DEFAULTS
from weft.ops.session import Handle, Session
from weft.ops.tensor import Tensor, tensor_method

__all__ = [
    "arange", "asarray", "empty", "empty_like", "eye", "full", "full_like", "linspace", "meshgrid",
    "ones", "ones_like", "tensor", "tril", "triu", "zeros", "zeros_like",
]  # fmt: skip


# -- from data -----------------------------------------------------------------------------------


@public
def asarray(
    obj: Any, /, *, dtype: Any = None, device: str | None = None, copy: bool | None = None
) -> Tensor:
    """A tensor from a tensor, an array, a number, or nested lists of numbers or tensors.

    Python floats become the default float, ints the default integer. An array is copied, unless
    `copy` is False: then the tensor shares its memory, and nobody may write to it any more.
    """
    return converted(obj, None if dtype is None else dtype_named(dtype), device, copy)


@public
def tensor(
    obj: Any, dtype: Any = None, *, device: str | None = None, requires_grad: bool = False
) -> Tensor:
    """A new tensor with the elements of `obj`, which may be whatever `asarray` takes."""
    made = converted(obj, None if dtype is None else dtype_named(dtype), device, copy=True)
    made.requires_grad = requires_grad
    return made


# -- from numbers --------------------------------------------------------------------------------


def _shape_from(shape: Any) -> Shape:
    return shape_of((shape,) if isinstance(shape, int) else shape)


def _fill_shape(shape: Shape, value: Number, dtype: DType, device: str | None) -> Tensor:
    session = Session(home(device), user_line())
    return session.export(
        Handle(session, session.arena.constant(number(value, dtype))).broadcast_to(shape)
    )


@public
def full(shape: Any, fill_value: Number, *, dtype: Any = None, device: str | None = None) -> Tensor:
    """The same number everywhere."""
    if isinstance(fill_value, Tensor) and not fill_value.shape:
        value = as_tensor(fill_value) if dtype is None else fill_value.astype(dtype)
        return given(taken(value).broadcast_to(_shape_from(shape)), value)
    if not is_number(fill_value):
        raise UserError(f"fill_value must be a number, not {type(fill_value).__name__}")
    wanted = DEFAULTS[number_type(fill_value)] if dtype is None else dtype_named(dtype)
    return _fill_shape(_shape_from(shape), fill_value, wanted, device)


@public
def zeros(shape: Any, *, dtype: Any = None, device: str | None = None) -> Tensor:
    """Zeros."""
    return _fill_shape(_shape_from(shape), 0, dtype_named(dtype or DEFAULT_FLOAT), device)


@public
def ones(shape: Any, *, dtype: Any = None, device: str | None = None) -> Tensor:
    """Ones."""
    return _fill_shape(_shape_from(shape), 1, dtype_named(dtype or DEFAULT_FLOAT), device)


@public
def empty(shape: Any, *, dtype: Any = None, device: str | None = None) -> Tensor:
    """A tensor whose elements do not matter; they are zeros."""
    return _fill_shape(_shape_from(shape), 0, dtype_named(dtype or DEFAULT_FLOAT), device)


@tensor_method
@public
def full_like(
    x: Tensor, /, fill_value: Number, *, dtype: Any = None, device: str | None = None
) -> Tensor:
    """The same number everywhere, in the shape and dtype of `x`."""
    value = as_tensor(x)
    return full(value.shape, fill_value, dtype=dtype or value.dtype, device=device or value.device)


@tensor_method
@public
def zeros_like(x: Tensor, /, *, dtype: Any = None, device: str | None = None) -> Tensor:
    """Zeros in the shape and dtype of `x`."""
    return full_like(x, 0, dtype=dtype, device=device)


@tensor_method
@public
def ones_like(x: Tensor, /, *, dtype: Any = None, device: str | None = None) -> Tensor:
    """Ones in the shape and dtype of `x`."""
    return full_like(x, 1, dtype=dtype, device=device)


@tensor_method
@public
def empty_like(x: Tensor, /, *, dtype: Any = None, device: str | None = None) -> Tensor:
    """A tensor like `x` whose elements do not matter; they are zeros."""
    return full_like(x, 0, dtype=dtype, device=device)


# -- counting ------------------------------------------------------------------------------------


@public
def arange(
    start: float,
    /,
    stop: float | None = None,
    step: float = 1,
    *,
    dtype: Any = None,
    device: str | None = None,
) -> Tensor:
    """Numbers from `start` up to, and without, `stop`, `step` apart; `arange(n)` counts from 0.
    Where `n` is the open size of a traced axis, so is the size of the result."""
    first, last = (0, start) if stop is None else (start, stop)
    given_numbers = [first, last, step]
    numbers = [n for n in given_numbers if not isinstance(n, Symbol)]
    if not all(is_number(n) and not isinstance(n, complex) for n in numbers):
        raise UserError(f"start, stop and step must be real numbers, not {tuple(given_numbers)}")
    natural = DEFAULT_FLOAT if float in map(number_type, numbers) else DEFAULT_INTEGER
    wanted = natural if dtype is None else dtype_named(dtype)
    if len(numbers) < len(given_numbers):
        return _counted_open(first, last, step, wanted, device)
    size = _step_count(first, last, step)
    session = Session(home(device), user_line())
    if all(isinstance(n, int) for n in given_numbers) and wanted.is_integer:
        return session.export(_count_integers(session, int(first), int(step), size, wanted))
    return session.export(_space_evenly(session, float(first), float(step), size, F64).cast(wanted))


def _counted_open(first: Any, last: Any, step: Any, dtype: DType, device: str | None) -> Tensor:
    """0 and on, as many numbers as an open dim has elements."""
    if not isinstance(last, Symbol) or (first, step) != (0, 1):
        given = ", ".join(str(n) for n in (first, last, step))
        raise SizeWanted(
            "DynamicDimensionMismatch",
            f"arange({given}) has a size that is computed from an open one",
            "count from 0 in steps of 1, and compute with the numbers",
        )
    session = Session(home(device), user_line())
    wide = SI64 if dtype.is_integer else F64
    return session.export(session.iota(wide, (last,), 0).cast(dtype))


def _step_count(first: float, last: float, step: float) -> int:
    """How many numbers lie between two, a step apart."""
    try:
        if isinstance(first, int) and isinstance(last, int) and isinstance(step, int):
            return max(0, -((first - last) // step))
        steps = (last - first) / step if math.isfinite(step) else math.nan
        return max(0, math.ceil(steps))
    except (ZeroDivisionError, OverflowError, ValueError):
        raise OutOfRange(
            "InvalidAttributeValue",
            f"from {first} to {last} in steps of {step} there is no finite number of steps",
            "the step must not be 0, and all three must be finite",
        ) from None


def _count_integers(session: Session, first: int, step: int, size: int, dtype: DType) -> Handle:
    """Integers; in 64 bits, where wrapping makes every constant representable."""
    wide = SI64 if dtype.is_signed else UI64
    result = session.iota(wide, (size,), 0)
    if step != 1:
        result = result * _wrap_to_64_bits(step, wide)
    if first != 0:
        result = result + _wrap_to_64_bits(first, wide)
    return result.cast(dtype)


def _wrap_to_64_bits(value: int, dtype: DType) -> int:
    bits = value & ((1 << 64) - 1)
    return bits - (1 << 64) if dtype.is_signed and bits >> 63 else bits


def _space_evenly(session: Session, first: Number, step: Number, size: int, dtype: DType) -> Handle:
    steps = session.iota(dtype, (size,), 0)
    return steps * step + first


@public
def linspace(
    start: complex,
    stop: complex,
    /,
    num: int,
    *,
    dtype: Any = None,
    device: str | None = None,
    endpoint: bool = True,
) -> Tensor:
    """`num` numbers from `start` to `stop` at equal distances; without `stop` where `endpoint` is
    False."""
    if not is_number(start) or not is_number(stop):
        raise UserError(f"start and stop must be numbers, not {start!r} and {stop!r}")
    if num < 0:
        raise OutOfRange("InvalidAttributeValue", f"num is {num}", "it must not be negative")
    kind = complex if widest(map(number_type, (start, stop))) is complex else float
    wanted = DEFAULTS[kind] if dtype is None else dtype_named(dtype)
    if kind is complex and not wanted.is_complex:
        raise SpecViolation(
            "DTypeMismatch",
            f"from {start} to {stop} there are complex numbers, not {wanted}",
            "leave the dtype out, or give a complex one",
        )
    if wanted is I1:
        raise SpecViolation(
            "DTypeNotSupported", "truth values have no distances", "give a dtype of numbers"
        )
    wide = CF64 if wanted.is_complex else F64
    parts = num - 1 if endpoint else num
    session = Session(home(device), user_line())
    result = _space_evenly(session, start, _distance(start, stop, parts), num, wide)
    if endpoint and num > 1:
        last = session.iota(SI64, (num,), 0).compare("equal", num - 1)
        result = last.select(session.full(stop, wide, (num,)), result)
    return session.export(result.cast(wanted))


def _distance(start: Any, stop: Any, parts: int) -> Any:
    """A part of the way from one number to another, which may be longer than any float."""
    whole = stop - start
    if parts < 1 or not isinstance(whole, float) or math.isfinite(whole):
        return whole / max(parts, 1)
    return stop / parts - start / parts


@public
def eye(
    n_rows: int,
    n_cols: int | None = None,
    /,
    k: int = 0,
    *,
    dtype: Any = None,
    device: str | None = None,
) -> Tensor:
    """A matrix with ones on diagonal `k` (above the main one where positive), zeros elsewhere."""
    shape = shape_of((n_rows, n_rows if n_cols is None else n_cols))
    session = Session(home(device), user_line())
    wanted = dtype_named(dtype or DEFAULT_FLOAT)
    return session.export(diagonal_mask(session, shape, k, "equal").cast(wanted))


def diagonal_mask(session: Session, shape: Shape, k: int, op: str) -> Handle:
    """Where `column op row + k`."""
    k = operator.index(k)
    rows = session.iota(SI64, shape, 0)
    return session.iota(SI64, shape, 1).compare(op, rows + k if k else rows)


@tensor_method
@recorded
def tril(x: Handle, /, k: int = 0) -> Handle:
    """Each matrix with zeros above diagonal `k`."""
    return _triangle(x, k, "less_equal")


@tensor_method
@recorded
def triu(x: Handle, /, k: int = 0) -> Handle:
    """Each matrix with zeros below diagonal `k`."""
    return _triangle(x, k, "greater_equal")


def _triangle(x: Handle, k: int, op: str) -> Handle:
    check_matrices(x)
    mask = diagonal_mask(x.session, x.shape[-2:], k, op).broadcast_to(x.shape)
    return mask.select(x, x.session.full(False if x.dtype is I1 else 0, x.dtype, x.shape))


@public
def meshgrid(*arrays: Tensor, indexing: str = "xy") -> list[Tensor]:
    """The coordinates of a grid: each vector along an axis of its own. With "xy" the first two axes
    are exchanged."""
    if indexing not in ("xy", "ij"):
        raise UserError(f"indexing is {indexing!r}; it can be 'xy' or 'ij'")
    vectors = [taken(x) for x in arrays]
    for vector in vectors:
        if vector.rank > 1:
            raise UserError(f"meshgrid takes vectors, not a tensor of shape {listed(vector.shape)}")
    order = list(range(len(vectors)))
    if indexing == "xy" and len(vectors) > 1:
        order[:2] = 1, 0
    sizes = [vector.shape[0] if vector.rank else 1 for vector in vectors]
    shape = tuple(sizes[axis] for axis in order)
    return [
        given(_spread_vector(vector, order.index(i), shape), arrays[i])
        for i, vector in enumerate(vectors)
    ]


def _spread_vector(vector: Handle, axis: int, shape: Sequence[Any]) -> Handle:
    dims = [1] * len(shape)
    if vector.rank:
        dims[axis] = shape[axis]
    return vector.reshape(dims).broadcast_to(shape)
