"""Channels that make no whole rows of copies: zeros fill them up.

    y[r, s, c, o] = sum over p, q of x[i, p + r, q + s, c] * g[i, p, q, o], c < 48

Where channels are rows of the result, in gradients of filters, matrix units take 64 of them for
each tap. A copy of the image has channels of zeros behind its own; what they come to is stored
beside the result, and left there by the kernel that puts it in order.

Where channels are summed over, a copy engine fills their last line up. Where there is none, image
and filters are copied with zeros behind their channels, which meet one another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from weft.foundation.index_expr import axis
from weft.foundation.records import replace
from weft.region.fitting.image_copies import (
    FEWEST,
    LINE,
    Board,
    Copy,
    Made,
    copy_other_side,
    find_board,
    images_of,
    is_large,
    suits_units,
)
from weft.region.ir import Kernel, KernelAxis, Let, Output, Pattern, Read, Roles, Tensor
from weft.target.target import Target

ROW: Final = 64
"""16-bit elements of a row of copies."""
_FEWEST_SUMMED: Final = 2
"""Channels of an image from which zeros behind them are multiplied sooner than scalars are."""


def with_whole_rows(kernel: Kernel, tensors: Mapping[str, Tensor], target: Target) -> Made | None:
    """A convolution, or a gradient of filters, of an image with whole lines or rows of channels;
    None where it has them, or where more than the operand and the result knows of channels."""
    roles = kernel.roles
    if roles is None or not is_large(kernel) or suits_units(kernel, tensors, target):
        return None
    for side, other in (("lhs", "rhs"), ("rhs", "lhs")):
        board = find_board(kernel, roles, side, tensors)
        if board is None or not _lacks_channels(kernel, board, target):
            continue
        line = LINE if board.is_summed else ROW
        for copies in _copies(kernel, roles, other, board, tensors):
            known = {**tensors, **{copy.tensor.name: copy.tensor for copy in copies}}
            product = _fill_up(kernel, board, copies, line)
            if not suits_units(product, known, target):
                continue
            before, more = (copy.kernel for copy in copies), [copy.tensor for copy in copies]
            if board.is_summed:
                return (*before, product), tuple(more)
            made, matrix = cut_off(kernel, product, known)
            return (*before, *made), (*more, matrix)
    return None


def _lacks_channels(kernel: Kernel, board: Board, target: Target) -> bool:
    """Whether channels make no whole lines, or rows that only the image and the one result know
    of."""
    size = kernel.sizes[board.channels]
    if board.is_summed:
        return size >= _FEWEST_SUMMED and size % LINE > 0 and not target.has("wgmma")
    output, *others = kernel.outputs
    reads = [let for let in kernel.body if isinstance(let.expr, Read) and let is not board.let]
    alone = not any(board.channels in let.axes for let in reads)
    return size >= FEWEST and size % ROW > 0 and alone and not others and output.base is None


def _copies(
    kernel: Kernel, roles: Roles, other: str, board: Board, tensors: Mapping[str, Tensor]
) -> Iterator[tuple[Copy, ...]]:
    """The image with zeros behind its channels, alone if places are summed over, and with what it
    meets."""
    images = list(images_of(kernel, board, tensors, LINE if board.is_summed else ROW))
    beside = copy_other_side(kernel, roles, other, board, f"{kernel.name}_{other}")
    if not board.is_summed:
        yield from ((image,) for image in images)
    yield from ((image, beside) for image in images)


def _fill_up(kernel: Kernel, board: Board, copies: tuple[Copy, ...], line: int) -> Kernel:
    """The kernel that reads copies, over channels that fill lines up."""
    reads = {copy.read.name: copy.read for copy in copies}
    size = -(-kernel.sizes[board.channels] // line) * line
    body = tuple(reads.get(let.name, let) for let in kernel.body)
    return with_size(replace(kernel, body=body), board.channels, size)


def with_size(kernel: Kernel, name: str, size: int) -> Kernel:
    """The kernel with an axis of another size."""
    axes = (replace(each, size=size) if each.name == name else each for each in kernel.axes)
    return replace(kernel, axes=tuple(axes))


def cut_off(
    kernel: Kernel, product: Kernel, tensors: Mapping[str, Tensor]
) -> tuple[tuple[Kernel, Kernel], Tensor]:
    """A product over longer axes, stored as a matrix, and a map that takes the kernel's result out
    of it."""
    (output,), roles = kernel.outputs, product.roles
    assert roles is not None
    names = (*roles.batch, *roles.m, *roles.n)
    dtype, place = tensors[output.tensor].dtype, tuple(map(axis, names))
    matrix = Tensor(f"{kernel.name}_rows", dtype, tuple(product.sizes[n] for n in names))
    first = replace(
        product,
        name=f"{kernel.name}_product",
        outputs=(replace(output, tensor=matrix.name, index=place),),
    )
    axes = tuple(KernelAxis(name, kernel.sizes[name]) for name in names)
    body = (Let("v0", dtype, names, Read(matrix.name, place)),)
    outputs = (Output(output.tensor, "v0", output.index),)
    last = Kernel(kernel.name, Pattern.MAP, axes, body, outputs)
    return (first, replace(last, labels=kernel.labels)), matrix
