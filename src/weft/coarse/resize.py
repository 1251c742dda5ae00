"""Resampling of images: every axis on its own, by a table of positions that depends on the two
lengths alone.

Where a position lies between the elements is found in whole numbers, so that no rounding decides
which element is the nearest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from weft.coarse.forms import all_equal, guarded
from weft.coarse.rules import result_count
from weft.foundation import limits
from weft.foundation.dtypes import ANY, F32, F64, FLOATS, I1, INTEGERS, SI64, DType
from weft.foundation.errors import ResourceExceeded
from weft.foundation.numeric import wide_dtype
from weft.ptir.composite import Composite
from weft.ptir.op import Array, Op, Scope, coarse_op
from weft.ptir.rules import bound_symbols, length_is, rank_is, same_dim, violation
from weft.ptir.schema import Choice, ShapeOf, WireEnum, attr
from weft.ptir.term import Term, known_size
from weft.ptir.types import Dim, Shape, TensorType, ValueType


class TargetMode(WireEnum):
    """What the target holds."""

    SCALE = "scale"
    SIZE = "size"


class ResizeMode(WireEnum):
    """What lies between two elements."""

    NEAREST = "nearest"
    LINEAR = "linear"


class Coordinates(WireEnum):
    """Which position of the input a position of the result corresponds to."""

    ASYMMETRIC = "asymmetric"
    PYTORCH_HALF_PIXEL = "pytorch_half_pixel"
    HALF_PIXEL = "half_pixel"
    ALIGN_CORNERS = "align_corners"


@dataclass(frozen=True)
class Samples:
    """For each place of the new axis the two elements around it, and the share of the second."""

    low: Array
    high: Array
    share: Array


MOST_ELEMENTS: Final = 1 << 30
"""Up to this length of an axis the numerators below fit 64 bits."""


def samples(mode: Coordinates, old: int, new: int) -> Samples:
    """The table of one axis, as the public table of coordinate modes says; positions beyond the
    edges are those of the edge."""
    limits.check_bytes(8 * new, "the table of positions of a resize", limits.current())
    if max(old, new) > MOST_ELEMENTS:
        raise ResourceExceeded(f"an axis of {max(old, new)} elements cannot be resized")
    place = np.arange(new, dtype=np.int64)
    match mode:
        case Coordinates.ASYMMETRIC:
            numerator, denominator = place * old, new
        case Coordinates.ALIGN_CORNERS:
            numerator, denominator = place * (old - 1), max(new - 1, 1)
        case Coordinates.PYTORCH_HALF_PIXEL if new == 1:
            numerator, denominator = place, 1
        case _:
            numerator, denominator = (2 * place + 1) * old - new, 2 * new
    inside = np.clip(numerator, 0, (old - 1) * denominator)
    low = inside // denominator
    share = (inside - low * denominator) / denominator
    return Samples(low, np.minimum(low + 1, old - 1), share)


@coarse_op("byteir.resize")
class ByteirResize(Composite):
    """The input resampled to another `shape` (the declared type says it). With scale = new length /
    old length, position x of the result lies at `x / scale` (`asymmetric`), `(x + 0.5) / scale -
    0.5` (`half_pixel`; `pytorch_half_pixel` takes 0 where the new length is 1), or `x * (old - 1) /
    (new - 1)` (`align_corners`; 0 where the new length is 1).

    `nearest` takes the element at or before that position; `linear` interpolates between the two
    around it, one axis after the other. Positions beyond the edges are those of the edge. `target`
    has an entry for each axis: its new length (`size`), or what the old one is multiplied by and
    rounded down (`scale`), be the product exact or that of f32; one that contradicts the declared
    shape is rejected when the program runs. `nearest` is defined for every dtype, `linear` for
    floats; those under 32 bits are computed in f32 and rounded once."""

    operands = ("input", "target")
    dtypes = {"input": ANY, "target": FLOATS | INTEGERS}

    target_mode: TargetMode = attr(Choice(TargetMode))
    mode: ResizeMode = attr(Choice(ResizeMode))
    coordinate_transformation_mode: Coordinates = attr(Choice(Coordinates))
    shape: Shape = attr(ShapeOf(), declared=True)

    @classmethod
    def declared_attributes(cls, output: ValueType) -> Mapping[str, Any]:
        result_count(output, (1,), "byteir.resize")
        return {"shape": output.shape} if isinstance(output, TensorType) else {}

    @property
    def dtype_table(self) -> Mapping[str, frozenset[DType]]:
        linear = self.mode is ResizeMode.LINEAR
        scale = self.target_mode is TargetMode.SCALE
        return {"input": FLOATS if linear else ANY, "target": FLOATS if scale else INTEGERS}

    def check_symbols(self, scope: Scope) -> None:
        bound_symbols(self.shape, scope, f"the shape of {self.mnemonic}")

    def with_dims(self, replace: Callable[[Dim], Dim]) -> Op:
        return dataclasses.replace(self, shape=tuple(replace(dim) for dim in self.shape))

    def infer(self, *types: TensorType) -> TensorType:
        x, target = types
        rank_is(target, 1, "target")
        same_dim(target.shape[0], x.rank, "the length of target and the rank of input differ")
        length_is(self.shape, x.rank, f"the shape of {self.mnemonic}")
        for axis, (old, new) in enumerate(zip(x.shape, self.shape, strict=True)):
            if old == 0 and new not in (0, old):
                raise violation(
                    "EmptyReduction", f"axis {axis} of input has no elements to resize to {new}"
                )
        return x.with_shape(self.shape)

    def check_values(self, *args: Array) -> None:
        x, target = args
        for axis, (size, wanted) in enumerate(zip(target, self.shape, strict=True)):
            found = [float(size)]
            if self.target_mode is TargetMode.SCALE:
                found = _lengths_of_scale(x.shape[axis], float(size))
            if wanted not in found:
                why = f"target gives axis {axis} the length {found[0]:g}, not {wanted}"
                raise violation("InvalidTarget", f"{why} as is declared")

    def rejection(self) -> tuple[str, str]:
        return "InvalidTarget", f"target gives other lengths than {list(self.shape)} as is declared"

    def decompose(self, *operands: Term) -> Term:
        x, target = operands
        old, new = (tuple(map(known_size, dims)) for dims in (x.shape, self.shape))
        z = x if self.mode is ResizeMode.NEAREST else x.cast(wide_dtype(x.dtype))
        if 0 in new:
            z = z.full(False if z.dtype is I1 else 0, self.shape)
        else:
            for axis in range(x.rank):
                z = self._along(z, axis, old[axis], new[axis])
        return guarded(z.cast(x.dtype), self._agrees(target, old, new))

    def _agrees(self, target: Term, old: tuple[int, ...], new: tuple[int, ...]) -> Term:
        """Whether the target gives every axis its new length."""
        sizes = target.cast(SI64)
        if self.target_mode is TargetMode.SCALE:
            product = target.cast(F64) * target.emitter.literal([float(n) for n in old], F64)
            rounded, wanted = (
                product.cast(F32).floor().cast(SI64),
                target.emitter.literal(new, SI64),
            )
            exact = product.floor().cast(SI64)
            sizes = wanted.where(rounded.compare(wanted, "equal"), exact)
        return all_equal(sizes, new)

    def _along(self, z: Term, axis: int, old: int, new: int) -> Term:
        if old == new:
            return z
        table = samples(self.coordinate_transformation_mode, old, new)
        low = _take_positions(z, axis, table.low)
        if self.mode is ResizeMode.NEAREST or not np.any(table.share):
            return low
        high = _take_positions(z, axis, table.high)
        share = z.emitter.literal(table.share, z.dtype).along(axis, low.shape)
        return low * (1.0 - share) + high * share


def _lengths_of_scale(old: int, scale: float) -> list[float]:
    """The lengths that a scale may mean: those who declare one multiply exactly, or in f32."""
    product = old * scale
    with np.errstate(over="ignore"):
        return [float(np.floor(length)) for length in (product, np.float32(product))]


def _take_positions(z: Term, axis: int, table: Array) -> Term:
    """The elements at these positions of an axis."""
    old, new = known_size(z.shape[axis]), len(table)
    if new % old == 0 and np.array_equal(table, np.arange(new) // (new // old)):
        before, after = z.shape[:axis], z.shape[axis + 1 :]
        column = z.reshape((*before, old, 1, *after))
        repeated = column.broadcast_to((*before, old, new // old, *after))
        return repeated.reshape((*before, new, *after))
    return z.taken(axis, z.emitter.literal(table, SI64))
