"""Gradients of filters whose channels make no whole rows of copies: zeros fill the rows up.

    y[r, s, c, o] = sum over p, q of x[i, p + r, q + s, c] * g[i, p, q, o], c < 48

Matrix units take the channels of an image by rows of 64 where they are rows of the result. A copy
of the image has channels of zeros behind its own; what they come to is stored beside the result,
and left there by the kernel that puts it in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from weft.foundation.index_expr import axis
from weft.foundation.records import replace
from weft.region.fitting.image_copies import (
    FEWEST,
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


def with_whole_rows(kernel: Kernel, tensors: Mapping[str, Tensor], target: Target) -> Made | None:
    """The sum over places of an image with whole rows of channels; None where it is no such sum,
    where it has them, or where more than the operand and the result knows of channels."""
    roles = kernel.roles
    if roles is None or not is_large(kernel) or suits_units(kernel, tensors, target):
        return None
    for side, other in (("lhs", "rhs"), ("rhs", "lhs")):
        board = find_board(kernel, roles, side, tensors)
        if board is None or board.is_summed or not _lacks_rows(kernel, board):
            continue
        for copies in _copies(kernel, roles, other, board, tensors):
            known = {**tensors, **{copy.tensor.name: copy.tensor for copy in copies}}
            product = _padded(kernel, board, copies)
            if suits_units(product, known, target):
                made, matrix = _cut_off(kernel, product, roles, known)
                kernels = (*(copy.kernel for copy in copies), *made)
                return kernels, (*(copy.tensor for copy in copies), matrix)
    return None


def _lacks_rows(kernel: Kernel, board: Board) -> bool:
    """Whether channels make no whole rows, and only the image and the one result know of them."""
    size, (output, *others) = kernel.sizes[board.channels], kernel.outputs
    reads = [let for let in kernel.body if isinstance(let.expr, Read) and let is not board.let]
    alone = not any(board.channels in let.axes for let in reads)
    return size >= FEWEST and size % ROW > 0 and alone and not others and output.base is None


def _copies(
    kernel: Kernel, roles: Roles, other: str, board: Board, tensors: Mapping[str, Tensor]
) -> Iterator[tuple[Copy, ...]]:
    """The image with zeros behind its channels, then with what it meets as well."""
    images = list(images_of(kernel, board, tensors, ROW))
    beside = copy_other_side(kernel, roles, other, board, f"{kernel.name}_{other}")
    yield from ((image,) for image in images)
    yield from ((image, beside) for image in images)


def _padded(kernel: Kernel, board: Board, copies: tuple[Copy, ...]) -> Kernel:
    """The kernel that reads copies, over whole rows of channels."""
    reads = {copy.read.name: copy.read for copy in copies}
    size = -(-kernel.sizes[board.channels] // ROW) * ROW
    axes = tuple(
        replace(found, size=size) if found.name == board.channels else found
        for found in kernel.axes
    )
    body = tuple(reads.get(let.name, let) for let in kernel.body)
    return replace(kernel, axes=axes, body=body)


def _cut_off(
    kernel: Kernel, product: Kernel, roles: Roles, tensors: Mapping[str, Tensor]
) -> tuple[tuple[Kernel, Kernel], Tensor]:
    """The product, stored as a matrix, and a map that takes the result out of it."""
    (output,) = kernel.outputs
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
