"""Collectives: what the ranks of a mesh compute together. Every rank runs the same program; a
collective is where the members of a group meet, with StableHLO's meaning.

`groups` lists all ranks, group after group, `size` of them each; the place of a rank in its group
counts from 0. `line` is the line of the user's that asked for it: ranks run in several processes,
and a message of one has to say where the others are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from weft.foundation.axes import normalise_axis
from weft.foundation.dtypes import ANY, BOOL, NUMBERS, ORDERED, SI64, DType
from weft.foundation.errors import Unimplemented
from weft.foundation.partitions import Classes, Groups, classes_of, one_of_each, split_classes
from weft.foundation.ranks import Begun, Exchange, Meeting, World, world_of
from weft.ptir.op import Array, EvalContext, Op, Scope, extension_op, op_base
from weft.ptir.rules import invalid_attribute, length_is
from weft.ptir.schema import USIZES, Choice, Isize, ListOf, String, Usize, WireEnum, attr
from weft.ptir.term import Cotangents, Pullback, Term
from weft.ptir.types import Symbol, TensorType, ValueType, multiply_dims


class RankReduction(WireEnum):
    """How the elements of several ranks become one."""

    SUM = "Sum"
    PROD = "Prod"
    MIN = "Min"
    MAX = "Max"


_DEFINED: Mapping[RankReduction, frozenset[DType]] = {
    RankReduction.SUM: NUMBERS | BOOL,
    RankReduction.PROD: NUMBERS | BOOL,
    RankReduction.MIN: ORDERED,
    RankReduction.MAX: ORDERED,
}


@op_base
class OfRanks(Op):
    """An op that the ranks of a mesh carry out together, or that says something of them."""

    @property
    def rank_count(self) -> int:
        """How many ranks the program is for."""
        raise NotImplementedError

    def result_classes(self, operands: Sequence[Classes]) -> Classes:
        """The classes of the result, given those of the operands."""
        raise NotImplementedError

    def given_classes(self, operand: Classes) -> Classes:
        """The classes in which an operand is read: cotangents of it are counted by these."""
        return operand


@op_base
class Collective(OfRanks):
    """Where the members of each group meet."""

    operands = ("x",)
    dtypes = {"x": ANY}

    groups: tuple[int, ...] = attr(USIZES)
    size: int = attr(Usize())

    def result_type(self, types: Sequence[ValueType], scope: Scope) -> ValueType:
        self.check_groups()
        return super().result_type(types, scope)

    def check_groups(self) -> None:
        """The groups name each rank once."""
        if self.size < 1 or not self.groups or len(self.groups) % self.size:
            raise invalid_attribute(
                f"{len(self.groups)} ranks do not make groups of {self.size} in {self.name}"
            )
        if sorted(self.groups) != list(range(len(self.groups))):
            raise invalid_attribute(
                f"the groups of {self.name} name each rank from 0 to {len(self.groups) - 1} once"
            )

    @property
    def rank_count(self) -> int:
        return len(self.groups)

    @property
    def rows_of_ranks(self) -> Groups:
        starts = range(0, len(self.groups), self.size)
        return tuple(self.groups[start : start + self.size] for start in starts)

    @property
    def places(self) -> tuple[int, ...]:
        """For each rank its place in its group."""
        found = [0] * len(self.groups)
        for at, rank in enumerate(self.groups):
            found[rank] = at % self.size
        return tuple(found)

    def members(self, rank: int) -> tuple[int, ...]:
        start = self.groups.index(rank) // self.size * self.size
        return self.groups[start : start + self.size]

    def given_classes(self, operand: Classes) -> Classes:
        """Members of a group count one by one, also where they hold the same."""
        return split_classes([operand, classes_of(self.places)])

    def in_groups(self, operand: Classes) -> Classes:
        """The classes of what all members of a group know: their values, in order."""
        given = self.given_classes(operand) or (0,) * self.rank_count
        keys = [tuple(given[m] for m in self.members(r)) for r in range(self.rank_count)]
        return classes_of(keys)

    def part_classes(self, operand: Classes) -> Classes:
        """The classes of what each member makes for itself of that."""
        return split_classes([self.in_groups(operand), classes_of(self.places)])

    def world(self) -> World:
        return world_of(self.rank_count, self.mnemonic)

    def meeting(self, world: World, x: Array, **attrs: int | str) -> Meeting:
        members, line = self.members(world.rank), getattr(self, "line", "")
        return _describe_meeting(self.name, x.dtype, x.shape, tuple(attrs.items()), members, line)

    def exchange(self, dtype: DType, shape: Sequence[int]) -> Exchange | None:
        """The collective for devices that exchange tensors themselves; None where a rank's part is
        not one piece of memory."""
        del dtype, shape
        return None

    def place_term(self, like: Term) -> Term:
        """The place of this rank in its group, as a scalar."""
        return like.emitter.emit("mesh_rank", numbers=self.places)

    def counted_once(self, g: Term, classes: Classes) -> Term:
        """The sum of a cotangent over the classes that its value has within each group."""
        found: list[tuple[int, ...]] = []
        for row in self.rows_of_ranks:
            groups = one_of_each(row, classes)
            if groups is None:
                raise Unimplemented(
                    f"the gradient of {self.name}", "its groups hold classes of different sizes"
                )
            found += groups
        size = len(found[0])
        if any(len(group) != size for group in found):
            raise Unimplemented(
                f"the gradient of {self.name}", "its groups differ in their classes"
            )
        return summed(g, tuple(found), getattr(self, "line", ""))


@lru_cache(1024)
def _describe_meeting(
    op: str,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    attrs: tuple[tuple[str, int | str], ...],
    members: tuple[int, ...],
    line: str,
) -> Meeting:
    """A collective in words, made once: the name of a dtype alone takes NumPy microseconds."""
    said = "".join(f" {name}={value}" for name, value in attrs)
    return Meeting(f"{op} of {dtype}{list(shape)}{said}", members, line)


def _stand_in(dtype: DType, shape: Sequence[int]) -> Array:
    """An array of a type that takes no memory."""
    return np.broadcast_to(np.zeros((), dtype.numpy), tuple(shape))


def _comes_first(axis: int, shape: Sequence[int]) -> bool:
    """Whether parts along an axis are pieces of memory, one behind the other."""
    return all(extent == 1 for extent in shape[:axis])


def summed(g: Term, groups: Groups, line: str = "") -> Term:
    """The sum of a term over groups of ranks."""
    size = len(groups[0])
    if size == 1:
        return g
    ranks = tuple(rank for group in groups for rank in group)
    return g.all_reduce(groups=ranks, size=size, fn="sum", line=line)


def _of_operand(
    op: Collective, fn: RankReduction, x: Term, result: Term, g: Term, line: str
) -> Term:
    """The cotangent of what a member gives to a reduction, given that of the whole result. The
    least or largest elements share it where there are several."""
    if fn is RankReduction.SUM:
        return g
    if fn is RankReduction.PROD:
        return g * _of_others(op, x, line).conj()
    chosen = x.like(1).where(x.compare(result, "equal"))
    return g * chosen / summed(chosen, op.rows_of_ranks, line)


def _of_others(op: Collective, x: Term, line: str) -> Term:
    """The product of what the other members have."""
    row = x.reshape((1, *x.shape))
    rows = row.all_gather(groups=op.groups, size=op.size, axis=0, line=line)
    number = x.counting(rows.shape, 0)
    mine = number.compare(op.place_term(x).broadcast_to(rows.shape), "equal")
    return rows.like(1).where(mine, rows).reduce_prod(axes=(0,), keepdims=False)


def _own_part(op: Collective, g: Term, axis: int) -> Term:
    """The part of a term along an axis that belongs to this rank's place."""
    sizes = list(g.tensor.static_shape)
    sizes[axis] //= op.size
    place = op.place_term(g) * sizes[axis]
    zero = place * 0
    parts = [(place if d == axis else zero).reshape((1,)) for d in range(g.rank)]
    start = parts[0] if g.rank == 1 else g.emitter.emit("concat", *parts, axis=0)
    return g.dynamic_slice(start, sizes=tuple(sizes))


def _find_cut(op: Collective, x: TensorType, axis: int) -> tuple[int, int]:
    """The axis that is cut into a part for each member, and the extent of a part."""
    found = normalise_axis(axis, x.rank)
    extent = x.shape[found]
    if isinstance(extent, Symbol) or extent % op.size:
        raise invalid_attribute(
            f"axis {found} of {op.name} has size {extent}, which is not a multiple of the "
            f"{op.size} ranks of a group"
        )
    return found, extent // op.size


@extension_op("all_reduce")
class AllReduce(Collective):
    """The sum, product, minimum or maximum (`fn`) of the operands of all members of a group, on
    each of them. It is computed as a balanced tree over the members in order, `(r0 + r1) + (r2 +
    r3)`; floats under 32 bits are combined in f32 and rounded once, integers wrap, and on i1 sums
    are or and products and. A transport may use another tree for floats. If several ranks have the
    same extreme value, they share the cotangent equally."""

    fn: RankReduction = attr(Choice(RankReduction))
    line: str = attr(String(), default="")

    @property
    def dtype_table(self) -> Mapping[str, frozenset[DType]]:
        return {"x": _DEFINED[self.fn]}

    def infer(self, *types: TensorType) -> TensorType:
        return types[0]

    def result_classes(self, operands: Sequence[Classes]) -> Classes:
        return self.in_groups(operands[0])

    @property
    def ranks_and_fn(self) -> tuple[tuple[int, ...], int, RankReduction]:
        """What several must have in common to be one exchange."""
        return self.groups, self.size, self.fn

    def exchange(self, dtype: DType, shape: Sequence[int]) -> Exchange | None:
        fn = str(self.fn)
        meeting = self.meeting(self.world(), _stand_in(dtype, shape), fn=fn)
        return Exchange("all_reduce", meeting, fn)

    def begin(
        self, parts: Sequence[Array], results: Sequence[Array], at_once: bool, step: str
    ) -> Begun:
        """Begin to reduce some arrays of one dtype into others, as one exchange, which a step of a
        program is."""
        world, fn = self.world(), str(self.fn)
        meeting = self.meeting(world, parts[0], fn=fn)
        if len(parts) > 1:
            total = sum(part.size for part in parts)
            what = f"{len(parts)} tensors, {parts[0].dtype}[{total}]"
            meeting = replace(meeting, name=f"{self.name} of {what} fn={fn}, {step}")
        return world.begin_all_reduce(meeting, parts, results, fn, at_once)

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        (x,) = args
        world, fn = self.world(), str(self.fn)
        return world.all_reduce(self.meeting(world, x, fn=fn), x, fn)

    def vjp(self, at: Pullback) -> Cotangents:
        (x,) = at.operands
        g = self.counted_once(at.cotangent, at.classes)
        return (_of_operand(self, self.fn, x, at.result, g, self.line),)


@extension_op("all_gather")
class AllGather(Collective):
    """The operands of all members of a group, concatenated along `axis` in the order of the group,
    on each of them."""

    axis: int = attr(Isize())
    line: str = attr(String(), default="")

    def infer(self, *types: TensorType) -> TensorType:
        (x,) = types
        axis = normalise_axis(self.axis, x.rank)
        extent = multiply_dims(x.shape[axis], self.size)
        return x.with_shape((*x.shape[:axis], extent, *x.shape[axis + 1 :]))

    def result_classes(self, operands: Sequence[Classes]) -> Classes:
        return self.in_groups(operands[0])

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        (x,) = args
        world, axis = self.world(), normalise_axis(self.axis, x.ndim)
        return world.all_gather(self.meeting(world, x, axis=axis), x, axis)

    def exchange(self, dtype: DType, shape: Sequence[int]) -> Exchange | None:
        axis = normalise_axis(self.axis, len(shape))
        meeting = self.meeting(self.world(), _stand_in(dtype, shape), axis=axis)
        return Exchange("all_gather", meeting) if _comes_first(axis, shape) else None

    def vjp(self, at: Pullback) -> Cotangents:
        axis = normalise_axis(self.axis, at.cotangent.rank)
        distinct = len({at.classes[m] for m in self.members(0)}) if at.classes else 1
        if distinct == self.size:
            found = at.cotangent.reduce_scatter(
                groups=self.groups, size=self.size, axis=axis, fn="sum", line=self.line
            )
            return (found,)
        return (_own_part(self, self.counted_once(at.cotangent, at.classes), axis),)


@extension_op("reduce_scatter")
class ReduceScatter(Collective):
    """The result of `all_reduce`, split along `axis` into one part for each member of the group: a
    member gets the part with its number. The extent of the axis is a multiple of the number of
    members."""

    axis: int = attr(Isize())
    fn: RankReduction = attr(Choice(RankReduction))
    line: str = attr(String(), default="")

    @property
    def dtype_table(self) -> Mapping[str, frozenset[DType]]:
        return {"x": _DEFINED[self.fn]}

    def infer(self, *types: TensorType) -> TensorType:
        (x,) = types
        axis, extent = _find_cut(self, x, self.axis)
        return x.with_shape((*x.shape[:axis], extent, *x.shape[axis + 1 :]))

    def result_classes(self, operands: Sequence[Classes]) -> Classes:
        return self.part_classes(operands[0])

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        (x,) = args
        world, fn = self.world(), str(self.fn)
        axis = normalise_axis(self.axis, x.ndim)
        return world.reduce_scatter(self.meeting(world, x, axis=axis, fn=fn), x, axis, fn)

    def exchange(self, dtype: DType, shape: Sequence[int]) -> Exchange | None:
        axis, fn = normalise_axis(self.axis, len(shape)), str(self.fn)
        meeting = self.meeting(self.world(), _stand_in(dtype, shape), axis=axis, fn=fn)
        return Exchange("reduce_scatter", meeting, fn) if _comes_first(axis, shape) else None

    def vjp(self, at: Pullback) -> Cotangents:
        (x,) = at.operands

        def whole(part: Term) -> Term:
            return part.all_gather(
                groups=self.groups, size=self.size, axis=self.axis, line=self.line
            )

        g = whole(at.cotangent)
        if self.fn is RankReduction.SUM:
            return (g,)
        return (_of_operand(self, self.fn, x, whole(at.result), g, self.line),)


@extension_op("all_to_all")
class AllToAll(Collective):
    """Each member's operand is split along `split` into one part for each member; a member gets the
    parts with its number, and concatenates them along `concat` in the order of the group."""

    split: int = attr(Isize())
    concat: int = attr(Isize())
    line: str = attr(String(), default="")

    def infer(self, *types: TensorType) -> TensorType:
        (x,) = types
        cut, part = _find_cut(self, x, self.split)
        joined = normalise_axis(self.concat, x.rank)
        extents = list(x.shape)
        extents[cut] = part
        extents[joined] = multiply_dims(extents[joined], self.size)
        return x.with_shape(extents)

    def result_classes(self, operands: Sequence[Classes]) -> Classes:
        return self.part_classes(operands[0])

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        (x,) = args
        world = self.world()
        cut, joined = (normalise_axis(a, x.ndim) for a in (self.split, self.concat))
        meeting = self.meeting(world, x, split=cut, concat=joined)
        return np.concatenate(world.all_to_all(meeting, x, cut), joined)

    def exchange(self, dtype: DType, shape: Sequence[int]) -> Exchange | None:
        cut, joined = (normalise_axis(a, len(shape)) for a in (self.split, self.concat))
        meeting = self.meeting(self.world(), _stand_in(dtype, shape), split=cut, concat=joined)
        whole = cut == joined and _comes_first(cut, shape)
        return Exchange("all_to_all", meeting) if whole else None

    def vjp(self, at: Pullback) -> Cotangents:
        found = at.cotangent.all_to_all(
            groups=self.groups, size=self.size, split=self.concat, concat=self.split, line=self.line
        )
        return (found,)


@extension_op("collective_permute")
class CollectivePermute(Collective):
    """Member number `sources[i]` sends its operand to member number `targets[i]`, in every group. A
    member that receives nothing gets zeros. No number occurs twice in either list."""

    sources: tuple[int, ...] = attr(USIZES)
    targets: tuple[int, ...] = attr(USIZES)
    line: str = attr(String(), default="")

    def check_groups(self) -> None:
        super().check_groups()
        named = (self.sources, self.targets)
        if len(self.sources) != len(self.targets) or any(
            len(set(places)) < len(places) or max(places, default=0) >= self.size
            for places in named
        ):
            raise invalid_attribute(
                f"sources and targets of collective_permute are places below {self.size}, each at "
                "most once, and as many of one as of the other"
            )

    def infer(self, *types: TensorType) -> TensorType:
        return types[0]

    def result_classes(self, operands: Sequence[Classes]) -> Classes:
        return self.part_classes(operands[0])

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        (x,) = args
        world = self.world()
        sent = self._find_exchange(world, x)
        return world.permute(sent.meeting, x, sent.source, sent.target)

    def exchange(self, dtype: DType, shape: Sequence[int]) -> Exchange | None:
        return self._find_exchange(self.world(), _stand_in(dtype, shape))

    def _find_exchange(self, world: World, x: Array) -> Exchange:
        """From whom to whom, as this rank sees it."""
        pairs = str(list(zip(self.sources, self.targets, strict=True)))
        meeting = self.meeting(world, x, pairs=pairs)
        place = meeting.members.index(world.rank)
        source = self.sources[self.targets.index(place)] if place in self.targets else -1
        target = self.targets[self.sources.index(place)] if place in self.sources else -1
        return Exchange("permute", meeting, source=source, target=target)

    def vjp(self, at: Pullback) -> Cotangents:
        back = replace(self, sources=self.targets, targets=self.sources)
        found = at.cotangent.collective_permute(
            groups=back.groups, size=back.size, sources=back.sources, targets=back.targets,
            line=back.line,
        )  # fmt: skip
        return (found,)


@extension_op("collective_broadcast")
class CollectiveBroadcast(Collective):
    """The operand of the first member of a group, on each of them."""

    line: str = attr(String(), default="")

    def infer(self, *types: TensorType) -> TensorType:
        return types[0]

    def result_classes(self, operands: Sequence[Classes]) -> Classes:
        given = operands[0] or (0,) * self.rank_count
        return classes_of([given[self.members(r)[0]] for r in range(self.rank_count)])

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        (x,) = args
        world = self.world()
        return world.broadcast(self.meeting(world, x), x)

    def exchange(self, dtype: DType, shape: Sequence[int]) -> Exchange | None:
        return Exchange("broadcast", self.meeting(self.world(), _stand_in(dtype, shape)))

    def vjp(self, at: Pullback) -> Cotangents:
        g = self.counted_once(at.cotangent, at.classes)
        first = self.place_term(g).compare(0, "equal").broadcast_to(g.shape)
        return (g.where(first),)


@extension_op("mesh_rank")
class Rank(OfRanks):
    """The entry of `numbers` for the rank that runs the program, as si64: for 0, 1, 2, ... the
    number of the rank, for other lists its position along an axis of the mesh."""

    operands = ()
    dtypes = {"result": frozenset({SI64})}
    no_gradient = "integers have no derivative"

    numbers: tuple[int, ...] = attr(ListOf(Isize()))

    @property
    def rank_count(self) -> int:
        return len(self.numbers)

    def infer(self, *types: TensorType) -> TensorType:
        _check_numbers("numbers", self.name, self.numbers, 1 << 31)
        return TensorType(SI64, ())

    def result_classes(self, operands: Sequence[Classes]) -> Classes:
        return classes_of(self.numbers)

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        return np.asarray(self.numbers[world_of(self.rank_count, "mesh_rank").rank], np.int64)


def _check_numbers(what: str, name: str, numbers: Sequence[int], below: int) -> None:
    """A number for each rank, within a bound."""
    if not numbers:
        raise invalid_attribute(f"{name} needs one number for each rank, but has none")
    if max(numbers) >= below:
        raise invalid_attribute(f"the {what} of {name} lie between 0 and {below - 1}")


@extension_op("reshard")
class Reshard(Op):
    """The operand. `axes` has an entry for each of its axes: the axes of a mesh, separated by
    commas, over which that axis should be split, or nothing. It is a request to the pass that
    splits the program over a mesh (`weft.parallel`) and computes nothing itself."""

    operands = ("x",)
    dtypes = {"x": ANY}

    axes: tuple[str, ...] = attr(ListOf(String()))

    def infer(self, *types: TensorType) -> TensorType:
        (x,) = types
        length_is(self.axes, x.rank, "axes")
        return x

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        return args[0]

    def vjp(self, at: Pullback) -> Cotangents:
        """The cotangent is split in the same way."""
        return (at.cotangent.reshard(axes=self.axes),)


@op_base
class Claim(OfRanks):
    """Says which ranks hold the same; it computes nothing."""

    operands = ("x",)
    dtypes = {"x": ANY}

    classes: tuple[int, ...] = attr(USIZES)

    @property
    def rank_count(self) -> int:
        return len(self.classes)

    def infer(self, *types: TensorType) -> TensorType:
        _check_numbers("classes", self.name, self.classes, len(self.classes))
        return types[0]

    def evaluate(self, ctx: EvalContext, *args: Array) -> Any:
        return args[0]

    def vjp(self, at: Pullback) -> Cotangents:
        return (at.cotangent,)


@extension_op("mark_varying")
class MarkVarying(Claim):
    """The operand, as a value that may differ between ranks with different `classes`. Parameters of
    a program are the same on all ranks unless they are marked."""

    def result_classes(self, operands: Sequence[Classes]) -> Classes:
        return split_classes([operands[0], classes_of(self.classes)])


@extension_op("assert_same")
class AssertSame(Claim):
    """The operand; the program asserts that it is the same on ranks with equal `classes`. The
    verifier rejects a program if this does not follow from how the operand was computed."""

    def result_classes(self, operands: Sequence[Classes]) -> Classes:
        return operands[0]
