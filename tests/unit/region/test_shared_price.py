"""What blocks take that keep rows in shared memory: orders that hold whatever the numbers are."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np

import weft
from tests.support.staged_gpu import taps
from weft.region.cost import slide_operations
from weft.region.forms.shared_slides import Cut, SharedSlide, find_shared_slide
from weft.region.ir import Module
from weft.region.shared_price import SharedShape, shared_seconds, shared_shape
from weft.target.known import target_named

SM90 = target_named("sm90")


@cache
def filtered(count: int, step: int) -> tuple[SharedSlide, tuple[float, ...]]:
    """A separable filter of taps that are so far apart."""
    image = weft.tensor(np.zeros((900, 900), np.float32))
    made = weft.jit(lambda x: taps(taps(x, 1, count, step), 0, count, step)).program(image)
    (cluster,) = weft.compile(made, "cpu").clusters.values()
    module: Module = cluster.compilation["region"]
    (kernel,) = module.kernels
    found = find_shared_slide(kernel, module.tensors, SM90)
    assert isinstance(found, SharedSlide)
    return found, tuple(slide_operations(found, module.tensors, SM90))


def test_a_row_of_a_ring_serves_all_rows_of_a_step() -> None:
    slide, _ = filtered(5, 1)
    # Two vectors of four columns hold five places; four rows of a step read eight rows.
    assert slide.lines(1, 4, 1) == (2, 8)
    assert slide.lines(2, 4, 4) == (8, 32)


def test_taps_far_apart_take_no_more_than_those_side_by_side() -> None:
    slide, _ = filtered(5, 12)
    assert slide.lines(1, 4, 1) == (5, 20)
    assert slide.lines(2, 4, 1) == (5, 20)


def test_long_strips_and_single_rows_take_longer() -> None:
    slide, operations = filtered(9, 2)
    best = shared_shape(slide, operations, SM90)
    others = [
        SharedShape(best.cut, 900),
        SharedShape(best.cut, 1),
        SharedShape(replace(best.cut, rows=1), best.rows),
        SharedShape(Cut(1, best.cut.rows, best.cut.columns), best.rows),
    ]
    least = shared_seconds(slide, operations, SM90, best)
    assert all(shared_seconds(slide, operations, SM90, other) > least for other in others)


def test_rings_leave_room_for_several_blocks() -> None:
    """A block alone waits whenever its threads meet."""
    slide, operations = filtered(9, 2)
    cut = shared_shape(slide, operations, SM90).cut
    held = slide.bytes(cut.vector, cut.columns, slide.depths(cut.rows))
    assert 2 * held <= SM90.limits.shared_bytes_per_unit
