"""What the tests share: applying one op to arrays, and comparing with an exact result."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.foundation.dtypes import ALL, DType, as_dtype
from weft.foundation.errors import SpecViolation
from weft.ptir.op import EvalContext, Op, RegionSignature, Value
from weft.ptir.types import Symbol, TensorType, TupleType, ValueType

Array = NDArray[Any]


class NoScope:
    """A scope without regions in which every symbol counts as bound."""

    def region(self, region_id: int) -> RegionSignature:
        raise SpecViolation("RegionUndefined", f"there is no region {region_id}")

    def is_bound(self, symbol: Symbol) -> bool:
        return True


def type_of(array: Array) -> TensorType:
    return TensorType(as_dtype(array.dtype), tuple(array.shape))


def infer(op: Op, *types: ValueType) -> ValueType:
    """The type rule of an op on its own."""
    return op.result_type(types, NoScope())


def apply(op: Op, *args: Array, seed: int = 0, execution: int = 0) -> Any:
    """The reference meaning of an op on its own, checked against its type rule."""
    output = infer(op, *(type_of(a) for a in args))
    context = EvalContext(output, seed, lambda stream: execution)
    with np.errstate(all="ignore"):
        result = op.evaluate(context, *args)
    check_type(result, output)
    return result


def check_type(value: Value, kind: ValueType) -> None:
    """The value has exactly the dtype and shape that the type says."""
    if isinstance(kind, TupleType):
        assert isinstance(value, tuple)
        assert len(value) == len(kind.elements)
        for part, part_kind in zip(value, kind.elements, strict=True):
            check_type(part, part_kind)
    else:
        assert isinstance(value, np.ndarray), f"{type(value)} is not an array"
        assert value.dtype == kind.dtype.numpy, f"{value.dtype} is not {kind.dtype}"
        assert value.shape == kind.shape, f"{value.shape} is not {kind.shape}"


def random_array(dtype: DType, shape: tuple[int, ...], seed: int = 0, scale: float = 4.0) -> Array:
    """Random values of any dtype: floats normal times `scale`, integers over the whole range."""
    rng = np.random.default_rng([seed, dtype.index, *shape])
    if dtype.kind.value == "bool":
        return rng.integers(0, 2, shape).astype(np.bool_)
    if dtype.is_integer:
        low, high = int(dtype.lowest), int(dtype.highest)
        wide = rng.integers(
            low, high, shape, dtype=np.uint64 if low == 0 else np.int64, endpoint=True
        )
        return np.asarray(wide).astype(dtype.numpy)
    if dtype.is_complex:
        parts = rng.standard_normal((2, *shape)) * scale
        return np.asarray(parts[0] + 1j * parts[1]).astype(dtype.numpy)
    return np.asarray(rng.standard_normal(shape) * scale).astype(np.float32).astype(dtype.numpy)


def ulp(exact: Array, dtype: DType) -> Array:
    """The distance between neighbouring values of a float dtype at each element of `exact`."""
    size = np.abs(exact).astype(np.float64)
    info = _finfo(dtype)
    exponent = np.floor(np.log2(np.maximum(size, float(info.tiny))))
    return np.asarray(2.0 ** (exponent - (dtype.precision - 1)))


def _finfo(dtype: DType) -> Any:
    import ml_dtypes

    return ml_dtypes.finfo(dtype.numpy)  # type: ignore[no-untyped-call]


def assert_ulp(out: Array, exact: Array, ulps: float) -> None:
    """Every element of a float array is within `ulps` of the exact (f64 or wider) result.

    NaN must match NaN and infinities must match in sign; a finite exact value that overflows the
    dtype may come out as infinity (or NaN, for fp8_e4m3, which has no infinity).
    """
    dtype = as_dtype(out.dtype)
    if dtype.is_complex:
        assert_ulp(np.ascontiguousarray(out.real), np.asarray(exact).real, ulps)
        assert_ulp(np.ascontiguousarray(out.imag), np.asarray(exact).imag, ulps)
        return
    got = out.astype(np.float64)
    want = np.asarray(exact).astype(np.float64)
    with np.errstate(all="ignore"):
        rounded = want.astype(dtype.numpy).astype(np.float64)
        special = ~np.isfinite(rounded) | ~np.isfinite(want)
        same = (rounded == got) | (np.isnan(rounded) & np.isnan(got))
        close = np.abs(got - want) <= ulps * ulp(want, dtype)
    bad = np.where(special, ~same, ~close)
    if bad.any():
        first = tuple(int(i[0]) for i in np.nonzero(np.atleast_1d(bad)))
        pair = (np.atleast_1d(got)[first], np.atleast_1d(want)[first])
        raise AssertionError(
            f"{int(bad.sum())} of {bad.size} elements off by more than {ulps} ulp; "
            f"first at {first}: got {pair[0]!r}, exact {pair[1]!r}"
        )


def bits(array: Array) -> bytes:
    """The exact bytes, for comparisons in which -0 and NaN payloads count."""
    return np.ascontiguousarray(array).tobytes()


def by_name(dtypes: frozenset[DType]) -> list[DType]:
    """Dtypes in wire order, for parametrised tests."""
    return [d for d in ALL if d in dtypes]
