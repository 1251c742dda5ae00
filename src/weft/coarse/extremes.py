"""Coarse argmax, argmin, and extremes with their positions, along an axis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from weft.coarse.forms import reduced
from weft.coarse.rules import check_axis, result_count
from weft.foundation.dtypes import INDICES, ORDERED, SI64, DType
from weft.foundation.errors import SpecViolation
from weft.ptir.composite import Composite
from weft.ptir.op import Array, coarse_op, op_base
from weft.ptir.ops.ordering import TopK
from weft.ptir.ops.reduction import reduced_shape
from weft.ptir.rules import index_range, invalid_attribute, length_is, violation
from weft.ptir.schema import USIZES, Bool, DTypeOf, Usize, attr
from weft.ptir.term import Cotangents, Parts, Pullback, Term, any_of
from weft.ptir.types import Dim, TensorType, TupleType, ValueType


def _expect_tensor(kind: ValueType, what: str) -> TensorType:
    if isinstance(kind, TupleType):
        raise SpecViolation("OutputTypeMismatch", f"{what} are declared as the tuple {kind}")
    return kind


@op_base
class _Extreme(Composite):
    """The position, and perhaps the value, of an extreme element along an axis."""

    operands = ("input",)
    dtypes = {"input": ORDERED, "indices": INDICES}
    reduction: ClassVar[str]
    position: ClassVar[str]

    axis: int = attr(Usize())
    keep_dims: bool = attr(Bool(), default=False)
    select_last_index: bool = attr(Bool(), default=False)
    results: int = attr(Usize(), declared=True, default=1)
    indices: DType = attr(DTypeOf(), declared=True, default=SI64)

    @classmethod
    def declared_attributes(cls, output: ValueType) -> Mapping[str, Any]:
        count = result_count(output, (1, 2), str(cls.call_target))
        last = output.elements[1] if isinstance(output, TupleType) else output
        return {"results": count, "indices": _expect_tensor(last, "the indices").dtype}

    def infer(self, *types: TensorType) -> ValueType:
        (x,) = types
        axis = check_axis(self, self.axis, x.rank)
        self._check_extent(x.shape[axis])
        index_range(x.shape[axis], self.indices, f"axis {axis} of {self.mnemonic}")
        if self.results not in (1, 2):
            raise invalid_attribute(f"{self.mnemonic} has 1 or 2 results, not {self.results}")
        value = x.with_shape(reduced_shape(x, (axis,), self.keep_dims))
        found = value.with_dtype(self.indices)
        return found if self.results == 1 else TupleType((value, found))

    def _check_extent(self, extent: Dim) -> None:
        if extent == 0:
            raise violation(
                "EmptyReduction",
                f"axis {self.axis} of {self.mnemonic} has no elements to choose from",
            )

    def check_values(self, *args: Array) -> None:
        self._check_extent(args[0].shape[self.axis])

    def decompose(self, *operands: Term) -> Parts:
        (x,) = operands
        kept = reduced_shape(x.tensor, (self.axis,), self.keep_dims)
        best = reduced(x, self.reduction, [self.axis])
        found = self._last(x, best) if self.select_last_index else self._first(x)
        found = found.reshape(kept)
        return found if self.results == 1 else (best.reshape(kept), found)

    def vjp(self, at: Pullback) -> Cotangents:
        """The value's cotangent goes to the element whose position is named."""
        (x,), (value, found) = at.operands, at.of_elements
        named = at.result[1].restored([self.axis], x.shape)
        chosen = x.counting(x.shape, self.axis, found.dtype).compare(named, "equal")
        return (value.restored([self.axis], x.shape).where(chosen),)

    def _first(self, x: Term) -> Term:
        return x.emitter.emit(
            self.position, x, axis=self.axis, keepdims=True, output_dtype=self.indices
        )

    def _last(self, x: Term, best: Term) -> Term:
        """The largest position of an element that equals the best, or is NaN: then so is that."""
        chosen = [x.compare(best.broadcast_to(x.shape), "equal")]
        if x.dtype.is_float:
            chosen.append(x.compare(x, "not_equal"))
        place = x.counting(x.shape, self.axis, self.indices)
        return reduced(place.where(any_of(chosen)), "max", [self.axis])


@coarse_op("byteir.arg_max")
class ByteirArgMax(_Extreme):
    """The position of the largest element along `axis`, which counts from the front; with 2
    `results` (the declared type says how many) the value before it. NaN counts as largest. Of equal
    elements the first wins, or with `select_last_index` the last. With `keep_dims` the axis stays
    as 1. An axis without elements is rejected. `indices` is the dtype of the position."""

    reduction = "max"
    position = "arg_max"


@coarse_op("byteir.arg_min")
class ByteirArgMin(_Extreme):
    """The position of the smallest element along `axis`, which counts from the front; with 2
    `results` (the declared type says how many) the value before it. NaN is chosen before everything
    else. Of equal elements the first wins, or with `select_last_index` the last. With `keep_dims`
    the axis stays as 1. An axis without elements is rejected. `indices` is the dtype of the
    position."""

    reduction = "min"
    position = "argmin"


@coarse_op("byteir.top_k")
class ByteirTopK(Composite):
    """The tuple of the `k` largest values along the one axis in `axis`, which counts from the
    front, and their positions, of dtype `indices` (the declared type says which). NaN counts as
    largest; of equal values the lower position comes first. They are sorted from the largest to the
    smallest, even if `sorted` is false. `k` may not exceed the extent of the axis."""

    operands = ("input",)
    dtypes = {"input": ORDERED, "indices": INDICES}

    k: int = attr(Usize())
    axis: tuple[int, ...] = attr(USIZES)
    sorted: bool = attr(Bool(), default=True)
    indices: DType = attr(DTypeOf(), declared=True, default=SI64)

    @classmethod
    def declared_attributes(cls, output: ValueType) -> Mapping[str, Any]:
        result_count(output, (2,), "byteir.top_k")
        last = output.elements[1] if isinstance(output, TupleType) else output
        return {"indices": _expect_tensor(last, "the indices").dtype}

    def infer(self, *types: TensorType) -> ValueType:
        (x,) = types
        length_is(self.axis, 1, f"axis of {self.mnemonic}")
        axis = check_axis(self, self.axis[0], x.rank)
        extent = x.shape[axis]
        if isinstance(extent, int) and self.k > extent:
            raise invalid_attribute(
                f"k {self.k} of {self.mnemonic} exceeds the extent {extent} of axis {axis}"
            )
        return TopK(self.k, axis, True, self.indices).infer(x)

    def decompose(self, *operands: Term) -> Term:
        (axis,) = self.axis
        return operands[0].top_k(k=self.k, axis=axis, largest=True, indices_dtype=self.indices)
