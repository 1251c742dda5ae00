"""Convolutions of images with few channels: neighbouring taps become channels.

    x[i, 2*p + r - 3, 2*q + s - 3, c], c < 3    -->    t[i, 2*p + r, q, j], j = 3*s + c < 21

Matrix units take channels by the row of a copy, 64 of them; three would be lost in padding. The
innermost axis that windows move over is folded into the channels, in a copy of the image, and those
outside of it while windows do not overlap: what the patches of an image are embedded by becomes a
product. Of the next one, where windows move by several rows, so many rows become channels too: the
copy is as large, but for zeros that make whole rows of it, and its rows follow one another.

    t[i, 2*p + r, q, j], r < 7    -->    t[i, p + a, q, k], k = 32*b + j < 64, r = 2*a + b, a < 4

The gradient of their filters sums over places instead: there all taps and channels of a window
become the columns of a matrix, a row for each place, and the gradient is a product of matrices.

    x[i, 2*p + r - 3, 2*q + s - 3, c]    -->    t[i, p, q, j], j = 21*r + 3*s + c < 147
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from weft.foundation.index_expr import Expr, FloorDiv, Guard, axis, floordiv, simplify, substitute
from weft.foundation.records import dataclass, replace
from weft.region.fitting.image_copies import (
    FEWEST,
    LINE,
    Board,
    Copy,
    Made,
    Pair,
    copied,
    find_board,
    pays,
    suits,
)
from weft.region.ir import Kernel, KernelAxis, Let, Output, Pattern, Read, Reduce, Roles, Tensor
from weft.target.target import Target

ROW: Final = 64
"""16-bit elements of a row of a copy."""
# The copy engine takes twice as long for boxes whose channels end within a row: the 7x7 layer of
# three channels, batch 32, took 64 µs with 42 of 64 channels and takes 33 with all of them (H200).
_MOST_ROOM: Final = 1.6
"""Times as many channels as there are may be kept for the sake of whole rows."""
_MOST_BYTES: Final = 1 << 32
"""Of a copy of all windows: more memory is not taken for a faster sum."""


def with_folded_windows(
    kernel: Kernel, tensors: Mapping[str, Tensor], target: Target
) -> Made | None:
    """A convolution of few channels behind copies whose channels are many; None where there is
    nothing to fold."""
    roles = kernel.roles
    if roles is None or not pays(kernel, tensors, target):
        return None
    for side, other in (("lhs", "rhs"), ("rhs", "lhs")):
        board = find_board(kernel, roles, side, tensors)
        if board is None or not board.is_summed or kernel.sizes[board.channels] >= FEWEST:
            continue
        fold = _fold(board)
        if fold.own * fold.steps < FEWEST:
            continue
        image = _copy_image(fold, f"{kernel.name}_image")
        filters = _filters(kernel, roles, other, fold)
        made = _fold_taps(kernel, roles, fold, (image, filters))
        more = (image.tensor, filters.tensor)
        if suits(made, {**tensors, **{tensor.name: tensor for tensor in more}}):
            return (image.kernel, filters.kernel, made), more
    return None


def with_patches(kernel: Kernel, tensors: Mapping[str, Tensor], target: Target) -> Made | None:
    """A sum over the places of windows with few channels behind a copy of the windows; None where
    it is no such sum, or more than the operand and the results knows of taps and channels."""
    roles = kernel.roles
    if roles is None or not pays(kernel, tensors, target):
        return None
    for side in ("lhs", "rhs"):
        board = find_board(kernel, roles, side, tensors)
        if board is None or board.is_summed or kernel.sizes[board.channels] >= FEWEST:
            continue
        outer = roles.m if side == "lhs" else roles.n
        if set(outer) != {board.channels, *(pair.tap for pair in board.pairs)}:
            continue
        moved = Fold(board, board.pairs).digits
        reads = [let for let in kernel.body if isinstance(let.expr, Read)]
        if any(set(let.axes) & set(moved) for let in reads if let.name != board.let.name):
            continue
        patches = _copy_patches(board, moved, f"{kernel.name}_patches")
        if patches.tensor.bytes > _MOST_BYTES:
            continue
        product = _of_patches(kernel, roles, board, moved, patches)
        made = _stored_as_a_matrix(product, tensors)
        if made is None:
            return (patches.kernel, product), (patches.tensor,)
        return (patches.kernel, *made[0]), (patches.tensor, *made[1])
    return None


def _stored_as_a_matrix(product: Kernel, tensors: Mapping[str, Tensor]) -> Made | None:
    """A product with whole lines of taps and channels, whose result has them in another order, as a
    matrix that is stored as it is, and a map that puts it in order; None for any other one."""
    roles, (output, *others) = product.roles, product.outputs
    assert roles is not None
    names = (*roles.batch, *roles.m, *roles.n)
    in_order = not any(isinstance(t, FloorDiv) for expr in output.index for t, _ in expr.terms)
    if in_order or others or output.base is not None or product.sizes[names[-1]] % LINE:
        return None
    dtype = tensors[output.tensor].dtype
    matrix = Tensor(f"{product.name}_matrix", dtype, tuple(product.sizes[n] for n in names))
    place = tuple(map(axis, names))
    first = replace(
        product,
        name=f"{product.name}_product",
        outputs=(replace(output, tensor=matrix.name, index=place),),
    )
    axes = tuple(KernelAxis(name, product.sizes[name]) for name in names)
    body = (Let("v0", dtype, names, Read(matrix.name, place)),)
    last = Kernel(
        product.name, Pattern.MAP, axes, body, (Output(output.tensor, "v0", output.index),)
    )
    return (first, replace(last, labels=product.labels)), (matrix,)


def _copy_patches(board: Board, moved: Mapping[str, Expr], name: str) -> Copy:
    size = math.prod(board.sizes[found] for found in moved)
    sizes = {found: board.sizes[found] for found in board.apart}
    sizes |= {pair.place: board.sizes[pair.place] for pair in board.pairs}
    sizes[board.channels] = _pad_to_line(size)
    guards = [Guard(substitute(g.expr, moved), g.size) for g in board.read.guards]
    guards.append(Guard(axis(board.channels), size))
    index = tuple(substitute(expr, moved) for expr in board.read.index)
    read = Read(board.read.tensor, index, tuple(guards), 0.0)
    return copied(name, board.let, read, sizes, tuple(map(axis, sizes)))


def _of_patches(
    kernel: Kernel, roles: Roles, board: Board, moved: Mapping[str, Expr], patches: Copy
) -> Kernel:
    """The product with the matrix of windows: its columns stand for taps and channels."""
    gone = {name for name in moved if name != board.channels}
    size = math.prod(board.sizes[found] for found in moved)

    def left(names: Sequence[str]) -> tuple[str, ...]:
        return tuple(name for name in names if name not in gone)

    body = tuple(
        replace(patches.read if let.name == patches.read.name else let, axes=left(let.axes))
        for let in kernel.body
    )
    ranges = {**kernel.ranges, board.channels: (0, size - 1)}

    def place(expr: Expr) -> Expr:
        return simplify(substitute(expr, moved), ranges)

    outputs = tuple(
        replace(output, index=tuple(map(place, output.index))) for output in kernel.outputs
    )
    axes = tuple(
        replace(found, size=size) if found.name == board.channels else found
        for found in kernel.axes
        if found.name not in gone
    )
    return replace(
        kernel,
        pattern=Pattern.MATMUL,
        axes=axes,
        body=body,
        outputs=outputs,
        roles=replace(roles, m=left(roles.m), n=left(roles.n)),
    )


@dataclass(frozen=True)
class Fold:
    """Taps of a board that become channels: all of the pairs in `whole`, and of the pair `stepped`
    as many as it moves by."""

    board: Board
    whole: tuple[Pair, ...]
    stepped: Pair | None = None

    @property
    def own(self) -> int:
        """What lies side by side already: channels and the taps in `whole`."""
        sizes = self.board.sizes
        return sizes[self.board.channels] * math.prod(sizes[pair.tap] for pair in self.whole)

    @property
    def steps(self) -> int:
        return self.stepped.step if self.stepped else 1

    @property
    def room(self) -> int:
        """Channels for each step of `stepped`: those there are, and zeros that make whole rows of a
        copy of all of them, where these are not too many. Copies that end within a row take the
        copy engine twice as long, and numbers of two digits are taken apart by shifts then."""
        count = self.own * self.steps
        row = ROW if count > ROW // 2 else ROW // 2
        padded = -(-count // row) * row
        return padded // self.steps if padded <= _MOST_ROOM * count else self.own

    @property
    def size(self) -> int:
        """The channels there are then."""
        return self.room * self.steps

    @property
    def inside(self) -> Guard:
        """Which of them are no zeros, but for taps beyond the last."""
        channel = axis(self.board.channels)
        return Guard(channel % self.room if self.stepped else channel, self.own)

    @property
    def gone(self) -> set[str]:
        return {pair.tap for pair in self.whole}

    @property
    def taps(self) -> dict[str, int]:
        """What is left of the taps that are folded in part."""
        if self.stepped is None:
            return {}
        tap = self.stepped.tap
        return {tap: -(-self.board.sizes[tap] // self.stepped.step)}

    @property
    def digits(self) -> dict[str, Expr]:
        """Taps and the channel of a folded channel."""
        found: dict[str, Expr] = {}
        sizes, channel = self.board.sizes, axis(self.board.channels)
        rest = channel % self.room if self.stepped else channel
        for name in (self.board.channels, *(pair.tap for pair in reversed(self.whole[1:]))):
            found[name] = rest % sizes[name]
            rest = floordiv(rest, sizes[name])
        found[self.whole[0].tap] = rest  # below its size, as `inside` says
        if self.stepped is not None:
            step = floordiv(channel, self.room)
            found[self.stepped.tap] = axis(self.stepped.tap) * self.stepped.step + step
        return found


def _fold(board: Board) -> Fold:
    """The innermost axis, those outside of it whose windows do not overlap, and a part of the
    next."""
    count = 1
    while count < len(board.pairs) and all(
        pair.step >= board.sizes[pair.tap] * pair.dilation for pair in board.pairs[-count - 1 :]
    ):
        count += 1
    stepped = board.pairs[-count - 1] if count < len(board.pairs) else None
    if stepped is not None and (stepped.step == 1 or stepped.dilation > 1):
        stepped = None
    return Fold(board, board.pairs[-count:], stepped)


def _pad_to_line(size: int) -> int:
    return -(-size // LINE) * LINE


def _copy_image(fold: Fold, name: str) -> Copy:
    board, stepped = fold.board, fold.stepped
    kept = [pair for pair in board.pairs if pair not in fold.whole]
    moved: dict[str, Expr] = {n: e for pair in kept for n, e in pair.on_board.items()}
    moved |= fold.digits
    rest = {pair: replace(pair, step=1) if pair == stepped else pair for pair in kept}
    sizes = {found: board.sizes[found] for found in board.apart}
    sizes |= {pair.tap: rest[pair].size({**board.sizes, **fold.taps}) for pair in kept}
    sizes |= {pair.place: board.sizes[pair.place] for pair in fold.whole}
    sizes[board.channels] = _pad_to_line(fold.size)
    guards = [_without_quotient(substitute(g.expr, moved), g.size) for g in board.read.guards]
    guards.append(fold.inside)
    if stepped is not None:
        guards.append(Guard(moved[stepped.tap], stepped.size(board.sizes)))
    index = tuple(substitute(expr, moved) for expr in board.read.index)
    read = Read(board.read.tensor, index, tuple(guards), 0.0)
    place = (
        *map(axis, board.apart),
        *(rest[pair].expr for pair in kept),
        *(axis(pair.place) for pair in fold.whole),
        axis(board.channels),
    )
    return copied(name, board.let, read, sizes, place)


def _without_quotient(expr: Expr, size: int) -> Guard:
    """`0 <= e + v // d < size` as `0 <= d * e + v < d * size`, which takes no division. Shifts
    stay, since neighbours share them."""
    quotients = [term for term, factor in expr.terms if isinstance(term, FloorDiv) and factor == 1]
    # A divisor that is a power of two is a shift.
    if len(quotients) != 1 or not quotients[0].divisor & (quotients[0].divisor - 1):
        return Guard(expr, size)
    (found,) = quotients
    rest = expr - floordiv(found.value, found.divisor)
    return Guard(rest * found.divisor + found.value, size * found.divisor)


def _filters(kernel: Kernel, roles: Roles, side: str, fold: Fold) -> Copy:
    let, channels = kernel.let(getattr(roles, side)), fold.board.channels
    assert isinstance(let.expr, Read)
    outer = roles.m if side == "lhs" else roles.n
    batch = [name for name in roles.batch if name in let.axes]
    taps = [name for name in roles.k if name not in fold.gone and name != channels]
    sizes = {name: kernel.sizes[name] for name in (*batch, *outer, *taps)}
    sizes |= fold.taps
    sizes[channels] = _pad_to_line(fold.size)
    moved = fold.digits
    index = tuple(substitute(expr, moved) for expr in let.expr.index)
    guards = [Guard(substitute(g.expr, moved), g.size) for g in let.expr.guards]
    guards.append(fold.inside)
    guards += [Guard(moved[name], kernel.sizes[name]) for name in fold.taps]
    read = Read(let.expr.tensor, index, tuple(guards), 0.0)
    return copied(f"{kernel.name}_filters", let, read, sizes, tuple(map(axis, sizes)))


def _fold_taps(kernel: Kernel, roles: Roles, fold: Fold, copies: Sequence[Copy]) -> Kernel:
    """The kernel without the taps that are folded, which reads the copies."""
    reads = {copy.read.name: copy.read for copy in copies}

    def left(names: Sequence[str]) -> tuple[str, ...]:
        return tuple(name for name in names if name not in fold.gone)

    def changed(let: Let) -> Let:
        let = reads.get(let.name, let)
        expr = let.expr
        if isinstance(expr, Reduce):
            expr = replace(expr, axes=left(expr.axes))
        return replace(let, expr=expr, axes=left(let.axes))

    sizes = {fold.board.channels: fold.size, **fold.taps}
    axes = tuple(
        replace(found, size=sizes.get(found.name, found.size))
        for found in kernel.axes
        if found.name not in fold.gone
    )
    body = tuple(changed(let) for let in kernel.body)
    return replace(kernel, axes=axes, body=body, roles=replace(roles, k=left(roles.k)))
