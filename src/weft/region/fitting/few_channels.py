"""Convolutions of images with few channels: neighbouring taps become channels.

    x[i, 2*p + r - 3, 2*q + s - 3, c], c < 3    -->    t[i, 2*p + r, 8*q + j], j = 4*s + c < 28

Matrix units take channels by the row of a copy, 64 of them; three would be lost in padding. The
innermost axis that windows move over is folded into the channels. Where windows overlap, neighbours
share elements of a copy of the image with zeros around it, and behind the channels as many as begin
each window at a whole line: the copy engine goes through it as it lies. Where they do not overlap,
the copy has the taps of each place by themselves, and axes further out are folded as well: what the
patches of an image are embedded by becomes a product.

The gradient of their filters sums over places instead: there all taps and channels of a window
become the columns of a matrix, a row for each place, and the gradient is a product of matrices.

    x[i, 2*p + r - 3, 2*q + s - 3, c]    -->    t[i, p, q, j], j = 21*r + 3*s + c < 147

No filter of zeros is ever multiplied by an element of the image: infinities and NaNs of pixels that
a window does not have are none of its result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from weft.foundation.index_expr import (
    Expr,
    FloorDiv,
    Guard,
    axis,
    constant,
    floordiv,
    simplify,
    substitute,
)
from weft.foundation.records import dataclass, replace
from weft.region.fitting.aligned import with_aligned_operands
from weft.region.fitting.image_copies import (
    FEWEST,
    LINE,
    Board,
    Copy,
    Made,
    Pair,
    copied,
    find_board,
    is_large,
    suits_units,
)
from weft.region.fitting.whole_rows import cut_off, with_size
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
    if roles is None or not is_large(kernel) or suits_units(kernel, tensors, target):
        return None
    for side, other in (("lhs", "rhs"), ("rhs", "lhs")):
        board = find_board(kernel, roles, side, tensors)
        if board is None or not board.is_summed or kernel.sizes[board.channels] >= FEWEST:
            continue
        fold = _fold(board)
        if fold.count < (FEWEST // 2 if fold.shared else FEWEST):
            continue
        if not target.has("wgmma") and len(fold.whole) < len(board.pairs):
            continue  # Zeros behind the channels are less than copies of windows that overlap.
        image = _copy_image(fold, f"{kernel.name}_image")
        filters = _filters(kernel, roles, other, fold)
        made = _fold_taps(kernel, roles, fold, (image, filters))
        more = (image.tensor, filters.tensor)
        if suits_units(made, {**tensors, **{tensor.name: tensor for tensor in more}}, target):
            return (image.kernel, filters.kernel, made), more
    return None


def with_patches(kernel: Kernel, tensors: Mapping[str, Tensor], target: Target) -> Made | None:
    """A sum over the places of windows with few channels behind a copy of the windows; None where
    it is no such sum, or more than the operand and the results knows of taps and channels."""
    roles = kernel.roles
    if roles is None or not is_large(kernel) or suits_units(kernel, tensors, target):
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
        known = {**tensors, patches.tensor.name: patches.tensor}
        # The other operand has its channels before its places, where images have theirs first.
        (*copies, product), between = with_aligned_operands(product, known, target)
        known |= {tensor.name: tensor for tensor in between}
        first, fresh = (patches.kernel, *copies), (patches.tensor, *between)
        if not target.has("wgmma"):
            # Warps multiply whole lines of channels; what zeros come to is left where it is stored.
            whole = _pad_to_line(product.sizes[board.channels])
            padded = with_size(product, board.channels, whole)
            if not suits_units(padded, known, target):
                continue
            ordered, matrix = cut_off(product, padded, tensors)
            return (*first, *ordered), (*fresh, matrix)
        made = _stored_as_a_matrix(product, tensors)
        if made is None:
            return (*first, product), fresh
        return (*first, *made[0]), (*fresh, *made[1])
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
    """Taps of a board that become channels, those of the pairs in `whole`."""

    board: Board
    whole: tuple[Pair, ...]
    shared: int = 0
    """Channels of an element of the image with zeros behind them, where neighbouring places share
    elements; 0 where each has its own."""

    @property
    def each(self) -> int:
        """Channels of a tap, with the zeros behind them."""
        return self.shared or self.board.sizes[self.board.channels]

    @property
    def count(self) -> int:
        """Channels of all taps."""
        return self.each * math.prod(self.board.sizes[pair.tap] for pair in self.whole)

    @property
    def size(self) -> int:
        """The channels there are then: those of all taps, and zeros that make whole rows of a copy
        of them, where these are not too many. Copies that end within a row take the copy engine
        twice as long."""
        row = min(self.rows, 2) * (ROW // 2)
        padded = -(-self.count // row) * row
        return self.count if self.shared or padded > _MOST_ROOM * self.count else padded

    @property
    def rows(self) -> int:
        """Half rows of a copy of them."""
        return -(-self.count // (ROW // 2))

    @property
    def inside(self) -> tuple[Guard, ...]:
        """Which of them are no zeros."""
        channel = axis(self.board.channels)
        ends = [Guard(channel, self.count)] if _pad_to_line(self.size) > self.count else []
        if self.shared:
            ends.append(Guard(channel % self.shared, self.board.sizes[self.board.channels]))
        return tuple(ends)

    @property
    def gone(self) -> set[str]:
        return {pair.tap for pair in self.whole}

    @property
    def digits(self) -> dict[str, Expr]:
        """Taps and the channel of a folded channel."""
        found: dict[str, Expr] = {}
        sizes = {**self.board.sizes, self.board.channels: self.each}
        rest = axis(self.board.channels)
        for name in (self.board.channels, *(pair.tap for pair in reversed(self.whole[1:]))):
            found[name] = rest % sizes[name]
            rest = floordiv(rest, sizes[name])
        found[self.whole[0].tap] = rest  # below its size, as `inside` says
        return found


def _fold(board: Board) -> Fold:
    """The innermost axis, and those outside of it whose windows do not overlap. Neighbours share
    elements where that takes no longer rows of copies, or there are few channels otherwise."""
    count = 1
    while count < len(board.pairs) and all(
        pair.step >= board.sizes[pair.tap] * pair.dilation for pair in board.pairs[-count - 1 :]
    ):
        count += 1
    apart, last = Fold(board, board.pairs[-count:]), board.pairs[-1]
    overlap = last.dilation == 1 and last.step < board.sizes[last.tap]
    if not overlap or count > 1 or len(board.pairs) == 1:
        return apart
    shared = replace(apart, shared=_room(board.sizes[board.channels], last.step))
    return shared if shared.rows <= apart.rows or apart.count < FEWEST else apart


def _room(channels: int, step: int) -> int:
    """The fewest channels with which each window begins at a whole line."""
    room = 1
    while room < channels or room * step % LINE:
        room *= 2
    return room


def _pad_to_line(size: int) -> int:
    return -(-size // LINE) * LINE


def _copy_image(fold: Fold, name: str) -> Copy:
    board, last = fold.board, fold.whole[-1]
    kept = [pair for pair in board.pairs if pair not in fold.whole]
    moved: dict[str, Expr] = {n: e for pair in kept for n, e in pair.on_board.items()}
    moved |= fold.digits
    sizes = {found: board.sizes[found] for found in board.apart}
    sizes |= {pair.tap: pair.size(board.sizes) for pair in kept}
    ends, places = fold.inside, tuple(axis(pair.place) for pair in fold.whole)
    along = axis(board.channels)
    if fold.shared:
        # All of the board along the axis, as the taps of the first place and of none after it.
        moved[last.place], extent = constant(0), last.size(board.sizes)
        ends = (ends[-1], Guard(moved[last.tap], extent))
        sizes[board.channels] = _pad_to_line(extent * fold.shared)
        along, places = along + places[0] * (last.step * fold.shared), ()
    else:
        sizes |= {pair.place: board.sizes[pair.place] for pair in fold.whole}
        sizes[board.channels] = _pad_to_line(fold.size)
    guards = [Guard(substitute(g.expr, moved), g.size) for g in board.read.guards]
    index = tuple(substitute(expr, moved) for expr in board.read.index)
    read = _read(board.read.tensor, index, (*guards, *ends))
    place = (*map(axis, board.apart), *(pair.expr for pair in kept), *places, along)
    return copied(name, board.let, read, sizes, place)


def _read(tensor: str, index: tuple[Expr, ...], guards: tuple[Guard, ...]) -> Read:
    return Read(tensor, index, guards, 0.0 if guards else None)


def _filters(kernel: Kernel, roles: Roles, side: str, fold: Fold) -> Copy:
    let, channels = kernel.let(getattr(roles, side)), fold.board.channels
    assert isinstance(let.expr, Read)
    outer = roles.m if side == "lhs" else roles.n
    batch = [name for name in roles.batch if name in let.axes]
    taps = [name for name in roles.k if name not in fold.gone and name != channels]
    sizes = {name: kernel.sizes[name] for name in (*batch, *outer, *taps)}
    sizes[channels] = _pad_to_line(fold.size)
    if fold.size % (ROW // 2) and math.prod(kernel.sizes[name] for name in outer) % LINE == 0:
        # Rows that end within half a row of a copy took it 16 cycles each: filters are the columns
        # of rows then, 57 µs with rows of channels for the 7x7 layer and 32 so (H200).
        sizes = {n: sizes[n] for n in sorted(sizes, key=lambda name: name in outer)}
    moved = fold.digits
    index = tuple(substitute(expr, moved) for expr in let.expr.index)
    guards = [Guard(substitute(g.expr, moved), g.size) for g in let.expr.guards]
    read = _read(let.expr.tensor, index, (*guards, *fold.inside))
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

    axes = tuple(
        replace(found, size=fold.size) if found.name == fold.board.channels else found
        for found in kernel.axes
        if found.name not in fold.gone
    )
    body = tuple(changed(let) for let in kernel.body)
    return replace(kernel, axes=axes, body=body, roles=replace(roles, k=left(roles.k)))
