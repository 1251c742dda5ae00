"""Convolutions of images with few channels: taps side by side become channels.

    x[i, 2*p + r - 3, 2*q + s - 3, c], c < 3    -->    t[i, 2*p + r, q, j], j = 3*s + c < 21

Matrix units take channels by the row of a copy, 64 of them; three would be lost in padding. The
innermost axis that windows move over is folded into the channels, in a copy of the image, and those
outside of it while windows do not overlap: what the patches of an image are embedded by becomes a
product.

The gradient of their filters sums over places instead: there all taps and channels of a window
become the columns of a matrix, a row for each place, and the gradient is a product of matrices.

    x[i, 2*p + r - 3, 2*q + s - 3, c]    -->    t[i, p, q, j], j = 21*r + 3*s + c < 147
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from weft.foundation.index_expr import Expr, Guard, axis, floordiv, substitute
from weft.region.fitting.boards import (
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
from weft.region.ir import Kernel, Let, Pattern, Read, Reduce, Roles, Tensor
from weft.target.target import Target

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
        folded = _folded_pairs(board)
        size = kernel.sizes[board.channels] * math.prod(kernel.sizes[p.tap] for p in folded)
        if size < FEWEST:
            continue
        image = _image(board, folded, size, f"{kernel.name}_image")
        filters = _filters(kernel, roles, other, board, folded, size)
        made = _folded(kernel, roles, board.channels, size, folded, (image, filters))
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
        moved = _digits(board, board.pairs)
        reads = [let for let in kernel.body if isinstance(let.expr, Read)]
        if any(set(let.axes) & set(moved) for let in reads if let.name != board.let.name):
            continue
        patches = _patches(board, moved, f"{kernel.name}_patches")
        if patches.tensor.bytes > _MOST_BYTES:
            continue
        return (patches.kernel, _of_patches(kernel, roles, board, moved, patches)), (
            patches.tensor,
        )
    return None


def _patches(board: Board, moved: Mapping[str, Expr], name: str) -> Copy:
    size = math.prod(board.sizes[found] for found in moved)
    sizes = {found: board.sizes[found] for found in board.apart}
    sizes |= {pair.place: board.sizes[pair.place] for pair in board.pairs}
    sizes[board.channels] = _padded(size)
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
    outputs = tuple(
        replace(output, index=tuple(substitute(expr, moved) for expr in output.index))
        for output in kernel.outputs
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


def _folded_pairs(board: Board) -> tuple[Pair, ...]:
    """The innermost axis, and those outside of it whose windows do not overlap."""
    count = 1
    while count < len(board.pairs) and all(
        pair.step >= board.sizes[pair.tap] * pair.dilation for pair in board.pairs[-count - 1 :]
    ):
        count += 1
    return board.pairs[-count:]


def _digits(board: Board, folded: Sequence[Pair]) -> dict[str, Expr]:
    """Taps and the channel of a folded channel."""
    found: dict[str, Expr] = {}
    rest = axis(board.channels)
    for name in (board.channels, *(pair.tap for pair in reversed(folded))):
        found[name] = rest % board.sizes[name]
        rest = floordiv(rest, board.sizes[name])
    return found


def _padded(size: int) -> int:
    return -(-size // LINE) * LINE


def _image(board: Board, folded: Sequence[Pair], size: int, name: str) -> Copy:
    kept = [pair for pair in board.pairs if pair not in folded]
    moved: dict[str, Expr] = {n: e for pair in kept for n, e in pair.on_board.items()}
    moved |= _digits(board, folded)
    sizes = {found: board.sizes[found] for found in board.apart}
    sizes |= {pair.tap: pair.size(board.sizes) for pair in kept}
    sizes |= {pair.place: board.sizes[pair.place] for pair in folded}
    sizes[board.channels] = _padded(size)
    guards = [Guard(substitute(g.expr, moved), g.size) for g in board.read.guards]
    guards.append(Guard(axis(board.channels), size))
    index = tuple(substitute(expr, moved) for expr in board.read.index)
    read = Read(board.read.tensor, index, tuple(guards), 0.0)
    place = (
        *map(axis, board.apart),
        *(pair.expr for pair in kept),
        *(axis(pair.place) for pair in folded),
        axis(board.channels),
    )
    return copied(name, board.let, read, sizes, place)


def _filters(
    kernel: Kernel, roles: Roles, side: str, board: Board, folded: Sequence[Pair], size: int
) -> Copy:
    let = kernel.let(getattr(roles, side))
    assert isinstance(let.expr, Read)
    gone = {pair.tap for pair in folded}
    outer = roles.m if side == "lhs" else roles.n
    batch = [name for name in roles.batch if name in let.axes]
    taps = [name for name in roles.k if name not in gone and name != board.channels]
    sizes = {name: kernel.sizes[name] for name in (*batch, *outer, *taps)}
    sizes[board.channels] = _padded(size)
    moved = _digits(board, folded)
    index = tuple(substitute(expr, moved) for expr in let.expr.index)
    guards = [Guard(substitute(g.expr, moved), g.size) for g in let.expr.guards]
    guards.append(Guard(axis(board.channels), size))
    read = Read(let.expr.tensor, index, tuple(guards), 0.0)
    return copied(f"{kernel.name}_filters", let, read, sizes, tuple(map(axis, sizes)))


def _folded(
    kernel: Kernel,
    roles: Roles,
    channels: str,
    size: int,
    folded: Sequence[Pair],
    copies: Sequence[Copy],
) -> Kernel:
    """The kernel without the taps that are folded, which reads the copies."""
    gone = {pair.tap for pair in folded}
    reads = {copy.read.name: copy.read for copy in copies}

    def changed(let: Let) -> Let:
        let = reads.get(let.name, let)
        expr = let.expr
        if isinstance(expr, Reduce):
            expr = replace(expr, axes=tuple(name for name in expr.axes if name not in gone))
        return replace(let, expr=expr, axes=tuple(name for name in let.axes if name not in gone))

    axes = tuple(
        replace(found, size=size) if found.name == channels else found
        for found in kernel.axes
        if found.name not in gone
    )
    summed = tuple(name for name in roles.k if name not in gone)
    body = tuple(changed(let) for let in kernel.body)
    return replace(kernel, axes=axes, body=body, roles=replace(roles, k=summed))
