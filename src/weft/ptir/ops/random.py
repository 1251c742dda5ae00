"""Random tensors. The bits are those of `weft.ptir.philox`: a seed gives the same program the same
numbers on every run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from weft.foundation.dtypes import BF16, F16, F32, F64, DType
from weft.ptir import philox
from weft.ptir.op import Array, EvalContext, Op, Scope, core_op, op_base
from weft.ptir.rules import bound_symbols, invalid_attribute
from weft.ptir.schema import DTypeOf, Maybe, ShapeOf, Usize, attr
from weft.ptir.types import Dim, Shape, TensorType

_DTYPES = frozenset({F16, BF16, F32, F64})
_STREAMS = 1 << 32


@op_base
class _Draw(Op):
    """What the random ops share: the shape, the dtype, and the stream they draw from."""

    dtypes = {"dtype": _DTYPES}
    random = True

    shape: Shape = attr(ShapeOf())
    dtype: DType = attr(DTypeOf())
    stream: int | None = dataclasses.field(
        default=None, metadata={"kind": Maybe(Usize()), "wire": False}
    )
    """The random stream; None: not assigned yet, the op's ordinal in the program."""

    def check_symbols(self, scope: Scope) -> None:
        bound_symbols(self.shape, scope, f"the shape of {self.mnemonic}")

    def with_dims(self, replace: Callable[[Dim], Dim]) -> Op:
        return dataclasses.replace(self, shape=tuple(replace(dim) for dim in self.shape))

    def infer(self, *types: TensorType) -> TensorType:
        if self.stream is not None and self.stream >= _STREAMS:
            raise invalid_attribute(
                f"stream {self.stream} of {self.mnemonic} does not fit 32 bits",
                f"streams are numbered from 0 to {_STREAMS - 1}",
            )
        return TensorType(self.dtype, self.shape)

    def draw(self, ctx: EvalContext, distribution: Callable[..., Array]) -> Array:
        """The result's elements from one of the distributions of `philox`."""
        stream = self.stream or 0
        size = TensorType(self.dtype, ctx.shape).size
        flat = distribution(ctx.seed, stream, ctx.execution(stream), size, self.dtype)
        return flat.reshape(ctx.shape)


@core_op(tag=29)
class RngUniform(_Draw):
    """Values in [0, 1), equally likely: the top p bits of each element's Philox words times 2^-p,
    where p is the precision of the dtype (f32 24, f64 53, bf16 8, f16 11). Elements are numbered in
    row-major order, and every backend makes the same bits."""

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        return self.draw(ctx, philox.uniform)


@core_op(tag=30)
class RngNormal(_Draw):
    """Standard normal values. Elements 2j and 2j+1 are `r cos(2 pi u2)` and `r sin(2 pi u2)` with
    `r = sqrt(-2 ln(1 - u1))`, where u1 and u2 are the uniforms 2j and 2j+1 that `rng_uniform` of
    this dtype would give; computed in f64 and rounded once. Backends agree to 4 ulp."""

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        return self.draw(ctx, philox.normal)
