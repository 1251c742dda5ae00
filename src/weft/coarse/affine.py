"""Linear quantisation, with a zero point that is always given. See `quantize` for the rounding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.coarse.rules import check_axis
from weft.foundation.dtypes import F32, FLOATS, SI8, SI16, UI8, UI16, DType
from weft.ptir.composite import Composite
from weft.ptir.op import coarse_op
from weft.ptir.ops.quantisation import Dequantize, Quantize
from weft.ptir.schema import DTypeOf, Maybe, Usize, attr
from weft.ptir.term import Term
from weft.ptir.types import TensorType, ValueType

QUANTISED = frozenset({SI8, UI8, SI16, UI16})


@coarse_op("byteir.quantize")
class ByteirQuantize(Composite):
    """`saturate(round(x / scale) + zero_point)` in the dtype of `zero_point`, rounding halves to
    even, as `quantize`. `scale` has the dtype of the input; it and the zero point are rank 0, or
    with `axis`, which counts from the front, rank 1 of that axis's extent."""

    operands = ("input", "scale", "zero_point")
    dtypes = {"input": FLOATS, "scale": FLOATS, "zero_point": QUANTISED}
    no_gradient = "integers have no derivative"

    axis: int | None = attr(Maybe(Usize()), default=None)

    def infer(self, *types: TensorType) -> TensorType:
        x, _, zero_point = types
        if self.axis is not None:
            check_axis(self, self.axis, x.rank)
        return Quantize(zero_point.dtype, self.axis).infer(*types)

    def decompose(self, *operands: Term) -> Term:
        x, scale, zero_point = operands
        return x.quantize(scale, zero_point, output_dtype=zero_point.dtype, axis=self.axis)


@coarse_op("byteir.dequantize")
class ByteirDequantize(Composite):
    """`(x - zero_point) * scale`, as `dequantize`, in the dtype `dtype` (the declared type says
    it). `scale` and `zero_point` are rank 0, or with `axis`, which counts from the front, rank 1 of
    that axis's extent; the zero point has the dtype of the input."""

    operands = ("input", "scale", "zero_point")
    dtypes = {"input": QUANTISED, "scale": FLOATS, "zero_point": QUANTISED, "dtype": FLOATS}

    axis: int | None = attr(Maybe(Usize()), default=None)
    dtype: DType = attr(DTypeOf(), declared=True, default=F32)

    @classmethod
    def declared_attributes(cls, output: ValueType) -> Mapping[str, Any]:
        return {"dtype": output.dtype} if isinstance(output, TensorType) else {}

    def infer(self, *types: TensorType) -> TensorType:
        if self.axis is not None:
            check_axis(self, self.axis, types[0].rank)
        return Dequantize(self.axis, self.dtype).infer(*types)

    def decompose(self, *operands: Term) -> Term:
        x, scale, zero_point = operands
        return x.dequantize(scale, zero_point, axis=self.axis, output_dtype=self.dtype)
