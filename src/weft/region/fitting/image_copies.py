"""Copies of convolution operands that TMA can read: a padded image with its channels last, and
filters with their channels, or those of the result, contiguous.

    x[i, c, p + r - 1, q + s - 1]            -->  t[i, u, v, c] = x[i, c, u, v]
    g[i, floor((p + r) / 2) - 1, ..., c]     -->  t[i, u, ..., c] = g[i, floor(u / 2) - 1, ..., c]

A place and a tap that an image depends on together only, as `step * p + dilation * r`, become one
axis of a board, a copy of the image with zeros where a guard fails: with the channels first before,
an odd number of them, or with elements as far apart as the windows of the convolution were whose
gradient it is. Where guards say only that windows are inside the image, the board is the image, and
is read behind the same guards: the copy engine fills in the zeros around it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from weft.foundation.dtypes import BF16, F16
from weft.foundation.index_expr import (
    Axis,
    Expr,
    FloorDiv,
    Guard,
    axes_of,
    axis,
    coefficient,
    constant,
    linear,
    substitute,
)
from weft.foundation.records import dataclass, replace
from weft.region.forms.grouped import find_groups
from weft.region.forms.multiplied import usual_atom
from weft.region.forms.problem import find_problem
from weft.region.ir import Kernel, KernelAxis, Let, Output, Pattern, Read, Roles, Tensor, row_major
from weft.target.target import Target

WORTH: Final = 1 << 22
"""Products from which copying an operand pays."""
FEWEST: Final = 16
"""Channels from which it does: fewer are mostly padding on their way through matrix units."""
LINE: Final = 8
"""16-bit elements of a line of memory."""
Made = tuple[tuple[Kernel, ...], tuple[Tensor, ...]]


def with_boards(kernel: Kernel, tensors: Mapping[str, Tensor], target: Target) -> Made:
    """A convolution behind copies of those operands that need one, and the copies' tensors."""
    roles = kernel.roles
    if roles is None or suits_units(kernel, tensors, target) or not is_large(kernel):
        return (kernel,), ()
    for made, more in _trials(kernel, roles, tensors):
        known = {**tensors, **{tensor.name: tensor for tensor in more}}
        if suits_units(made[-1], known, target):
            return made, more
    return (kernel,), ()


def with_board_of_groups(
    kernel: Kernel, tensors: Mapping[str, Tensor], target: Target
) -> Made | None:
    """A convolution in groups of few channels as it is, or behind a copy of its image, if that is
    what a block can keep the windows of; None where it is not."""
    roles = kernel.roles
    if find_groups(kernel, find_problem(kernel, tensors)) is not None:
        return (kernel,), ()
    if roles is None or not roles.batch or not pays(kernel, tensors, target):
        return None
    for side in ("lhs", "rhs"):
        board = find_board(kernel, roles, side, tensors)
        if board is None or not board.is_summed:
            continue
        for image in images_of(kernel, board, tensors):
            body = tuple(image.read if let.name == image.read.name else let for let in kernel.body)
            made = replace(kernel, body=body)
            known = {**tensors, image.tensor.name: image.tensor}
            if find_groups(made, find_problem(made, known)) is not None:
                return (image.kernel, made), (image.tensor,)
    return None


def images_of(
    kernel: Kernel, board: Board, tensors: Mapping[str, Tensor], line: int = LINE
) -> Iterator[Copy]:
    """Copies of an image: as it is where nothing but its borders is to be filled in, then with
    zeros around it; channels fill `line`s up."""
    borders = board.borders(tensors[board.read.tensor].shape)
    if borders:
        yield board.copy(image_name(kernel), borders, line)
    yield board.copy(image_name(kernel), line=line)


def pays(kernel: Kernel, tensors: Mapping[str, Tensor], target: Target) -> bool:
    """Whether matrix units would multiply a convolution, if its operands lay right, and it is worth
    copying them."""
    return target.has("wgmma") and is_large(kernel) and not suits(kernel, tensors)


def is_large(kernel: Kernel) -> bool:
    """Whether a kernel is a convolution of 16-bit numbers that is worth copying an operand."""
    roles = kernel.roles
    if roles is None or kernel.pattern is not Pattern.CONV or kernel.params:
        return False
    if math.prod(kernel.sizes.values()) < WORTH:
        return False
    halves = all(kernel.let(name).dtype in (BF16, F16) for name in (roles.lhs, roles.rhs))
    return halves and usual_atom(kernel, "sm90") is not None


def suits_units(kernel: Kernel, tensors: Mapping[str, Tensor], target: Target) -> bool:
    """Whether the matrix units of a target can multiply what the kernel reads: those of warps in
    whole lines of channels."""
    problem = find_problem(kernel, tensors)
    if target.has("wgmma") or problem is None or problem.image is None:
        return suits(kernel, tensors)
    image = problem.image
    whole = kernel.sizes[image.channels] % LINE == 0 and problem.aligned
    return whole and not any(axis.phase for axis in image.moved)


def suits(kernel: Kernel, tensors: Mapping[str, Tensor]) -> bool:
    """Whether matrix units can multiply what the kernel reads."""
    problem = find_problem(kernel, tensors)
    if problem is None or not problem.aligned:
        return False
    assert kernel.roles is not None
    return problem.image is not None or {*problem.axes.k} >= {*kernel.roles.k}


def _trials(kernel: Kernel, roles: Roles, tensors: Mapping[str, Tensor]) -> Iterator[Made]:
    """The kernel with one operand copied or the other, then with both."""
    for other, board in _boards(kernel, roles, tensors):
        yield from _behind_copies(kernel, other, board, list(images_of(kernel, board, tensors)))


def with_lines_of_channels(
    kernel: Kernel, roles: Roles, tensors: Mapping[str, Tensor]
) -> Iterator[Made]:
    """The kernel as it is, then behind copies of operands with their channels last, but without
    the zeros around and between elements of its image."""
    yield (kernel,), ()
    for other, board in _boards(kernel, roles, tensors):
        image = board.channels_last(image_name(kernel), tensors[board.read.tensor].shape)
        yield from _behind_copies(kernel, other, board, [image] if image is not None else [])


def _boards(
    kernel: Kernel, roles: Roles, tensors: Mapping[str, Tensor]
) -> Iterator[tuple[str, Board]]:
    """The boards of a kernel that are worth copying, each with the other side's name."""
    for side, other in (("lhs", "rhs"), ("rhs", "lhs")):
        board = find_board(kernel, roles, side, tensors)
        if board is not None and kernel.sizes[board.channels] >= FEWEST:
            yield other, board


def _behind_copies(
    kernel: Kernel, other: str, board: Board, images: Sequence[Copy]
) -> Iterator[Made]:
    """The kernel behind a copy of what the image meets, of the image, and of both."""
    assert kernel.roles is not None
    beside = copy_other_side(kernel, kernel.roles, other, board, f"{kernel.name}_{other}")
    both = ((image, beside) for image in images)
    for chosen in ((beside,), *((image,) for image in images), *both):
        made = kernel
        for copy in chosen:
            body = tuple(copy.read if let.name == copy.read.name else let for let in made.body)
            made = replace(made, body=body)
        yield (*(copy.kernel for copy in chosen), made), tuple(copy.tensor for copy in chosen)


def image_name(kernel: Kernel) -> str:
    """What the copy of a convolution's image is called."""
    return f"{kernel.name}_image"


@dataclass(frozen=True)
class Copy:
    """A kernel that copies an operand, its tensor, and the Let that reads it."""

    kernel: Kernel
    tensor: Tensor
    read: Let


@dataclass(frozen=True)
class Pair:
    """A place and a tap that an image depends on as `step * place + dilation * tap`."""

    place: str
    tap: str
    step: int
    dilation: int

    @property
    def expr(self) -> Expr:
        return axis(self.place) * self.step + axis(self.tap) * self.dilation

    def size(self, sizes: Mapping[str, int]) -> int:
        reach = self.step * (sizes[self.place] - 1) + self.dilation * (sizes[self.tap] - 1)
        return reach + 1

    @property
    def on_board(self) -> Mapping[str, Expr]:
        """Place and tap of an element of the board: all of it is a tap of the first place, or a
        place of the first tap."""
        if self.dilation == 1:
            return {self.tap: axis(self.tap), self.place: constant(0)}
        return {self.place: axis(self.tap), self.tap: constant(0)}


@dataclass(frozen=True)
class Board:
    """An image: its read, axes of batches and of images, what moves over it, and its channels."""

    let: Let
    read: Read
    apart: tuple[str, ...]
    pairs: tuple[Pair, ...]
    channels: str
    is_summed: bool
    sizes: Mapping[str, int]
    matrices: int
    """How many of the axes apart are batches."""

    @property
    def order(self) -> tuple[str, ...]:
        """Its axes but for the channels: matrices, then the others as the image has them."""
        rest = [*self.apart[self.matrices :], *(pair.tap for pair in self.pairs)]
        moved = {pair.tap: {pair.place, pair.tap} for pair in self.pairs}
        dims = {
            name: number
            for name in rest
            for number, expr in enumerate(self.read.index)
            if moved.get(name, {name}) & axes_of(expr)
        }
        # An axis of one element has guards alone.
        known = len(dims) == len(rest)
        return (
            *self.apart[: self.matrices],
            *(sorted(rest, key=dims.__getitem__) if known else rest),
        )

    def copy(self, name: str, borders: Mapping[str, Guard] | None = None, line: int = LINE) -> Copy:
        """The board, in memory; its axes are called as taps and channels are, which fill `line`s
        up. Along those with `borders`, by their taps, it is the image as it is, and read where
        these guards hold."""
        borders = borders or {}
        moved = {name: expr for pair in self.pairs for name, expr in pair.on_board.items()}
        own = {tap: guard.size for tap, guard in borders.items()}
        extents = {name: self.sizes[name] for name in self.apart}
        extents |= {pair.tap: own.get(pair.tap) or pair.size(self.sizes) for pair in self.pairs}
        sizes = {name: extents[name] for name in self.order}
        whole = self.sizes[self.channels]
        sizes[self.channels] = -(-whole // line) * line
        inside = [guard for guard in self.read.guards if guard not in borders.values()]
        guards = [Guard(substitute(g.expr, moved), g.size) for g in inside]
        if sizes[self.channels] > whole:
            guards.append(Guard(axis(self.channels), whole))
        along = {guard.expr: axis(tap) for tap, guard in borders.items()}
        index = tuple(along.get(expr) or substitute(expr, moved) for expr in self.read.index)
        read = Read(self.read.tensor, index, tuple(guards), 0.0 if guards else None)
        places = {name: axis(name) for name in self.apart}
        places |= {p.tap: borders[p.tap].expr if p.tap in borders else p.expr for p in self.pairs}
        place = (*(places[name] for name in self.order), axis(self.channels))
        found = copied(name, self.let, read, sizes, place)
        if not borders:
            return found
        met = replace(found.read, expr=Read(name, place, tuple(borders.values()), 0.0))
        return replace(found, read=met)

    def channels_last(self, name: str, shape: Sequence[int]) -> Copy | None:
        """The tensor itself with its channels last; None where they are in no dimension of their
        own, or whole lines already."""
        own = [n for n, expr in enumerate(self.read.index) if self.channels in axes_of(expr)]
        if len(own) != 1 or (own[0] == len(shape) - 1 and shape[-1] % LINE == 0):
            return None
        order = [*(n for n in range(len(shape)) if n not in own), *own]
        names = [f"d{n}" for n in range(len(shape))]
        sizes = {names[n]: shape[n] for n in order}
        last = names[own[0]]
        sizes[last] = -(-sizes[last] // LINE) * LINE
        ends = (Guard(axis(last), shape[own[0]]),) if shape[own[0]] % LINE else ()
        read = Read(self.read.tensor, tuple(map(axis, names)), ends, 0.0 if ends else None)
        found = copied(name, self.let, read, sizes, tuple(self.read.index[n] for n in order))
        met = found.read.expr
        assert isinstance(met, Read)
        met = replace(met, guards=self.read.guards, fill=self.read.fill)
        return replace(found, read=replace(found.read, expr=met))

    def borders(self, shape: Sequence[int]) -> dict[str, Guard]:
        """By taps, the guards that say only that windows are inside an image of this shape: what
        reads by windows fills in zeros there by itself."""
        found = {}
        for pair in self.pairs:
            axes = {pair.place, pair.tap}
            dims = [n for n, expr in enumerate(self.read.index) if axes & axes_of(expr)]
            guards = [guard for guard in self.read.guards if axes & axes_of(guard.expr)]
            # An axis of one element has guards alone.
            if len(dims) != 1:
                continue
            expr = self.read.index[dims[0]]
            if guards == [Guard(expr, shape[dims[0]])] and (expr - pair.expr).is_constant:
                found[pair.tap] = guards[0]
        return found


def copied(
    name: str, let: Let, read: Read, sizes: Mapping[str, int], place: tuple[Expr, ...]
) -> Copy:
    """The copy of what `read` reads over axes of these sizes, in their order, read at `place`."""
    axes = tuple(KernelAxis(found, size) for found, size in sizes.items())
    names = tuple(sizes)
    body = (Let("v0", let.dtype, names, read),)
    outputs = (Output(name, "v0", tuple(map(axis, names))),)
    kernel = Kernel(f"{name}_copy", Pattern.MAP, axes, body, outputs)
    tensor = Tensor(name, let.dtype, tuple(sizes.values()))
    return Copy(kernel, tensor, replace(let, expr=Read(name, place)))


def find_board(
    kernel: Kernel, roles: Roles, side: str, tensors: Mapping[str, Tensor]
) -> Board | None:
    """The board that an operand needs, if it is windows of something."""
    let = kernel.let(getattr(roles, side))
    read, sizes = let.expr, kernel.sizes
    if not isinstance(read, Read) or read.places or (kernel.open_guards(read) and read.fill != 0):
        return None
    outer = roles.m if side == "lhs" else roles.n
    exprs = [*read.index, *(guard.expr for guard in read.guards)]
    pairs = _find_pairs(exprs, outer, roles.k)
    paired = {name for pair in pairs for name in (pair.place, pair.tap)}
    rest = [name for name in (*outer, *roles.k) if name not in paired and sizes[name] > 1]
    address = linear(read.index, row_major(tensors[read.tensor].shape))
    plain = {name: abs(coefficient(address, name)) for name in rest}
    if not pairs or not plain or 0 in plain.values():
        return None
    channels = min(plain, key=lambda name: plain[name])
    is_summed = channels in roles.k
    turned = [pair if is_summed else _turn_pair(pair) for pair in pairs]
    own = roles.k if is_summed else outer
    ordered = sorted(turned, key=lambda pair: own.index(pair.tap) if pair.tap in own else 0)
    others = [name for name in sizes if name in rest and name != channels]
    matrices = [name for name in sizes if name in roles.batch and name in let.axes]
    apart = [*matrices, *others]
    moved = {pair.tap for pair in ordered}
    if any(name in own for name in apart if name not in roles.batch) or not moved <= {*own}:
        return None
    own_axes = tuple(apart), tuple(ordered), channels
    board = Board(let, read, *own_axes, is_summed, sizes, len(matrices))
    return board if _is_right(board, exprs) else None


def _turn_pair(pair: Pair) -> Pair:
    return Pair(pair.tap, pair.place, pair.dilation, pair.step)


def _find_pairs(exprs: Sequence[Expr], outer: Sequence[str], summed: Sequence[str]) -> list[Pair]:
    """Axes of rows or columns and summed ones that stand in one sum."""
    found: dict[tuple[str, str], Pair] = {}
    for expr in _sums(exprs):
        for one in outer:
            for other in summed:
                step, dilation = coefficient(expr, one), coefficient(expr, other)
                if step > 0 and dilation > 0:
                    found.setdefault((one, other), Pair(one, other, step, dilation))
    names = [name for pair in found for name in pair]
    return list(found.values()) if len({*names}) == len(names) else []


def _sums(exprs: Sequence[Expr]) -> Iterator[Expr]:
    """Expressions, and those that are divided in them."""
    for expr in exprs:
        yield expr
        yield from _sums([term.value for term, _ in expr.terms if isinstance(term, FloorDiv)])


def _is_right(board: Board, exprs: Sequence[Expr]) -> bool:
    """Whether the image depends on places and taps as the board says, and on nothing else."""
    if any(1 not in (pair.step, pair.dilation) for pair in board.pairs):
        return False
    on_board = {name: expr for pair in board.pairs for name, expr in pair.on_board.items()}
    back = {pair.tap: pair.expr for pair in board.pairs}
    return all(
        substitute(substitute(expr, on_board), back) is expr
        and all(not isinstance(term, Axis) or term.name in board.let.axes for term, _ in expr.terms)
        for expr in exprs
    )


def copy_other_side(kernel: Kernel, roles: Roles, side: str, board: Board, name: str) -> Copy:
    """The operand that an image meets: filters with their channels last, or what places are summed
    with, one after the other, with its rows or columns last."""
    let = kernel.let(getattr(roles, side))
    assert isinstance(let.expr, Read)
    outer = roles.m if side == "lhs" else roles.n
    batch = [found for found in roles.batch if found in let.axes]
    if board.is_summed:
        taps = [found for found in roles.k if found != board.channels]
        order = [*batch, *outer, *taps, board.channels]
    else:
        order = [*batch, *roles.k, *outer]
    sizes = {found: kernel.sizes[found] for found in order}
    last, guards = order[-1], [*let.expr.guards]
    whole = sizes[last]
    sizes[last] = -(-whole // LINE) * LINE
    if sizes[last] > whole:
        guards.append(Guard(axis(last), whole))
    read = replace(let.expr, guards=tuple(guards), fill=0.0 if guards else None)
    return copied(name, let, read, sizes, tuple(map(axis, order)))
