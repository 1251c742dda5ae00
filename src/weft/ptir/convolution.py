"""A convolution as a product: the patches of an image times a kernel; and its gradients, which are
convolutions too.

    patches [N, places..., window * C]  x  kernel [window..., C / groups, O]  =  [N, places..., O]

The cotangent of the image is a convolution of the result's, whose elements lie as far apart as the
windows did, with the kernel turned around. No tensor of patches is ever summed up: a compiler reads
patches where they lie.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.foundation.dtypes import DType
from weft.ptir.literal import scalar_literal
from weft.ptir.ops.window import ExtractPatches
from weft.ptir.term import Axes, Term, known_size


def times_kernel(
    patches: Term, kernel: Term, groups: int, accum: DType | None, out: DType | None
) -> Term:
    """`[N, places..., O]` from patches and a kernel `[window..., C / groups, O]`."""
    *window, share, outputs = map(known_size, kernel.shape)
    last, size, places = patches.rank - 1, math.prod(window), patches.shape[:-1]
    if groups == 1:
        matrix = kernel.reshape((share * size, outputs))
        return patches.dot(matrix, ([last], [0]), accum_dtype=accum, out_dtype=out)
    rows = patches.reshape((*places, size, groups, share))
    columns = kernel.reshape((size, share, groups, outputs // groups))
    axes, batch = ([last, last + 2], [0, 1]), ([last + 1], [2])
    found = rows.dot(columns, axes, batch, accum_dtype=accum, out_dtype=out)
    return found.move_axis(0, last).reshape((*places, outputs))


def back_to_image(
    taken: ExtractPatches,
    g: Term,
    kernel: Term,
    groups: int,
    image: Term,
    accum: DType | None = None,
    apart: Sequence[int] = (),
) -> Term:
    """The cotangent of an image, from that of the product of its patches, as `taken` from it, with
    a kernel. g and the kernel have one dtype. If the elements of the image were set `apart` before,
    with zeros between them, only they have one: then it is a convolution in such steps."""
    count, (*window, share, outputs) = len(taken.window), map(known_size, kernel.shape)
    turned = _turn_windows(kernel.conj(), range(count))
    parts = turned.reshape((*window, share, groups, outputs // groups))
    parts = parts.transpose((*range(count), count + 2, count + 1, count))
    # Channels and outputs change places within each group: what an output was made of it gives back
    # to.
    turned = parts.reshape((*window, outputs // groups, groups * share))
    if {*window, *apart} == {1}:
        # Elements apart from one another meet no others in their windows: the product first, of
        # what is there, and the zeros between after it.
        made = times_kernel(g, turned, groups, accum, image.dtype)
        board, around = _board(taken, made, image, apart)
        low, high = zip((0, 0), *around, (0, 0), strict=True)
        return board.pad(low, high)
    return times_kernel(_patches_back(taken, g, image, apart), turned, groups, accum, image.dtype)


def back_to_kernel(
    taken: ExtractPatches,
    g: Term,
    groups: int,
    image: Term,
    accum: DType | None,
    apart: Sequence[int],
) -> Term:
    """The cotangent of the kernel, `[window..., C / groups, groups, O / groups]`, of an image whose
    elements were set `apart`: by patches of g, since those of the image are mostly zeros."""
    patches, size = _patches_back(taken, g, image, apart), math.prod(taken.window)
    places, last, count = list(range(g.rank - 1)), g.rank - 1, len(taken.window)
    share, each = known_size(image.shape[-1]) // groups, known_size(g.shape[-1]) // groups
    columns = image.conj()
    batch: Axes = ((), ())
    if groups > 1:
        patches = patches.reshape((*patches.shape[:-1], size, groups, each))
        columns = columns.reshape((*image.shape[:-1], groups, share))
        batch = ([last + 1], [last])
    found = patches.dot(columns, (places, places), batch, accum_dtype=accum, out_dtype=image.dtype)
    found = found.reshape((groups, *taken.window, each, share))
    order = (*range(1, count + 1), count + 2, 0, count + 1)
    return _turn_windows(found, range(1, count + 1)).transpose(order)


def _turn_windows(kernel: Term, axes: Sequence[int]) -> Term:
    for axis in axes:
        kernel = kernel.flipped(axis)
    return kernel


def _patches_back(taken: ExtractPatches, g: Term, image: Term, apart: Sequence[int]) -> Term:
    """What of g each element of the image went into."""
    board, around = _board(taken, g, image, apart)
    return board.extract_patches(
        window=taken.window, strides=tuple(apart) or (1,) * len(taken.window),
        dilation=taken.dilation, padding=around, pad_value=scalar_literal(0, g.dtype),
    )  # fmt: skip


def _board(
    taken: ExtractPatches, g: Term, image: Term, apart: Sequence[int]
) -> tuple[Term, Sequence[tuple[int, int]]]:
    """g with its elements as far apart as the strides, without those whose windows held nothing
    but padding, and how much to put around it so that every element of the image has a window."""
    between, around = [0] * g.rank, []
    for axis, size in enumerate(taken.window, 1):
        reach, below = (size - 1) * taken.dilation[axis - 1], taken.padding[axis - 1][0]
        extent, step = known_size(g.shape[axis]), taken.strides[axis - 1]
        places = (extent - 1) * step + 1 if extent else 0
        between[axis] = step - 1 if extent > 1 else 0
        elements = known_size(image.shape[axis])
        if apart and elements:
            elements = (elements - 1) * apart[axis - 1] + 1
        around.append((reach - below, elements - places + below))
    board = g.pad([0] * g.rank, [0] * g.rank, between)
    for axis, (low, high) in enumerate(around, 1):
        # A padding below zero takes elements away: those whose windows held nothing but padding.
        cut = max(-low, 0)
        board = board.part(axis, cut, max(known_size(board.shape[axis]) - cut - max(-high, 0), 0))
    return board, [(max(low, 0), max(high, 0)) for low, high in around]
