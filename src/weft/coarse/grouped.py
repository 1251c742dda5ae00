"""Grouped matrix products: groups of rows with a matrix each, as in a mixture of experts.

The rows of a group follow one another, and numbers that are known only at run time say where each
group ends. The formula cuts every group into blocks of equally many rows, the last of which may
reach into the next group: so there is one product of a batch of blocks, whatever the groups are,
and at most as many blocks as equal groups and a rest of each would make. What a block has computed
of rows that are not its own, nobody reads.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.foundation.dtypes import BF16, F16, F32, F64, INDICES, SI64
from weft.foundation.grouped_rows import GroupedRows, OuterRows
from weft.foundation.numeric import wide_dtype
from weft.foundation.whole_ops import WholeOp
from weft.ptir.composite import Composite
from weft.ptir.op import coarse_op
from weft.ptir.rules import rank_is, same_dim, same_dtype
from weft.ptir.schema import Bool, attr
from weft.ptir.term import Cotangents, Pullback, Term
from weft.ptir.types import TensorType

MULTIPLIED = frozenset({F16, BF16, F32, F64})
_LARGEST_BLOCK = 128
"""Rows of a block at most: from here on larger ones are no faster."""


@dataclass(frozen=True)
class _Blocks:
    """Where the blocks of all groups lie. Those that there is room for but no rows come last."""

    size: int
    """Rows of a block."""
    starts: Term
    """The first row of each group, `[groups]`."""
    ends: Term
    first: Term
    """The number of the first block of each group, `[groups]`."""
    group: Term
    """The group of each block, `[blocks]`."""
    rows: Term
    """The rows of each block, `[blocks, size]`, past the last one where it has none."""

    @property
    def own(self) -> Term:
        """Which rows belong to the group of their block."""
        end = self.ends.take(self.group)
        return self.rows.compare(end.along(0, self.rows.shape), "less")

    def read(self, x: Term) -> Term:
        """The rows of x, `[blocks, size, ...]`."""
        return x.take(self.rows.minimum(x.sizes[0] - 1))

    def place(self, rows: int) -> tuple[Term, Term]:
        """For every row its place among those of all blocks, and whether it is of a group."""
        number, groups = self.starts.counting((rows,), 0), self.starts.sizes[0]
        owner = _count_reached_ends(self.ends, number)
        group = owner.minimum(groups - 1)
        inside = number - self.starts.take(group)
        last = self.group.sizes[0] * self.size - 1
        place = (self.first.take(group) * self.size + inside).minimum(last)
        return place, owner.compare(groups, "less")


def _count_reached_ends(ends: Term, numbers: Term) -> Term:
    """How many ends each number has reached."""
    pairs = (numbers.sizes[0], ends.sizes[0])
    reached = numbers.along(0, pairs).compare(ends.along(1, pairs), "greater_equal")
    return reached.cast(SI64).sum([1])


def _group_blocks(offsets: Term, rows: int) -> _Blocks:
    """The blocks of `rows` rows. Offsets outside of them, and such that fall, are moved."""
    groups = offsets.sizes[0]
    # The power of two from the mean of the groups on.
    size = min(_LARGEST_BLOCK, 1 << (-(-rows // groups) - 1).bit_length())
    # A group of n rows takes at most (n + size - 1) / size blocks, and none without a row.
    count = min(rows, (rows + groups * (size - 1)) // size)
    ends = offsets.cast(SI64).maximum(0).minimum(rows).cumulative_max(axis=0)
    starts = ends.shifted(0, 1, 0)
    blocks = (ends - starts + (size - 1)) / size
    last = blocks.cumulative_sum(axis=0)
    first = last - blocks
    number = offsets.counting((count,), 0)
    group = _count_reached_ends(last, number).minimum(groups - 1)
    row = starts.take(group) + (number - first.take(group)) * size
    inside = offsets.counting((count, size), 1)
    return _Blocks(size, starts, ends, first, group, row.along(0, (count, size)) + inside)


@coarse_op("weft.grouped_matmul.v1", name="weft.grouped_matmul")
class GroupedMatmul(Composite):
    """Multiplies each group of rows of `input` `[rows, k]` by its own matrix of `weight` `[groups,
    k, n]`, or with `transposed` `[groups, n, k]`: the result is `[rows, n]`. `offsets[g]` is the
    row at which group g ends and the next one begins; rows after the last group are 0. An offset
    below the previous one counts as equal to it, one below 0 as 0, and one above `rows` as `rows`.
    Floats under 32 bits are multiplied and added up in f32, and rounded once."""

    operands = ("input", "weight", "offsets")
    dtypes = {"input": MULTIPLIED, "weight": MULTIPLIED, "offsets": INDICES}

    transposed: bool = attr(Bool(), usual=False)

    def infer(self, *types: TensorType) -> TensorType:
        x, weight, offsets = types
        rank_is(x, 2, "input")
        rank_is(weight, 3, "weight")
        rank_is(offsets, 1, "offsets")
        same_dtype(x, weight, "input and weight")
        same_dim(offsets.shape[0], weight.shape[0], "offsets and weight differ in groups")
        columns, depth = weight.shape[1:] if self.transposed else weight.shape[:0:-1]
        same_dim(x.shape[1], depth, "input and weight differ in the extent that is summed over")
        return x.with_shape((x.shape[0], columns))

    def decompose(self, *operands: Term) -> Term:
        x, weight, offsets = operands
        rows, groups = x.sizes[0], weight.sizes[0]
        columns = weight.sizes[1 if self.transposed else 2]
        if not rows or not groups:
            return x.full(0, (rows, columns))
        blocks = _group_blocks(offsets, rows)
        axes = ([2], [2 if self.transposed else 1])
        made = blocks.read(x).dot(weight.take(blocks.group), axes, ([0], [0]))
        place, has_group = blocks.place(rows)
        every = made.reshape((blocks.group.sizes[0] * blocks.size, columns))
        return every.take(place).where(has_group.along(0, (rows, columns)))

    def whole(self, *types: TensorType) -> WholeOp | None:
        (rows, depth), (groups, *sides), _ = (kind.static_shape for kind in types)
        return GroupedRows(rows, groups, depth, sides[not self.transposed], self.transposed)

    def vjp(self, at: Pullback) -> Cotangents:
        x, weight, offsets = at.operands
        back: list[Term | None] = [None, None, None]
        if at.wanted[0]:
            turned = {"transposed": not self.transposed}
            back[0] = at.cotangent.emitter.emit(
                "weft.grouped_matmul", at.cotangent, weight, offsets, **turned
            )
        if at.wanted[1]:
            sides = (at.cotangent, x) if self.transposed else (x, at.cotangent)
            back[1] = x.emitter.emit("weft.grouped_outer", *sides, offsets)
        return back


@coarse_op("weft.grouped_outer.v1", name="weft.grouped_outer")
class GroupedOuter(Composite):
    """For each group of rows, the transposed rows of `lhs` `[rows, m]` times the rows of `rhs`
    `[rows, n]`: the result is `[groups, m, n]`, the gradient of the weights of
    `weft.grouped_matmul`. Groups are defined as there; a group without rows gives 0. Floats under
    32 bits are multiplied and added up in f32, and rounded once."""

    operands = ("lhs", "rhs", "offsets")
    dtypes = {"lhs": MULTIPLIED, "rhs": MULTIPLIED, "offsets": INDICES}

    def infer(self, *types: TensorType) -> TensorType:
        lhs, rhs, offsets = types
        rank_is(lhs, 2, "lhs")
        rank_is(rhs, 2, "rhs")
        rank_is(offsets, 1, "offsets")
        same_dtype(lhs, rhs, "lhs and rhs")
        same_dim(lhs.shape[0], rhs.shape[0], "lhs and rhs differ in rows")
        return lhs.with_shape((offsets.shape[0], lhs.shape[1], rhs.shape[1]))

    def decompose(self, *operands: Term) -> Term:
        lhs, rhs, offsets = operands
        (rows, height), width, groups = lhs.sizes, rhs.sizes[1], offsets.sizes[0]
        if not rows or not groups:
            return lhs.full(0, (groups, height, width))
        blocks, wide = _group_blocks(offsets, rows), wide_dtype(lhs.dtype)
        reads = [blocks.read(side) for side in (lhs, rhs)]
        # What a block has of the rows of others must not count, not even as 0 times infinity.
        own = [read.where(blocks.own.restored([2], read.shape)) for read in reads]
        parts = own[0].dot(own[1], ([1], [1]), ([0], [0]), accum_dtype=wide, out_dtype=wide)
        # Blocks without rows are zeros and count for the last group, so that groups are in order.
        total = parts.segment_sum(
            blocks.group, num_segments=groups, indices_are_sorted=True, unique=False
        )
        return total.cast(lhs.dtype)

    def whole(self, *types: TensorType) -> WholeOp | None:
        (rows, height), (_, width), (groups,) = (kind.static_shape for kind in types)
        return OuterRows(rows, groups, height, width)

    def vjp(self, at: Pullback) -> Cotangents:
        lhs, rhs, offsets = at.operands
        emit, g = lhs.emitter.emit, at.cotangent
        back: list[Term | None] = [None, None, None]
        if at.wanted[0]:
            back[0] = emit("weft.grouped_matmul", rhs, g, offsets, transposed=True)
        if at.wanted[1]:
            back[1] = emit("weft.grouped_matmul", lhs, g, offsets, transposed=False)
        return back
