"""What the families share: shapes, programs of one op, and how a case is named."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.foundation.dtypes import ALL, ANY, F32, F64, DType, as_dtype, in_order
from weft.ptir.builder import Builder, Value
from weft.ptir.ir import Program
from weft.ptir.op import SPELLINGS, all_ops
from weft.testing.conformance.case import Case, Expectation, Trial, Values, Wanted
from weft.testing.conformance.tolerance import PerTensor

Array: TypeAlias = NDArray[Any]
Shape: TypeAlias = tuple[int, ...]
Dims: TypeAlias = Sequence[int | str]
Build: TypeAlias = Callable[[], Program]

RANK0: Shape = ()
EMPTY: Shape = (2, 0, 3)
ODD: Shape = (3, 5, 7)
LARGE: Shape = (61, 67)
SHAPES: dict[str, Shape] = {"rank0": RANK0, "empty": EMPTY, "odd": ODD, "large": LARGE}
DYNAMIC = {3: "?A", 5: "?B"}
"""The sizes that become symbols in the dynamic variant of a case with the shape `ODD`."""


def table() -> dict[str, frozenset[DType]]:
    """The dtypes of every op: its row of the table op x dtype. An op without operands or attributes
    that have a dtype of their own is defined for all."""
    found: dict[str, frozenset[DType]] = {}
    for cls in all_ops():
        for row, dtypes in cls.rows().items():
            carries_values = cls.family in ("control", "constant")
            found[row] = ANY if carries_values else next(iter(dtypes.values()))
    return found


def defined(row: str) -> list[DType]:
    """The dtypes an op is defined for, in wire order."""
    return in_order(table_of(row))


def table_of(row: str) -> frozenset[DType]:
    """The dtypes an op is defined for."""
    if row not in _TABLE:
        _TABLE.update(table())
    return _TABLE[row]


_TABLE: dict[str, frozenset[DType]] = {}


def case(row: str, dtype: DType | None, *parts: object, trial: Callable[[], Trial]) -> Case:
    """A case of an op, named after its row, its dtype and what is particular about it."""
    name = "/".join(str(part) for part in (row, dtype, *parts) if part is not None)
    return Case(name, SPELLINGS[row][0].family, row, dtype, trial)


def symbolic(shape: Sequence[int], names: dict[int, str]) -> Dims:
    """A shape with some of its sizes replaced by symbols."""
    return [names.get(size, size) for size in shape]


def apply(
    name: str, inputs: Sequence[Array], *, dims: Sequence[Dims] | None = None, **attrs: Any
) -> Build:
    """The program of one op on parameters with the types of these arrays; `dims` replaces their
    shapes, so that some can be symbols."""

    def emit(b: Builder, *parameters: Value) -> Value:
        return b.emit(name, *parameters, **attrs)

    return program(inputs, emit, dims=dims)


def program(
    inputs: Sequence[Array],
    body: Callable[..., Value | Sequence[Value]],
    *,
    dims: Sequence[Dims] | None = None,
) -> Build:
    """The program that `body(builder, *parameters)` writes."""
    shapes = dims if dims is not None else [x.shape for x in inputs]

    def build() -> Program:
        b = Builder()
        pairs = zip(inputs, shapes, strict=True)
        parameters = [b.param(as_dtype(x.dtype), shape) for x, shape in pairs]
        results = body(b, *parameters)
        return b.build(*([results] if isinstance(results, Value) else results))

    return build


def trial(build: Build, inputs: Iterable[Array], *wanted: Wanted, seed: int = 0) -> Trial:
    """A trial that expects these tensors."""
    return Trial(build, tuple(inputs), Values(wanted), seed)


def judged(build: Build, inputs: Iterable[Array], expected: Expectation, seed: int = 0) -> Trial:
    """A trial with any expectation."""
    return Trial(build, tuple(inputs), expected, seed)


def work_dtype(dtype: DType) -> DType:
    """Where forms with several steps are computed: f64 in f64, all other floats in f32."""
    return F64 if dtype is F64 else F32


def near(exact: Array, plain: Array, dtype: DType, work: DType) -> Wanted:
    """The expectation of a tensor, with the error of the plain evaluation in `work` as measure."""
    far = np.abs(plain.astype(exact.dtype) - exact)
    error = float(np.max(np.where(np.isfinite(far), far, 0), initial=0.0))
    return Wanted(exact, dtype, PerTensor(work, error))


def stack(*arrays: Array) -> Array:
    """Arrays of one dtype, flattened and joined."""
    return np.concatenate([a.reshape(-1) for a in arrays])


def and_wider(dtype: DType) -> list[DType]:
    """A dtype and those of its kind that have more bits."""
    return [dtype, *(d for d in ALL if d.kind is dtype.kind and d.bits > dtype.bits)]
