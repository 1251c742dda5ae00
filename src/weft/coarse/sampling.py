"""Random tensors as functions of a seed and an offset that the program gives: the same operands
make the same numbers wherever they are used. See `philox_uniform` for the generator."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from weft.coarse.forms import all_equal, guarded, stacked
from weft.coarse.rules import result_count
from weft.foundation.dtypes import F64, INDICES, SI64
from weft.ptir.composite import Composite
from weft.ptir.op import Array, Op, Scope, coarse_op, op_base
from weft.ptir.ops.random import SAMPLED
from weft.ptir.rules import bound_symbols, rank_is, same_dim, same_dtype, violation
from weft.ptir.schema import ShapeOf, attr
from weft.ptir.term import Term, known_size
from weft.ptir.types import Dim, Shape, TensorType, ValueType


@op_base
class _Sample(Composite):
    """A random tensor: two parameters of its distribution, the state, and perhaps the shape."""

    dtype_bound = True

    dims: Shape = attr(ShapeOf(), declared=True)

    @classmethod
    def declared_attributes(cls, output: ValueType) -> Mapping[str, Any]:
        result_count(output, (1,), str(cls.call_target))
        return {"dims": output.shape} if isinstance(output, TensorType) else {}

    def check_symbols(self, scope: Scope) -> None:
        bound_symbols(self.dims, scope, f"the shape of {self.mnemonic}")

    def with_dims(self, replace: Callable[[Dim], Dim]) -> Op:
        return dataclasses.replace(self, dims=tuple(replace(dim) for dim in self.dims))

    def infer(self, *types: TensorType) -> TensorType:
        first, second, seed, offset, *sizes = types
        for index, kind in enumerate((first, second, seed, offset)):
            rank_is(kind, 0, f"{self.operand_name(index)} of {self.mnemonic}")
        names = f"{self.operand_name(0)} and {self.operand_name(1)}"
        same_dtype(first, second, names)
        for kind in sizes:
            rank_is(kind, 1, f"shape of {self.mnemonic}")
            what = "the length of shape and the rank of the result differ"
            same_dim(kind.shape[0], len(self.dims), what)
        return TensorType(first.dtype, self.dims)

    def check_values(self, *args: Array) -> None:
        for sizes in args[4:]:
            if tuple(sizes.tolist()) != self.dims:
                raise violation(
                    "InvalidTarget",
                    f"shape is {sizes.tolist()}, but {list(self.dims)} is declared",
                )

    def rejection(self) -> tuple[str, str]:
        return "InvalidTarget", f"shape is not {list(self.dims)} as is declared"

    def state(self, seed: Term, offset: Term, *sizes: Term) -> Term:
        """The state of the generator, after the sizes were found to be the declared ones."""
        state = stacked(seed.cast(SI64), offset.cast(SI64))
        for given in sizes:
            state = guarded(state, all_equal(given, [known_size(dim) for dim in self.dims]))
        return state


@coarse_op("byteir.rng_uniform")
class ByteirRngUniform(_Sample):
    """Values in [low, high), equally likely: `low + (high - low) * u` with the uniforms u of
    `philox_uniform`, computed in f64 and rounded once; a value that rounds up to `high` becomes the
    number before it. If `low` is not below `high`, every value is `low`. Seed and offset are 64-bit
    patterns. The declared type says the shape, `dims`; an operand `shape` that says another is
    rejected when the program runs."""

    operands = ("low", "high", "seed", "offset", "shape?")
    dtypes = {"low": SAMPLED, "high": SAMPLED, "seed": INDICES, "offset": INDICES, "shape": INDICES}

    def decompose(self, *operands: Term) -> Term:
        low, high, *rest = operands
        unit = self.state(*rest).philox_uniform(shape=self.dims, dtype=low.dtype)
        start, end = low.cast(F64), high.cast(F64)
        wide = start.broadcast_to(self.dims) + (end - start).broadcast_to(self.dims) * unit.cast(
            F64
        )
        found = wide.cast(low.dtype)
        last = high.nextafter(low).broadcast_to(self.dims)
        inside = found.where(found.compare(high.broadcast_to(self.dims), "less"), last)
        ordered = low.compare(high, "less").broadcast_to(self.dims)
        return inside.where(ordered, low.broadcast_to(self.dims))


@coarse_op("byteir.rng_normal")
class ByteirRngNormal(_Sample):
    """Normal values `mean + stddev * n` with the standard normal n of `philox_normal`, computed in
    f64 and rounded once. Backends agree to 4 ulp of the larger of mean and stddev times n. Seed and
    offset are 64-bit patterns. The declared type says the shape, `dims`; an operand `shape` that
    says another is rejected when the program runs."""

    operands = ("mean", "stddev", "seed", "offset", "shape?")
    dtypes = {
        "mean": SAMPLED,
        "stddev": SAMPLED,
        "seed": INDICES,
        "offset": INDICES,
        "shape": INDICES,
    }

    def decompose(self, *operands: Term) -> Term:
        mean, stddev, *rest = operands
        drawn = self.state(*rest).philox_normal(shape=self.dims, dtype=mean.dtype).cast(F64)
        centre, spread = (p.cast(F64).broadcast_to(self.dims) for p in (mean, stddev))
        return (centre + spread * drawn).cast(mean.dtype)
