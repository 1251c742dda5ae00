"""Tensors as formulas: what gradient and batching rules are written in.

A `Term` is a value of a body under construction. Its operators and methods append instructions:
every op is a method, whose first operand is the term (`x.cos()`, `x.atan2(y)`,
`x.sort(axis=0, descending=True)`). A Python number beside a term stands for a tensor of its type.
Rules see terms and nothing else of the program, so ops need not know who builds it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias

from weft.foundation.axes import normalise_axes
from weft.foundation.dtypes import I1, SI64, DType
from weft.foundation.errors import InternalError, Unimplemented
from weft.foundation.partitions import SAME, Classes
from weft.ptir.literal import scalar_literal
from weft.ptir.types import Dim, Symbol, TensorType, TupleType, ValueType
from weft.ptir.written import Data, Emits, Number, Symbolic

Axes: TypeAlias = tuple[Sequence[int], Sequence[int]]
"""Axes of the left operand and of the right one, paired by position."""


class TermEmitter(Emits["Term"], Protocol):
    """What appends instructions and hands out their values as terms."""

    def element(self, value: Term, index: int) -> Term:
        """An element of a tuple."""
        ...


class Term(Symbolic):
    """A value of the body that `emitter` builds; `key` is its name there."""

    __slots__ = ("emitter", "key", "type")

    emitter: TermEmitter
    key: int
    type: ValueType

    def __init__(self, emitter: TermEmitter, key: int, kind: ValueType) -> None:
        self.emitter = emitter
        self.key = key
        self.type = kind

    def __getattr__(self, name: str) -> Callable[..., Term]:
        """Every op is a method: further operands, then its attributes by name."""
        if name.startswith("__"):
            raise AttributeError(name)
        return partial(self.emitter.emit, name, self)

    def __getitem__(self, index: int) -> Term:
        return self.emitter.element(self, index)

    # -- its type --------------------------------------------------------------------------------

    @property
    def tensor(self) -> TensorType:
        if isinstance(self.type, TupleType):
            raise InternalError(f"a rule takes the tuple {self.type} for a tensor")
        return self.type

    # -- arithmetic ------------------------------------------------------------------------------

    def __rmul__(self, other: Data) -> Term:
        """Rules are written for people: the number stands behind in the program all the same."""
        return self.apply("mul", other)

    def conj(self) -> Term:
        """The complex conjugate; a real term is its own."""
        return self.emitter.emit("conj", self) if self.dtype.is_complex else self

    def compare(self, other: Term | Number, op: str) -> Term:
        return self.emitter.emit("compare", self, other, op=op)

    def where(self, mask: Term, otherwise: Term | None = None) -> Term:
        """This term where the mask holds, and zero or `otherwise` elsewhere."""
        other = self.like(0) if otherwise is None else otherwise
        return self.emitter.emit("select", mask, self, other)

    # -- constants -------------------------------------------------------------------------------

    def counting(self, dims: Sequence[Dim], axis: int, dtype: DType = SI64) -> Term:
        """0, 1, 2, ... along one axis."""
        return self.emitter.emit("iota", shape=tuple(dims), dtype=dtype, axis=axis)

    def extent(self, axis: int, dtype: DType) -> Term:
        """The size of an axis as a scalar; counted when it has only a name."""
        dim = self.shape[axis]
        if isinstance(dim, int):
            return self.emitter.literal(dim, dtype)
        ones = self.full(1, (dim,), SI64)
        return ones.sum([0]).cast(dtype)

    # -- shape -----------------------------------------------------------------------------------

    def move_axis(self, source: int, target: int) -> Term:
        """One axis taken out and put in elsewhere; the others keep their order."""
        order = [axis for axis in range(self.rank) if axis != source]
        order.insert(target, source)
        return self.transpose(order)

    def matrix_transpose(self) -> Term:
        """The last two axes exchanged."""
        return self.move_axis(self.rank - 1, self.rank - 2)

    def adjoint(self) -> Term:
        """The conjugate transpose of each matrix."""
        return self.matrix_transpose().conj()

    def sum(self, axes: Sequence[int]) -> Term:
        """The sum over axes, which disappear."""
        if not axes:
            return self
        return self.emitter.emit("reduce_sum", self, axes=tuple(axes), keepdims=False)

    def restored(self, axes: Sequence[int], dims: Sequence[Dim]) -> Term:
        """What is left of a reduction over `axes` (kept as 1 or gone) repeated to `dims`."""
        gone = normalise_axes(axes, len(dims))
        kept = tuple(1 if axis in gone else dim for axis, dim in enumerate(dims))
        leading = next((axis for axis in range(len(dims)) if axis not in gone), len(dims))
        # What a broadcast adds in front need not be there before.
        whole = self if self.shape == kept[leading:] else self.reshape(kept)
        return whole.broadcast_to(dims)

    def reduced_to(self, dims: Sequence[Dim]) -> Term:
        """The sum over all copies that a broadcast from `dims` made."""
        added = self.rank - len(dims)
        copied = zip(dims, self.shape[added:], strict=True)
        # Axes that were put in front, and those that grew from 1.
        grown = [added + axis for axis, (dim, size) in enumerate(copied) if dim != size]
        return self.sum([*range(added), *grown]).reshape(dims)

    def along(self, axis: int, dims: Sequence[Dim]) -> Term:
        """A rank-1 term laid along one axis of `dims` and repeated over the others."""
        column = [self.shape[0] if d == axis else 1 for d in range(len(dims))]
        return self.reshape(column).broadcast_to(dims)

    def slice(self, starts: Sequence[int], sizes: Sequence[int]) -> Term:
        if tuple(sizes) == self.shape:
            return self
        return self.emitter.emit("slice", self, starts=tuple(starts), sizes=tuple(sizes))

    def part(self, axis: int, start: int, size: int) -> Term:
        """A window along one axis; other axes of dynamic size are no obstacle."""
        if self.shape[axis] == size:
            return self
        if all(isinstance(dim, int) for dim in self.shape):
            starts = [start if d == axis else 0 for d in range(self.rank)]
            return self.slice(starts, [size if d == axis else n for d, n in enumerate(self.sizes)])
        positions = self.counting((size,), 0) + start
        return self.taken(axis, positions)

    def taken(self, axis: int, positions: Term) -> Term:
        """The elements at rank-1 positions along an axis."""
        first = self.move_axis(axis, 0)
        return self.emitter.emit("take", first, positions).move_axis(0, axis)

    def flipped(self, axis: int) -> Term:
        """The elements along an axis in reverse order."""
        dim = self.shape[axis]
        if isinstance(dim, int):
            last = self.full(dim - 1, (dim,), SI64)
            return self.taken(axis, last - self.counting((dim,), 0)) if dim > 1 else self
        # Ones added up from the end, less one: n - 1 down to 0, for a size that has only a name as
        # well.
        positions = self.full(1, (dim,), SI64).cumulative_sum(axis=0, reverse=True) - 1
        return self.taken(axis, positions)

    def pad(
        self,
        low: Sequence[int],
        high: Sequence[int],
        interior: Sequence[int] | None = None,
        value: Number = 0,
    ) -> Term:
        """The term with a number around and between its elements."""
        between = tuple(interior or [0] * self.rank)
        if not any((*low, *high, *between)):
            return self
        return self.emitter.emit(
            "pad", self, low=tuple(low), high=tuple(high), interior=between,
            pad_value=scalar_literal(value, self.dtype),
        )  # fmt: skip

    def shifted(self, axis: int, steps: int, fill: Number) -> Term:
        """The elements moved along an axis, up or down; a number comes in behind them."""
        extent = self.shape[axis]
        if isinstance(extent, Symbol):
            raise unknown_size(extent)
        if abs(steps) >= extent:
            return self.like(fill)
        kept = self.part(axis, max(-steps, 0), extent - abs(steps))
        low, high = [0] * self.rank, [0] * self.rank
        low[axis], high[axis] = max(steps, 0), max(-steps, 0)
        return kept.pad(low, high, value=fill)

    def placed(self, starts: Sequence[int], dims: Sequence[Dim]) -> Term:
        """Zeros of shape `dims` with this term in them from `starts` on."""
        if tuple(dims) == self.shape:
            return self
        sizes = self.sizes
        known = [dim for dim in dims if isinstance(dim, int)]
        if len(known) == len(dims):
            spans = zip(known, starts, sizes, strict=True)
            return self.pad(starts, [dim - start - size for dim, start, size in spans])
        start = self.emitter.literal(list(starts), SI64)
        return self.full(0, dims).dynamic_update_slice(self, start, sizes=sizes)

    def every(self, axis: int, step: int, count: int) -> Term:
        """`count` elements along an axis, `step` apart, from the first on."""
        if step == 1 and self.shape[axis] == count:
            return self
        if count == 0:
            return self.part(axis, 0, 0)
        sizes = self.sizes
        needed = (count - 1) * step + 1
        short = [step - 1 if d == axis else 0 for d in range(self.rank)]
        # Filled up so that the elements are whole steps: each step is then a row, and its first
        # element is wanted.
        padded = self.part(axis, 0, needed).pad([0] * self.rank, short)
        rows = padded.reshape([*sizes[:axis], count, step, *sizes[axis + 1 :]])
        return rows.part(axis + 1, 0, 1).reshape([*sizes[:axis], count, *sizes[axis + 1 :]])

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape where it must be known in numbers."""
        for dim in self.shape:
            if isinstance(dim, Symbol):
                raise unknown_size(dim)
        return self.tensor.static_shape

    # -- matrices --------------------------------------------------------------------------------

    def dot(
        self, other: Term, contract: Axes, batch: Axes = ((), ()), **dtypes: DType | None
    ) -> Term:
        """The sums of products over the axes in `contract`, of this term and of the other one,
        for each place along the axes in `batch`."""
        return self.emitter.emit(
            "dot_general", self, other, batch_lhs=tuple(batch[0]), batch_rhs=tuple(batch[1]),
            contract_lhs=tuple(contract[0]), contract_rhs=tuple(contract[1]), **dtypes,
        )  # fmt: skip

    def __matmul__(self, other: Term) -> Term:
        """The product of the last two axes; all others are batch axes and equal."""
        batch = range(self.rank - 2)
        return self.dot(other, ([self.rank - 1], [self.rank - 2]), (batch, batch))

    def mask(self, op: str) -> Term:
        """Where row `op` column holds, in the shape of a matrix term, as i1."""
        row = self.counting(self.shape, self.rank - 2)
        return row.compare(self.counting(self.shape, self.rank - 1), op)


def unknown_size(dim: Symbol) -> Unimplemented:
    """The refusal of a rule that needs a size in numbers."""
    return Unimplemented(
        f"the size {dim}",
        "a rule needs it as a number; give the program static dims there, or specialise it first",
    )


def known_size(dim: Dim) -> int:
    """A dim that a formula needs as a number."""
    if isinstance(dim, Symbol):
        raise unknown_size(dim)
    return dim


def any_of(masks: Sequence[Term]) -> Term:
    """Where at least one of the masks holds."""
    found = masks[0]
    for mask in masks[1:]:
        if mask.dtype is not I1:
            raise InternalError(f"{mask.type} is not a mask")
        found = found.emitter.emit("maximum", found, mask)
    return found


@dataclass(frozen=True)
class Pullback:
    """What a gradient rule is given: one instruction seen from behind.

    `cotangents` has an entry for each tensor of the result, with its type; None stands for zero.
    `wanted` says of which operands the cotangent is asked for: floats and complex numbers that
    depend on what the gradient is taken with respect to.
    """

    operands: tuple[Term, ...]
    result: Term
    cotangents: tuple[Term | None, ...]
    wanted: tuple[bool, ...]
    classes: Classes = SAME
    """Which ranks of a mesh have the same result."""

    @property
    def cotangent(self) -> Term:
        """The cotangent of the only result."""
        (found,) = self.cotangents
        if found is None:
            raise InternalError("a gradient rule was asked about a result without a cotangent")
        return found

    @property
    def of_elements(self) -> tuple[Term, ...]:
        """The cotangent of each element of a tuple; zeros where there is none."""
        return tuple(
            self.result[index].like(0) if found is None else found
            for index, found in enumerate(self.cotangents)
        )


Parts: TypeAlias = Term | tuple[Term, ...]
"""A result as a formula: one term, or one for each element of a tuple."""
Cotangents: TypeAlias = Sequence[Term | None]
"""One for each operand, with its type; None for zero, and where none was asked for."""
