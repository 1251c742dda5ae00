"""When an SM90 convolution reads its windows from slabs of the image in shared memory.

    taps     every tap of windows is copied by itself, place by place
    slab     what windows at 8 x 8 places reach is copied once

The copy engine takes five cycles for a place of a tap, whatever its channels: nine taps of 128
places bind it for 5760 cycles, in which 128 x 160 results of 64 channels could be made. A box that
is no window it copies at the pace of matrices. Slabs have a price of their own: patches of 8 x 8
places reach beyond results whose sides are no multiples of 8.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from weft.plan.images import IMAGE
from weft.plan.ir import CacheRead, MmaPlan
from weft.region.form import Problem
from weft.region.ir import Kernel
from weft.target.matrix_tiles import K_STEP, MOST_STAGES, Form
from weft.target.matrix_time import AREA_PER_CYCLE, H200, LINE, Contraction, cycles
from weft.target.target import Target

PATCH: Final = 8
"""Places along each side of a patch."""
SLABS: Final = 2
"""Slots of the ring that the slabs of a tile and some channels go through."""
KEPT: Final = (CacheRead("A", IMAGE, "k.i"), CacheRead("B", "smem", "k.i"))
"""Slabs of the image and tiles of filters wait in shared memory."""
SLAB_FORMS: Final = (
    Form(256, 64, (128, 64)),
    Form(128, 64, (64, 64)),
    Form(192, 64, (64, 64)),
    Form(128, 128, (64, 128)),
    Form(256, 128, (128, 128)),
    *(Form(128, columns, (64, columns)) for columns in (96, 160, 192, 256)),
    Form(256, 32, (128, 32)),
)
_PLACE: Final = 5.0
"""Cycles of the copy engine for a place of a tap: 4.4 to 6 at 112, 56 and 28 places, 2.8 where four
units ask for each."""
_GAIN: Final = 0.95
"""Of the time of taps, what slabs must take less than."""
_EQUAL: Final = 1.01
"""Times the least, within which times are as good as equal."""
_LATENCY: Final = 2700.0
"""Cycles from when a slot of the ring is free until its next slab is there."""
_AXES: Final = 2
"""That windows move over."""
FEWEST_STAGES: Final = 3
"""Of filters."""
_BARRIERS: Final = 512
"""Bytes of shared memory, at most."""


def has_slabs(plan: MmaPlan) -> bool:
    """Whether a plan reads windows from slabs."""
    return plan.arch == "sm90" and plan.cache == KEPT


def slab_rows(kernel: Kernel, problem: Problem) -> int | None:
    """Elements of the image that windows of a patch reach; None where an operand is not windows
    over two axes, those side by side at every place."""
    image = problem.image
    if image is None or not image.is_summed or image.side != "lhs" or problem.scattered:
        return None
    if len(image.moved) != _AXES or problem.batch != 1 or problem.dtype.storage_bytes != 2:
        return None
    if image.moved[1].step != 1 or any(axis.phase is not None for axis in image.moved):
        return None
    taps = (kernel.sizes[axis.tap] if axis.tap else 1 for axis in image.moved)
    reach = zip(taps, image.moved, strict=True)
    return math.prod(patch_reach(axis.step, count, axis.dilation) for count, axis in reach)


def patch_reach(step: int, taps: int, dilation: int) -> int:
    """Elements of the image that the windows of a patch reach along an axis."""
    return (PATCH - 1) * step + (taps - 1) * dilation + 1


def slab_contraction(kernel: Kernel, problem: Problem, found: Contraction) -> Contraction | None:
    """A contraction that takes as long as one with slabs; None where it has none."""
    rows, image = slab_rows(kernel, problem), problem.image
    if rows is None or image is None:
        return None
    places = [kernel.sizes[axis.place] if axis.place else 1 for axis in image.moved]
    taps = math.prod(kernel.sizes[tap] for tap in image.taps)
    patches = problem.m // math.prod(places) * math.prod(-(-n // PATCH) for n in places)
    extent = replace(found.extent, m=patches * PATCH**2)
    again = found.again + extent.bytes - found.extent.bytes
    share = rows / (PATCH**2 * taps)
    return replace(found, extent=extent, a=replace(found.a, share=share), again=again)


def slab_stages(form: Form, rows: int, step: int, beside: int, panel: int, target: Target) -> int:
    """As many stages of filters as shared memory holds beside slabs of so many rows of `step`
    bytes and the staging of results; `panel` is what columns are stored in multiples of."""
    patches = form.rows // PATCH**2
    slabs = SLABS * patches * -(-rows * step // 1024) * 1024
    staging = form.consumers * 2 * form.warp_tile[0] * LINE
    room = target.limits.shared_bytes_per_block - slabs - staging - beside - _BARRIERS
    return min(MOST_STAGES, room // (step * -(-form.columns // panel) * panel))


def slab_cycles(form: Form, slabs: Contraction, rows: int, target: Target, *, light: bool) -> float:
    """The time of a form with slabs of so many rows. Memory has to bring the first of them to all
    units before anything is multiplied, half of them while the kernel starts; within a tile the
    next one is waited for where its forerunner's taps are multiplied too soon."""
    units, patches = target.limits.units, form.rows / PATCH**2
    first = units * patches * rows * LINE / H200.memory / 2
    taps = round(rows / (PATCH**2 * slabs.a.share))
    steps = -(-slabs.extent.k // (K_STEP * taps))
    multiplied = taps * form.rows * form.columns / AREA_PER_CYCLE
    waves = -(-slabs.extent.tiles(form) // units)
    # With two slots the next slab is asked for when the one before is done: it comes in time where
    # multiplying a slab takes longer than bringing one.
    waiting = waves * (steps - 1) * max(0.0, _LATENCY - multiplied)
    # Light results are stored while other warpgroups multiply, as deferred ones are.
    alike = replace(form, warp_tile=(PATCH**2, form.warp_tile[1])) if light else form
    return first + waiting + cycles(alike, slabs, target, light=light)


def faster_slabs(
    kernel: Kernel, problem: Problem, found: Contraction, taps: Form, target: Target, *, light: bool
) -> list[Form]:
    """The forms in which slabs take less time than a form in which taps are copied, the fastest
    first; of those that are as good as equal the first of the list."""
    slabs, rows = slab_contraction(kernel, problem, found), slab_rows(kernel, problem)
    if slabs is None or rows is None:
        return []
    bound = max(cycles(taps, found, target, light=light), _copying_taps(taps, found, target))
    times = {form: slab_cycles(form, slabs, rows, target, light=light) for form in SLAB_FORMS}
    near = _EQUAL * min(times.values())
    faster = [form for form in SLAB_FORMS if times[form] < _GAIN * bound]
    return sorted(faster, key=lambda form: max(times[form], near))


def _copying_taps(form: Form, found: Contraction, target: Target) -> float:
    """Cycles that the copy engine of the busiest unit takes for taps of windows: fewer where units
    ask for the same places, as those do that make other columns."""
    places, size = (form.columns, form.rows) if form.swap else (form.rows, form.columns)
    columns = -(-found.extent.n // size)
    steps = -(-2 * found.extent.k // LINE)
    waves = -(-found.extent.tiles(form) // target.limits.units)
    return H200.start + waves * steps * places * _PLACE / math.sqrt(columns)
