"""Choosing an `MmaPlan` for matrix units: the form of kernel that takes the least time.

On SM90 times come from `target.measured_forms`, on SM80 from how two tiles fill the units.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Final

from weft.foundation.records import dataclass
from weft.plan.completion import BOUND, CACHED, HINTS, algorithm_kind, pieces
from weft.plan.edges import local_edges
from weft.plan.ir import Header, MmaPlan
from weft.plan.slabs import (
    FEWEST_STAGES,
    KEPT,
    faster_slabs,
    has_slabs,
    slab_contraction,
    slab_cycles,
    slab_rows,
    slab_stages,
)
from weft.region.form import Image, Problem
from weft.region.forms.multiplied import usual_atom
from weft.region.forms.part_sums import sums_in_panels, sums_parts, whole_results
from weft.region.forms.row_folds import (
    folds_parts,
    folds_rows,
    holds_part,
    holds_rows,
    is_row_fold,
    part_width,
)
from weft.region.forms.thin_products import FEW, is_thin
from weft.region.ir import Kernel, Output, Read, epilogue_of, problem_of
from weft.target import roofline
from weft.target.matrix_atoms import FULL, PROMOTED
from weft.target.matrix_tiles import FORMS, K_STEP, WINDOW_FORMS, Extent, Form, stages_for
from weft.target.matrix_time import CYCLES_A_SECOND, Contraction, Operand, cycles
from weft.target.measured_forms import Choice, choose
from weft.target.target import Target
from weft.target.tile_order import one_wave

LIGHT: Final = frozenset({"bias", "scale", "relu"})
"""Epilogue steps that cost next to nothing."""
_PANEL: Final = 64
"""16-bit elements of a row of 128 bytes, within which shared memory is permuted."""
_ROW: Final = 128
"""Bytes of a k step of the SM90 template."""
_PIECE: Final = 16
"""Bytes of a copy of the SM80 template."""


@dataclass(frozen=True)
class _Tile:
    """A tile of the SM80 template: what it reaches of the first one, stages, a warp's part."""

    shape: tuple[int, int, int]
    rate: float
    stages: int
    warp: tuple[int, int] = (64, 64)


# Steps of 32 elements and four stages leave room for two blocks on a unit, which hide one another's
# waits: 0.43 -> 0.51 to 0.55 of the best peer on an H200. 128x256 reached 0.46, by steps of 32
# 0.39. f64 runs at 50 TFLOP/s in 64x64, at 47 in 128x64 by warps of 64x32, at 41 by warps of 32x32.
_SM80_TILES: Final = {
    1: (_Tile((128, 64, 128), 1.0, 2), _Tile((128, 128, 64), 1.25, 4)),
    2: (_Tile((128, 64, 64), 1.0, 2), _Tile((128, 128, 32), 1.25, 4)),
    8: (_Tile((64, 64, 16), 1.0, 3, (32, 32)), _Tile((128, 64, 16), 0.94, 3, (32, 32))),
}
"""Tiles by the bytes of an operand's element."""
_SM80_WINDOWS: Final = (
    _Tile((128, 64, 32), 1.0, 4, (64, 32)),
    _Tile((128, 128, 32), 1.25, 4),
)
"""Tiles of convolutions: a thread copies four pieces of windows at a time, and knows their places
once for all steps."""
# f64 of two rows times 4096x4096 62.4 -> 37.7 µs, of eight 41.6 -> 38.6, beside multiply-adds
# (H200).
_FEW_ROWS: Final = _Tile((16, 128, 16), 1.0, 3, (16, 32))
_FEW_COLUMNS: Final = _Tile((128, 16, 16), 1.0, 3, (32, 16))
"""Tiles of wide numbers whose longer operand, all that counts, waits in a ring."""
_NEAR: Final = 1.03
"""Times the least of the times of forms that share sums of several lengths out, within which the
first of the list is taken: those that were measured most. 28 x 28 places of 256 channels take 14.2
us in tiles of 128x128 in turns, 18.7 in those of 192x64, for which the model has 16.5 and 16.2."""
_MANY_TURNS: Final = 32
"""Tiles that a unit takes one after the other from which it matters little which ones."""
# 96 registers of each of 128 threads, and as many for the sums of one step.
_MOST_SUMS: Final = 64 * 192
"""Sums of a warpgroup that its registers hold twice."""
# With 192 registers of sums every kernel that stores two results spilled, and moved on to another
# form after a compile of its own.
_MOST_SUMS_OF_SEVERAL: Final = 128 * 160
"""Sums of a warpgroup that its registers hold beside what several results are stored by."""


def sm90_plan(
    kernel: Kernel, problem: Problem, target: Target, header: Header, form: Form | None = None
) -> MmaPlan:
    """A form of the SM90 template: where none is given, the one that is done first, which may read
    windows from slabs of their image."""
    found = sm90_contraction(problem)
    if form is None:
        form = sm90_choice(kernel, problem, target).form
        better = faster_slabs(kernel, problem, found, form, target, light=_is_light(kernel))
        plans = (slab_plan(kernel, problem, target, header, slabs) for slabs in better)
        best = None if folds_rows(kernel) else next(filter(None, plans), None)
        if best is not None:
            return best
    promoted = _is_promoted(kernel)
    extent = found.extent
    after = _has_next_tile(form, extent, target)
    deferred = after and form.defers and extent.k > K_STEP and _can_wait(kernel)
    # Columns that lie along n are stored in whole panels.
    along = problem.layouts[0] == "col" if form.swap else problem.layouts[1] == "row"
    beside = 4 * form.consumers * _vectors(kernel, swap=form.swap) * form.warp_tile[1]
    staged = not folds_parts(kernel)
    crowded = not staged or (deferred and not _is_light(kernel))
    return MmaPlan(
        header,
        (form.rows, form.columns, _step_bytes(kernel, problem) // problem.dtype.storage_bytes),
        stages=stages_for(form, target, beside, _PANEL if along else 1, staged=staged),
        warp_tile=form.warp_tile,
        cache=CACHED,
        epilogue=epilogue_of(kernel),
        arch="sm90",
        layout_hints=dict(HINTS),
        algo_choice={algorithm_kind(kernel, "sm90"): "implicit_gemm"},
        local_edges=local_edges(kernel),
        order=MmaPlan.order if after else one_wave(found, form),
        cluster=form.cluster,
        operand_layouts=problem.layouts,
        roles=form.roles,
        swap_ab=form.swap,
        deferred_epilogue=deferred,
        consumers=form.consumers,
        in_flight=0 if promoted else MmaPlan.in_flight,
        registers=_registers(form, crowded=crowded),
        precision=PROMOTED if promoted else FULL,
    )


def slab_plan(
    kernel: Kernel, problem: Problem, target: Target, header: Header, form: Form
) -> MmaPlan | None:
    """A form in which windows are read from slabs of their image; None where they cannot be, or
    shared memory does not hold them."""
    rows, step = slab_rows(kernel, problem), _step_bytes(kernel, problem)
    if rows is None:
        return None
    beside = 4 * form.consumers * _vectors(kernel, swap=False) * form.warp_tile[1]
    panel = _PANEL if problem.layouts[1] == "row" else 1
    stages = slab_stages(form, rows, step, beside, panel, target)
    if stages < FEWEST_STAGES:
        return None
    plan = sm90_plan(kernel, problem, target, header, form)
    # One warpgroup stores while another multiplies: neither waits for the other within a tile.
    registers = _registers(form, crowded=False)
    return replace(plan, cache=KEPT, stages=stages, deferred_epilogue=False, registers=registers)


def _step_bytes(kernel: Kernel, problem: Problem) -> int:
    """Of a row of a k step: half a row where it holds all channels of windows, which would be half
    padding else."""
    image = problem.image
    if image is None or not image.is_summed:
        return _ROW
    channels = kernel.sizes[image.channels] * problem.dtype.storage_bytes
    return _ROW // 2 if channels <= _ROW // 2 else _ROW


def _registers(form: Form, *, crowded: bool) -> tuple[int, int]:
    """For the producer and for consumers, who are `crowded` where they compute the epilogue beside
    results that wait, or several numbers of rows."""
    if form.consumers != 2:
        return 0, 0
    # 384 threads are launched with 168 registers each. The producer's and two consumers' are 504
    # together, and both splits give out all of them: 24 + 2 × 240 = 40 + 2 × 232.
    return (24, 240) if crowded else (40, 232)


def sm90_choice(kernel: Kernel, problem: Problem, target: Target) -> Choice:
    """The form that is done first, and why it is thought to be."""
    found, forms, light = sm90_contraction(problem), sm90_forms(kernel), _is_light(kernel)
    lengths = _lengths(kernel, problem)

    def time(form: Form, *, light: bool = light) -> float:
        of_form = _of_the_busiest(form, found, lengths, target) if lengths else found
        return cycles(form, of_form, target, light=light)

    if lengths:
        times = {form: time(form) for form in forms if found.suits(form)}
        near = _NEAR * min(times.values())
        best = next(form for form, each in times.items() if each <= near)
        choice = Choice(best, "by the model of its busiest unit")
    else:
        choice = choose(found, target, light=light, forms=forms)
    several = len(whole_results(kernel)) > 1 and not folds_parts(kernel)
    if not several or choice.form.sums <= _MOST_SUMS_OF_SEVERAL:
        return choice
    # It would spill, and then move to the best of those that hold less: `candidates.lighter`.
    others = [f for f in forms if found.suits(f) and f.sums <= _MOST_SUMS_OF_SEVERAL]
    best = min(others, key=lambda form: time(form, light=True))
    return Choice(best, f"{choice.reason}, of those with registers for several results")


def _lengths(kernel: Kernel, problem: Problem) -> tuple[int, ...]:
    """Taps of the sums of each matrix, in order; none where all have as many."""
    moved = problem.image.moved if problem.image is not None else ()
    phases = {axis.phase.axis: axis.counts(kernel.sizes) for axis in moved if axis.phase}
    if all(len({*counts}) == 1 for counts in phases.values()):
        return ()
    each = [phases.get(a) or (1,) * kernel.sizes[a] for a in problem.axes.batch]
    return tuple(map(math.prod, product(*each)))


def _of_the_busiest(
    form: Form, found: Contraction, lengths: Sequence[int], target: Target
) -> Contraction:
    """A contraction all of whose tiles have sums as long as, on average, those that the busiest
    unit gets of matrices with sums of these lengths."""
    tiles = found.extent.tiles(form) // len(lengths)
    units = target.limits.units
    turns = -(-tiles * len(lengths) // units)
    if turns > _MANY_TURNS:
        return found
    loads = [0] * units
    for number, length in enumerate(length for length in lengths for _ in range(tiles)):
        # As blocks take them: the grid is persistent, and block u has the tiles u, u + units, and
        # so on.
        loads[number % units] += length
    share = max(loads) / turns / (sum(lengths) / len(lengths))
    extent = found.extent
    return replace(found, extent=replace(extent, k=math.ceil(extent.k * share)))


def product_seconds(kernel: Kernel, plan: MmaPlan, target: Target) -> float | None:
    """The time of a plan of the SM90 template by its model, in which the order of tiles and the
    depth of the ring do not count; None for what is no product."""
    problem = problem_of(kernel)
    if problem is None:
        return None
    rows, columns, _ = plan.tile
    paired = tuple(plan.cluster) != (1, 1)
    form = Form(rows, columns, plan.warp_tile, plan.roles, plan.swap_ab, paired)
    found, lengths, light = sm90_contraction(problem), _lengths(kernel, problem), _is_light(kernel)
    reached = slab_rows(kernel, problem) if has_slabs(plan) else None
    slabs = slab_contraction(kernel, problem, found)
    if reached is not None and slabs is not None:
        return slab_cycles(form, slabs, reached, target, light=light) / CYCLES_A_SECOND
    if lengths:
        found = _of_the_busiest(form, found, lengths, target)
    return cycles(form, found, target, light=light) / CYCLES_A_SECOND


def _is_light(kernel: Kernel) -> bool:
    """Whether the epilogue costs next to nothing."""
    halves = kernel.let(kernel.outputs[0].value).dtype.storage_bytes == 2
    if len(whole_results(kernel)) > 1 or folds_rows(kernel):
        return False
    return halves and not _is_promoted(kernel) and set(epilogue_of(kernel)) <= LIGHT


def _can_wait(kernel: Kernel) -> bool:
    """Whether results are better stored while the next tile is multiplied, where that takes more
    than a step: registers hold them beside its sums, and nothing was to be read into the buffers
    that they go through."""
    assert kernel.roles is not None
    halves = kernel.let(kernel.outputs[0].value).dtype.storage_bytes == 2
    if len(whole_results(kernel)) > 1 or folds_rows(kernel):
        return False
    m, n, k = ({*axes} for axes in (kernel.roles.m, kernel.roles.n, kernel.roles.k))
    reads = [set(let.axes) for let in kernel.body if isinstance(let.expr, Read)]
    whole = any(axes & m and axes & n and not axes & k for axes in reads)
    return halves and not whole and not _is_promoted(kernel)


def _is_promoted(kernel: Kernel) -> bool:
    """Whether sums are added up in parts."""
    atom = usual_atom(kernel, "sm90")
    return atom is not None and atom.in_parts


def sm90_contraction(problem: Problem) -> Contraction:
    """A contraction of 16-bit elements that takes as long as a problem."""
    # A step is 128 bytes of a row, whatever an element has: 8-bit elements come and are multiplied
    # twice as fast as 16-bit ones.
    depth = -(-problem.k * problem.dtype.storage_bytes // 2)
    first, second = problem.grains
    a = Operand(problem.layouts[0] == "row", first)
    b = Operand(problem.layouts[1] == "col", second)
    extent = Extent(problem.batch, problem.m, problem.n, depth)
    return Contraction(extent, a, b, again=_read_again(problem))


def _read_again(problem: Problem) -> int:
    """Bytes of an image that its windows read more than once."""
    image = problem.image
    if image is None:
        return 0
    outer = problem.m if image.side == "lhs" else problem.n
    every = problem.batch * outer * problem.k * problem.dtype.storage_bytes
    return max(0, every - image.elements * problem.dtype.storage_bytes)


def sm90_forms(kernel: Kernel) -> tuple[Form, ...]:
    """The forms with registers for the kernel's sums, twice as many where they are promoted, and
    whose tiles do not cross from tap to tap of windows."""
    problem = problem_of(kernel)
    image = problem.image if problem is not None else None
    forms = FORMS if image is None else tuple(f for f in WINDOW_FORMS if _keeps_taps(f, image))
    if problem is not None and problem.scattered:
        forms = tuple(form for form in forms if not form.swap)
    if sums_parts(kernel):
        forms = tuple(form for form in forms if sums_in_panels(form))
    if folds_parts(kernel):
        forms = tuple(form for form in forms if holds_part(form, part_width(kernel)))
    elif problem is not None and folds_rows(kernel):
        forms = tuple(form for form in forms if holds_rows(form, problem.n))
    atom = usual_atom(kernel, "sm90")
    if atom is None or not atom.in_parts:
        return forms
    return tuple(form for form in forms if form.sums <= _MOST_SUMS)


def _keeps_taps(form: Form, image: Image) -> bool:
    """Whether the rows or columns of a tile that windows are hold whole taps, or parts of one."""
    extent = form.rows if (image.side == "lhs") is not form.swap else form.columns
    return image.is_summed or extent % _PANEL == 0 or _PANEL % extent == 0


def takes_warpgroups(problem: Problem, kernel: Kernel, target: Target) -> bool:
    """Whether the SM90 template computes what the kernel says, as far as a plan can tell."""
    atom = usual_atom(kernel, "sm90")
    if atom is None or not target.has("wgmma") or not problem.aligned:
        return False
    if not _stores_alike(kernel):
        return False
    return not atom.along_k or problem.layouts == ("row", "col")


def _stores_alike(kernel: Kernel) -> bool:
    """Whether every result has an element for each sum, and all have one size, or all are numbers
    of parts of rows."""
    if folds_parts(kernel):
        assert kernel.roles is not None
        return all(is_row_fold(kernel.let(o.value), kernel.roles) for o in kernel.outputs)
    whole = whole_results(kernel)
    sizes = {kernel.let(output.value).dtype.storage_bytes for output in whole}
    return len(sizes) == 1 and all(_has_all_sums(kernel, output) for output in whole)


def _has_all_sums(kernel: Kernel, output: Output) -> bool:
    """Whether a result has an element for each sum of a contraction."""
    assert kernel.roles is not None
    sums = kernel.let(kernel.roles.contraction)
    return set(kernel.let(output.value).axes) == set(sums.axes)


def takes_warps(problem: Problem, kernel: Kernel) -> bool:
    """Whether the SM80 template computes what the kernel says, and is the better for it."""
    if problem.scattered or folds_rows(kernel):
        return False
    if problem.image is not None and not _copies_windows(kernel, problem, problem.image):
        return False
    atom = usual_atom(kernel, "sm80")
    if atom is not None and not all(_has_all_sums(kernel, output) for output in kernel.outputs):
        return False
    if atom is None or atom.word <= 2 or min(problem.m, problem.n) > FEW[-1]:
        return atom is not None
    # Few rows of wide numbers are worth a ring where 16-byte pieces fill it.
    return problem.aligned and is_thin(problem.m, problem.n)


def _copies_windows(kernel: Kernel, problem: Problem, image: Image) -> bool:
    """Whether windows of an image are read in pieces of 16 bytes."""
    whole = kernel.sizes[image.channels] * problem.dtype.storage_bytes % _PIECE == 0
    return whole and problem.dtype.storage_bytes == 2


def _has_next_tile(form: Form, extent: Extent, target: Target) -> bool:
    return extent.tiles(form) > target.limits.units


def _vectors(kernel: Kernel, *, swap: bool) -> int:
    """How many tensors the epilogue reads along the columns of tiles, the same for every row."""
    assert kernel.roles is not None
    m, n = ({*kernel.roles.m}, {*kernel.roles.n})
    columns, others = (m, n) if swap else (n, m)
    others |= {*kernel.roles.k}
    reads = [set(let.axes) for let in kernel.body if isinstance(let.expr, Read)]
    return sum(bool(axes & columns) and not axes & others for axes in reads)


def sm80_plan(kernel: Kernel, problem: Problem, target: Target, header: Header) -> MmaPlan:
    """The SM80 form: document 2's tile, or twice its columns where that fills the units too."""
    tile = _sm80_tile(problem, target)
    extents = zip("mnk", (problem.m, problem.n, problem.k), tile.shape, strict=True)
    return MmaPlan(
        header,
        tile.shape,
        stages=tile.stages,
        bind=dict(BOUND),
        warp_tile=tile.warp,
        cache=CACHED,
        vectorize=pieces(kernel),
        predicate_tail=tuple(f"{a}.i.i" for a, size, step in extents if size % step),
        epilogue=epilogue_of(kernel),
        arch="sm80",
        layout_hints=dict(HINTS),
        algo_choice={algorithm_kind(kernel, "sm80"): "implicit_gemm"},
        local_edges=local_edges(kernel),
        operand_layouts=problem.layouts,
        roles="single",
    )


def _sm80_tile(problem: Problem, target: Target) -> _Tile:
    size = problem.dtype.storage_bytes
    if size > 2 and min(problem.m, problem.n) <= FEW[-1]:
        return _FEW_ROWS if problem.m <= problem.n else _FEW_COLUMNS
    tile, wide = _SM80_TILES[size] if problem.image is None else _SM80_WINDOWS
    tiles = problem.tiles(*wide.shape[:2])
    # Of wide numbers the second tile has twice as many warps, not larger ones.
    if size > 2 and tiles <= target.limits.units < problem.tiles(*tile.shape[:2]):
        # One tile of more warps is done before two that share a unit.
        return wide
    if tiles < 2 * target.limits.units:
        return tile
    return min((tile, wide), key=lambda tile: _sm80_time(tile, problem, target))


def _sm80_time(tile: _Tile, problem: Problem, target: Target) -> float:
    """Waves of tiles, the last as slow as a full one, up to a factor that both tiles share."""
    rows, columns, _ = tile.shape
    waves = roofline.waves(problem.tiles(rows, columns), target.limits.units)
    return waves * rows * columns / tile.rate
