"""Convolution operands of the SM80 template (implicit GEMM): windows of an image and filters,
loaded in pieces of 16 bytes.

    of an image    8 channels of one place and one tap; zeros where the window is over the edge
    of filters     8 channels, or 8 columns, of one tap

Threads find the place of their rows once and the tap in every step. A step of a depth that divides
the channels has one tap, the same for all threads; else every piece has its own. Where places are
summed over, in gradients of filters, it is the other way round: a thread knows its tap.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from weft.codegen.gpu.body.accept import refuse
from weft.codegen.gpu.ir.scalar import Lit, Scalar, both, total, wide
from weft.codegen.gpu.products.operand import Operand
from weft.codegen.gpu.products.problem import Problem
from weft.codegen.gpu.products.walks import Step, Walk
from weft.foundation.errors import Finding

_NARROW: Final = 1 << 30
"""Elements up to which an index, before an image or behind it too, has 32 bits."""


def window_refusals(problem: Problem, piece: int) -> Iterator[Finding]:
    """What cannot be copied in pieces of so many elements."""
    for operand in (problem.a, problem.b):
        walk = operand.walk
        if walk is None:
            continue
        if walk.phases:
            yield refuse("Windows", "the SM80 template has windows of one number of taps")
        elif not _in_pieces(operand, walk, piece):
            yield refuse("Windows", f"{operand.tensor} is not read in whole pieces of 16 bytes")


def _in_pieces(operand: Operand, walk: Walk, piece: int) -> bool:
    """Whether pieces begin at multiples of 16 bytes and end where channels or columns do."""
    along = walk.start[0]
    steps = [factor for _, factor in along.factors if factor != 1]
    channels = walk.whole or walk.inner[-1][1]
    numbers = (operand.offset, walk.sizes[0], channels, *walk.strides)
    return all(n % piece == 0 for n in (*numbers, along.constant, *steps, *along.batch))


def piece_at(
    operand: Operand,
    batch: tuple[Sequence[Scalar], Sequence[int]],
    outer: Scalar,
    step: Scalar,
    inside: Scalar,
    depth: int,
) -> tuple[Scalar, Scalar]:
    """The element that a piece begins with, and whether it is there: in row or column `outer`,
    `inside` a k step of a depth. `batch` is the matrix, and how many there are."""
    walk = operand.walk
    assert walk is not None
    indices, counts = batch
    channel, channels = walk.inner[-1]
    if not walk.whole and channels % depth == 0:
        digits = walk.inner_digits(step * depth, indices)
        digits[channel] = digits[channel] + inside
    else:
        digits = walk.inner_digits(step * depth + inside, indices)
    places, taps = walk.coords(outer, digits, indices)
    coords = [*places]
    guard: Scalar = Lit(1)
    for number, tap in enumerate(taps, 1):
        coords[number] = coords[number] + tap
        guard = both(guard, _inside(walk, number, coords[number], counts))
    strides = (1, *walk.strides)
    if sum(size * abs(s) for size, s in zip(walk.sizes, strides, strict=True)) < _NARROW:
        terms = [coord * s for coord, s in zip(coords, strides, strict=True)]
        return wide(total(operand.offset, *terms)), guard
    terms = [wide(coord) * s for coord, s in zip(coords, strides, strict=True)]
    return total(operand.offset, *terms), guard


def _inside(walk: Walk, number: int, coord: Scalar, batches: Sequence[int]) -> Scalar:
    """Whether a coordinate is one of the image; nothing is compared where it always is."""
    assert walk.window is not None
    first, size = walk.window.lower[number - 1], walk.sizes[number]
    last = walk.window.upper[number - 1] + size - 1 + _reach(walk, walk.taps[number - 1], batches)
    found: Scalar = Lit(1)
    if first < 0:
        found = both(found, coord >= 0)
    return both(found, coord < size) if last >= size else found


def _reach(walk: Walk, step: Step, batches: Sequence[int]) -> int:
    """How far the last tap is from the place of its window."""
    sizes = dict((*walk.outer, *walk.inner))
    own = sum(factor * (sizes[name] - 1) for name, factor in step.factors if name in sizes)
    matrices = zip(step.batch, batches, strict=False)
    return own + sum(factor * (count - 1) for factor, count in matrices)
