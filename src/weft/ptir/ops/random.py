"""Random tensors. The bits are those of `weft.foundation.philox`: a seed gives the same program
the same numbers on every run.

`rng_uniform` and `rng_normal` draw from a stream of the run. `philox_bits`, `philox_uniform` and
`philox_normal` are functions of a state (seed, offset) that the program computes or is given; a
state gives the same numbers wherever and how often it is used, and an array of states gives numbers
for each of them. `rng_state` is the state of a stream, so that `rng_uniform` is `philox_uniform` of
an `rng_state` in its place.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from weft.foundation import philox
from weft.foundation.dtypes import BF16, F16, F32, F64, SI64, UI8, UI16, UI32, UI64, DType
from weft.ptir.op import Array, EvalContext, Op, Scope, core_op, extension_op, op_base
from weft.ptir.rules import bound_symbols, invalid_attribute, rank_at_least, same_dim
from weft.ptir.schema import DTypeOf, Maybe, ShapeOf, Usize, attr
from weft.ptir.types import Dim, Shape, TensorType

SAMPLED = frozenset({F16, BF16, F32, F64})
"""What can be drawn."""
BITS = frozenset({UI8, UI16, UI32, UI64})
"""What bits can be drawn as."""
STATE = TensorType(SI64, (2,))
"""The type of a state: the seed and the offset, the latter as two words of the counter."""
_STREAMS = 1 << 32


def stream_attribute() -> Any:
    """The random stream; None: not assigned yet, the op's ordinal in the program."""
    return dataclasses.field(default=None, metadata={"kind": Maybe(Usize()), "wire": False})


class Drawing(Op):
    """An op that draws from a stream of the run. Its last attribute is the stream."""

    random = True
    no_gradient = "it does not depend on anything"
    stream: int | None

    def with_stream(self, stream: int | None) -> Drawing:
        changed: Any = {"stream": stream}
        return dataclasses.replace(self, **changed)

    def check_stream(self) -> None:
        if self.stream is not None and self.stream >= _STREAMS:
            raise invalid_attribute(
                f"stream {self.stream} of {self.mnemonic} does not fit 32 bits",
                f"streams are numbered from 0 to {_STREAMS - 1}",
            )


@op_base
class _Sampled(Op):
    """What the ops that make random tensors share: their shape and dtype."""

    dtypes = {"dtype": SAMPLED}
    dtype_bound = True
    no_gradient = "random numbers have no derivative with respect to their state"

    shape: Shape = attr(ShapeOf())
    dtype: DType = attr(DTypeOf(), usual=F32)

    def check_symbols(self, scope: Scope) -> None:
        bound_symbols(self.shape, scope, f"the shape of {self.mnemonic}")

    def with_dims(self, replace: Callable[[Dim], Dim]) -> Op:
        return dataclasses.replace(self, shape=tuple(replace(dim) for dim in self.shape))


@op_base
class _Draw(_Sampled, Drawing):
    """A random tensor from a stream."""

    stream: int | None = stream_attribute()

    def infer(self, *types: TensorType) -> TensorType:
        self.check_stream()
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
    row-major order, and every backend computes the same bits."""

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        return self.draw(ctx, philox.uniform_values)


@core_op(tag=30)
class RngNormal(_Draw):
    """Standard normal values. Elements 2j and 2j+1 are `r cos(2 pi u2)` and `r sin(2 pi u2)` with
    `r = sqrt(-2 ln(1 - u1))`, where u1 and u2 are the uniforms 2j and 2j+1 that `rng_uniform` of
    this dtype would give; computed in f64 and rounded once. Backends agree to 4 ulp."""

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        return self.draw(ctx, philox.normal_values)


@extension_op("rng_state")
class RngState(Drawing):
    """The state (seed, offset) of a stream, as si64[2]: the seed of the run, and the number of the
    stream plus 2^32 times the number of draws of this run from the stream so far. It counts as a
    draw itself, so the next draw has another state."""

    dtypes = {"result": frozenset({SI64})}

    stream: int | None = stream_attribute()

    def infer(self, *types: TensorType) -> TensorType:
        self.check_stream()
        return STATE

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        stream = self.stream or 0
        words = np.array([ctx.seed, stream | ctx.execution(stream) << 32], np.uint64)
        return words.view(np.int64)


@op_base
class _Philox(_Sampled):
    """A random tensor as a function of a state; of an array of states, one for each."""

    operands = ("state",)
    dtypes = {"dtype": SAMPLED, "state": frozenset({SI64})}

    def infer(self, *types: TensorType) -> TensorType:
        (state,) = types
        rank_at_least(state, 1, "state")
        same_dim(state.shape[-1], 2, "state has the extent of (seed, offset)")
        return TensorType(self.dtype, (*state.shape[:-1], *self.shape))

    def sample(self, ctx: EvalContext, states: Array, distribution: Callable[..., Array]) -> Array:
        """The result's elements from one of the distributions of `philox`."""
        size = TensorType(self.dtype, ctx.shape[states.ndim - 1 :]).size
        result = np.empty((states.size // 2, size), self.dtype.numpy)
        for row, state in zip(result, states.reshape(-1, 2).astype(np.uint64), strict=True):
            seed, offset = (int(word) for word in state)
            row[:] = distribution(seed, offset & 0xFFFFFFFF, offset >> 32, size, self.dtype)
        return result.reshape(ctx.shape)


@extension_op("philox_bits")
class PhiloxBits(_Philox):
    """Random bits for a state (seed, offset): those from which `philox_uniform` computes its
    numbers. Element i is word i of the stream with the seed as key and the offset as the upper two
    words of the counter; ui64 takes two words, the first of them being the high half, and ui8 and
    ui16 the top bits of one. Every backend computes the same bits."""

    dtypes = {"dtype": BITS, "state": frozenset({SI64})}

    dtype: DType = attr(DTypeOf(), usual=UI32)

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        return self.sample(ctx, args[0], philox.bits)


@extension_op("philox_uniform")
class PhiloxUniform(_Philox):
    """Values in [0, 1), equally likely, for a state (seed, offset): those of `rng_uniform`, with
    the seed as key and the offset as the upper two words of the counter. Every backend computes the
    same bits."""

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        return self.sample(ctx, args[0], philox.uniform_values)


@extension_op("philox_normal")
class PhiloxNormal(_Philox):
    """Standard normal values for a state (seed, offset): those that `rng_normal` computes from the
    uniforms of `philox_uniform`. Backends agree to 4 ulp."""

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        return self.sample(ctx, args[0], philox.normal_values)
