"""Filter gradients of grouped convolutions with few channels: neighbouring groups are merged.

    sum over p of x[p + r, 8*b + c] * g[p, 8*b + m]
                                  -->  t[a, m', r, c'], m' and c' < 64, kept where m' / 8 = c' / 8

Matrix units take 64 channels at once; a group of eight is mostly padding there. Eight groups are
multiplied as if they were one, and of the products of all with all those within a group are kept.
What is not kept goes into no sum, so that a NaN stays in its group. Where groups are no multiple of
eight, both operands are copied first, behind channels of zeros.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from weft.foundation.dtypes import BF16, F16, F32
from weft.foundation.index_expr import Expr, Guard, axes_of, axis, coefficient, substitute
from weft.foundation.records import dataclass, replace
from weft.region.fitting.cutting import needed
from weft.region.fitting.image_copies import WORTH, Copy, Made, copied, find_board, suits
from weft.region.ir import (
    AxisIndex,
    Binary,
    Cast,
    Const,
    Kernel,
    KernelAxis,
    Let,
    Output,
    Pattern,
    Read,
    Roles,
    Select,
    Tensor,
    Unary,
)
from weft.target.target import Target

_WIDE: Final = 64
"""Channels that matrix units take at once."""
_MOST: Final = 16
"""Groups that are joined: each is multiplied with all others for nothing."""
# Twelve groups of eight channels are joined as sixteen, 1.33 times as many, which fill whole rows
# of 64 channels: 351 µs with a copy of all windows, 84.9 so (H200, docs/performance/gpu-steps.md).
_MOST_ZEROS: Final = 1.5
"""Times as many groups as there are, those of zeros among them, that are joined at most."""
_FEW_PRODUCTS: Final = 512
"""Products of a channel at a place and a tap that take less time than to copy it there: windows of
twelve groups, 120 million such channels, took 351 us to copy and multiply, 2.9 ps each."""
_AFTER: Final = (AxisIndex, Binary, Cast, Const, Read, Select, Unary)
"""What may follow the sum."""


def with_joined_groups(
    kernel: Kernel, tensors: Mapping[str, Tensor], target: Target
) -> Made | None:
    """The products of joined groups and what keeps those within a group; None where groups are no
    filters' gradient, have enough channels or cannot be joined."""
    roles = kernel.roles
    if roles is None or not target.has("wgmma") or not _is_worthwhile(kernel, roles):
        return None
    for side, across in (("lhs", roles.n), ("rhs", roles.m)):
        board = find_board(kernel, roles, side, tensors)
        if board is None or board.is_summed or len(across) != 1:
            continue
        joined = Joined(kernel, roles, board.channels, across[0])
        if not joined.count and _pays_with_more(joined):
            found = _with_more_groups(joined, tensors)
            if found is not None:
                return found
        if not joined.count or not joined.are_neighbours:
            continue
        products, between = joined.products()
        if suits(products, {**tensors, between.name: between}):
            return (products, joined.kept(between)), (between,)
    return None


def _pays_with_more(joined: Joined) -> bool:
    """Whether groups of zeros beside the others leave fewer products than copies of all windows
    would take the time of."""
    sizes, more = joined.kernel.sizes, joined.more_groups
    if not more or not joined.are_neighbours:
        return False
    count = replace(joined, kernel=_with_groups(joined, more)).count
    return count * sizes[joined.across] * more <= _FEW_PRODUCTS * sizes[joined.group]


def _with_groups(joined: Joined, count: int) -> Kernel:
    """The kernel with so many groups."""
    axes = tuple(
        replace(found, size=count) if found.name == joined.group else found
        for found in joined.kernel.axes
    )
    return replace(joined.kernel, axes=axes)


def _with_more_groups(joined: Joined, tensors: Mapping[str, Tensor]) -> Made | None:
    """The products of operands with more groups, behind the copies; None where groups are not what
    operands end with."""
    kernel, roles = joined.kernel, joined.roles
    made = _with_groups(joined, joined.more_groups)
    copies: list[Copy] = []
    for name in (roles.lhs, roles.rhs):
        own = joined.channels if joined.channels in kernel.let(name).axes else joined.across
        copy = _pad_channels(made, name, own, joined, tensors)
        if copy is None:
            return None
        copies.append(copy)
        made = replace(
            made, body=tuple(copy.read if let.name == name else let for let in made.body)
        )
    wide = replace(joined, kernel=made)
    products, between = wide.products()
    known = {copy.tensor.name: copy.tensor for copy in copies} | {between.name: between}
    if not suits(products, {**tensors, **known}):
        return None
    kernels = (*(copy.kernel for copy in copies), products, joined.kept_of(between, wide.count))
    return kernels, tuple(known.values())


def _pad_channels(
    kernel: Kernel, name: str, own: str, joined: Joined, tensors: Mapping[str, Tensor]
) -> Copy | None:
    """A copy of an operand with the channels of more groups behind its own."""
    let = kernel.let(name)
    assert isinstance(let.expr, Read)
    shape, width = tensors[let.expr.tensor].shape, kernel.sizes[own]
    channels = axis(joined.group) * width + axis(own)
    if let.expr.index[-1] is not channels:
        return None
    if any({own, joined.group} & axes_of(expr) for expr in let.expr.index[:-1]):
        return None
    names = [f"i{number}" for number, _ in enumerate(shape)]
    sizes = dict(zip(names, shape, strict=True))
    sizes[names[-1]] = width * kernel.sizes[joined.group]
    guards = (Guard(axis(names[-1]), shape[-1]),)
    read = Read(let.expr.tensor, tuple(map(axis, names)), guards, 0.0)
    copy = copied(f"{joined.kernel.name}_{name}_wide", let, read, sizes, let.expr.index)
    return replace(copy, read=replace(let, expr=replace(let.expr, tensor=copy.tensor.name)))


def _is_worthwhile(kernel: Kernel, roles: Roles) -> bool:
    """A sum of products of what is read, over so many of them that it pays."""
    if kernel.pattern is not Pattern.CONV or kernel.params or kernel.stages:
        return False
    if len(roles.batch) != 1 or math.prod(kernel.sizes.values()) < WORTH:
        return False
    before = needed({roles.contraction}, kernel)
    reads = {let.name for let in kernel.body if let.name in before and isinstance(let.expr, Read)}
    if reads != {roles.lhs, roles.rhs} or any(output.base for output in kernel.outputs):
        return False
    sides = [kernel.let(name).dtype for name in (roles.lhs, roles.rhs)]
    after = [let for let in kernel.body if let.name not in before]
    return (
        all(dtype in (BF16, F16) for dtype in sides)
        and kernel.let(roles.contraction).dtype is F32
        and all(isinstance(let.expr, _AFTER) for let in after)
        and not any(isinstance(let.expr, Read) and let.expr.places for let in kernel.body)
    )


@dataclass(frozen=True)
class Joined:
    """A convolution of groups, with the axes of the image's channels and of those beside them."""

    kernel: Kernel
    roles: Roles
    channels: str
    across: str

    @property
    def group(self) -> str:
        return self.roles.batch[0]

    @property
    def inner(self) -> str:
        """The axis of groups that are joined, where they are told apart again."""
        return f"{self.group}_joined"

    @property
    def count(self) -> int:
        """How many groups become one, with whole rows of channels; 0 where none do."""
        sizes = self.kernel.sizes
        own = sizes[self.channels]
        least, groups = min(own, sizes[self.across]), sizes[self.group]
        whole = (n for n in range(2, _MOST + 1) if groups % n == 0 and n * own % _WIDE == 0)
        return 0 if least >= _WIDE else next((n for n in whole if n * least >= _WIDE), 0)

    @property
    def more_groups(self) -> int:
        """The fewest groups, more than there are, that can be joined; 0 where that takes too many
        or groups are wide."""
        sizes = self.kernel.sizes
        own, groups = sizes[self.channels], sizes[self.group]
        least = min(own, sizes[self.across])
        whole = (n for n in range(2, _MOST + 1) if n * own % _WIDE == 0 and n * least >= _WIDE)
        count = next(whole, 0) if least < _WIDE else 0
        more = -(-groups // count) * count if count else 0
        return more if groups < more <= _MOST_ZEROS * groups else 0

    @property
    def are_neighbours(self) -> bool:
        """Whether the channels of the next group come after those of each, in both operands."""
        sides = ((self.roles.lhs, self.roles.rhs), (self.channels, self.across))
        pairs = [(self.kernel.let(name), own) for name in sides[0] for own in sides[1]]
        return all(_follows(let, self.group, own, self.kernel.sizes) for let, own in pairs)

    @property
    def sizes(self) -> dict[str, int]:
        """Of the axes of the joined groups."""
        sizes, count = self.kernel.sizes, self.count
        wide = {name: sizes[name] * count for name in (self.channels, self.across)}
        return {**sizes, **wide, self.group: sizes[self.group] // count}

    @property
    def order(self) -> tuple[str, ...]:
        """The axes of the sums, with the image's channels last."""
        outer = [*self.roles.m, *self.roles.n]
        taps = [name for name in outer if name not in (self.across, self.channels)]
        return (self.group, self.across, *taps, self.channels)

    def products(self) -> tuple[Kernel, Tensor]:
        """The sums of all products within the joined groups, and their tensor."""
        kernel, sizes = self.kernel, self.sizes
        moved = {self.group: axis(self.group) * self.count}
        before = needed({self.roles.contraction}, kernel)
        body = tuple(_substitute_axes(let, moved) for let in kernel.body if let.name in before)
        between = Tensor(f"{kernel.name}_joined", F32, tuple(sizes[name] for name in self.order))
        output = Output(between.name, self.roles.contraction, tuple(map(axis, self.order)))
        axes = tuple(replace(found, size=sizes[found.name]) for found in kernel.axes)
        name = f"{kernel.name}_groups"
        return replace(kernel, name=name, axes=axes, body=body, outputs=(output,)), between

    def kept_of(self, between: Tensor, count: int) -> Kernel:
        """The sums within a group, and what follows them, where each `count` groups were joined and
        the last of them are not wanted."""
        kernel, sizes, summed = self.kernel, self.kernel.sizes, self.roles.contraction
        inside = axis(self.group) % count
        own = {n: inside * sizes[n] + axis(n) for n in (self.channels, self.across)}
        own[self.group] = axis(self.group) // count
        place = tuple(own.get(name, axis(name)) for name in self.order)
        gone = needed({summed}, kernel) - {summed}
        body = tuple(
            Let(summed, let.dtype, let.axes, Read(between.name, place))
            if let.name == summed
            else let
            for let in kernel.body
            if let.name not in gone
        )
        axes = tuple(found for found in kernel.axes if not found.reduce)
        outputs = tuple(Output(o.tensor, o.value, o.index) for o in kernel.outputs)
        return Kernel(kernel.name, Pattern.MAP, axes, body, outputs, labels=kernel.labels)

    def kept(self, between: Tensor) -> Kernel:
        """The sums within a group, and what follows them."""
        kernel, sizes, summed = self.kernel, self.kernel.sizes, self.roles.contraction
        moved = {self.group: axis(self.group) * self.count + axis(self.inner)}
        own = {n: axis(self.inner) * sizes[n] + axis(n) for n in (self.channels, self.across)}
        place = tuple(own.get(name, axis(name)) for name in self.order)
        gone = needed({summed}, kernel) - {summed}
        body = tuple(
            replace(
                Let(summed, let.dtype, let.axes, Read(between.name, place))
                if let.name == summed
                else _substitute_axes(let, moved),
                axes=self._told_apart(let.axes),
            )
            for let in kernel.body
            if let.name not in gone
        )
        outputs = tuple(
            Output(output.tensor, output.value, tuple(substitute(x, moved) for x in output.index))
            for output in kernel.outputs
        )
        ends = {**sizes, self.group: self.sizes[self.group], self.inner: self.count}
        names = self._told_apart([found.name for found in kernel.axes if not found.reduce])
        axes = tuple(KernelAxis(name, ends[name]) for name in names)
        return Kernel(kernel.name, Pattern.MAP, axes, body, outputs, labels=kernel.labels)

    def _told_apart(self, names: Sequence[str]) -> tuple[str, ...]:
        """Axes with that of the groups in two."""
        pairs = ((name, self.inner) if name == self.group else (name,) for name in names)
        return tuple(name for pair in pairs for name in pair)


def _follows(let: Let, group: str, own: str, sizes: Mapping[str, int]) -> bool:
    """Whether an operand that has these channels has them as `group * size + channel`."""
    if own not in let.axes:
        return True
    assert isinstance(let.expr, Read)
    exprs = (*let.expr.index, *(guard.expr for guard in let.expr.guards))
    return all(
        coefficient(expr, group) == sizes[own] * coefficient(expr, own)
        and (coefficient(expr, own) != 0 or not {group, own} & {*axes_of(expr)})
        for expr in exprs
    )


def _substitute_axes(let: Let, moved: Mapping[str, Expr]) -> Let:
    match let.expr:
        case Read(index=index, guards=guards) as read:
            place = tuple(substitute(expr, moved) for expr in index)
            kept = tuple(Guard(substitute(guard.expr, moved), guard.size) for guard in guards)
            return replace(let, expr=replace(read, index=place, guards=kept))
        case AxisIndex(expr=expr) as found:
            return replace(let, expr=replace(found, expr=substitute(expr, moved)))
        case _:
            return let
