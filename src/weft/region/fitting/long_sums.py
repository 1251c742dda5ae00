"""Splitting long reductions: a kernel that reduces much to little becomes two (`cutting.py`).

Leading axes go to the parts as they are, and of the next one a divisor. Where no divisor makes
about as many parts as fill the units, a GPU takes a number of parts that leaves little over, which
the second kernel adds. The order of additions is that of the kernels, the same in every run.
Contractions are cut where `target.matrix_time` says that two kernels are done before one. On a CPU
sums over the columns of a large matrix are cut, so that every thread reads whole rows, and few long
sums, so that there is something for every thread; how often depends on the sizes alone, not on the
threads.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from weft.foundation.dtypes import BF16, F16, F32
from weft.foundation.records import replace
from weft.region.fitting.cutting import Cut, cut_kernel, needed, reductions, removed_axes
from weft.region.fitting.joined_axes import with_joined_axes, with_joined_strips
from weft.region.fitting.levels import one_level_each
from weft.region.form import Problem
from weft.region.forms.columns import (
    matrix_bytes,
    pieces_of_columns,
    short_strips,
    side_by_side,
    summed_columns,
)
from weft.region.forms.multiplied import usual_atom
from weft.region.forms.overlap import LONG, OverlappingRows, overlapping_rows
from weft.region.forms.problem import find_problem
from weft.region.forms.thin_products import FEW, LONG_SIDE, tiles_per_unit
from weft.region.ir import (
    Check,
    Fold,
    Kernel,
    KernelAxis,
    Pattern,
    Read,
    Reduce,
    Roles,
    Tensor,
    Words,
    operands,
    row_major,
    walk,
)
from weft.target.matrix_tiles import FORMS, WINDOW_FORMS, Extent, Form
from weft.target.matrix_time import PANEL, Contraction, Operand, split_for, split_of
from weft.target.target import Kind, Target

_PLAIN: Final = tuple(form for form in WINDOW_FORMS if form in FORMS)
"""The tiles of a contraction that are there for matrices too."""
_BLOCKS_PER_UNIT: Final = 4
"""Blocks of a unit that run at once, so that the parts are reduced in one wave."""
# 2^29 numbers of f32 take 463.6 µs in one wave, 464.3 and 464.9 in two and four, 461.1 in eight
# (H200).
_WAVES: Final = 8
"""Of blocks for the parts of very long sums: where they end one by one, others begin."""
_LONG_PART: Final = 1 << 17
"""Bytes of each of so many parts, at least: 2^29 numbers of f32 take 463.4 us in 512 parts, 461.7
in 4096."""
_SHORTEST: Final = 256
"""Elements of a part, at least."""
_STRIP_BYTES: Final = 512
"""Of neighbouring columns that a block reduces side by side."""
_STRIPS: Final = 32
"""Strips of rows that overlap, of a block, ..."""
_STRIP_VECTOR: Final = 4
"""... columns of each, ..."""
_STRIP_TAPS: Final = 8
"""... and rows, at most."""
_NEAR: Final = 1.5
"""How many times more or fewer parts than wanted are about as many."""
_AROUND: Final = 1.25
"""The same, among numbers of parts that leave something over."""
_WHOLE_LINES: Final = 32
"""Elements of which such parts are made, so that all of them begin where lines of memory do."""
_VECTOR: Final = 8
"""Elements of the widest vector."""
_LEFT_OVER: Final = 1 << 12
"""Elements, at most, that the second kernel adds."""
_LEFT_OF_PRODUCT: Final = 1 << 8
"""The same, for each result of a contraction."""
_STREAM_BYTES: Final = 1 << 20
"""Bytes of a matrix whose columns a CPU sums up in parts, at least, ..."""
_STREAM_PART_BYTES: Final = 1 << 17
"""... and of a part: one thread reads them in about ten microseconds."""
_PART_BYTES: Final = 1 << 18
"""Bytes of a part of a row that a CPU reduces, at least: a thread reads them in about 20
microseconds, which is what it takes to wake it and to begin the second kernel."""
_LEAST_PARTS: Final = 4
_LEAST_CUT: Final = 2
"""Parts of the sums of a piece, of which there are several where columns are many."""
_MOST_PARTS: Final = 32
_LEAST_ROWS: Final = 32
"""Parts that are worth a second kernel, that it joins in no time, and rows of a part, at least."""
_TILE_OF_WARPS: Final = (128, 64)
"""Rows and columns of the least tile of a convolution on SM80, ..."""
_TILES_AT_ONCE: Final = 2
"""... and how many of them a unit has at once."""
_CUT: Final = (Pattern.ROW, Pattern.MATMUL, Pattern.CONV)


def in_parts(
    kernel: Kernel, tensors: Mapping[str, Tensor], target: Target
) -> tuple[tuple[Kernel, ...], tuple[Tensor, ...]]:
    """The kernels that take a kernel's place, and the tensors between them."""
    if 0 in kernel.sizes.values():
        return (kernel,), ()
    kernels, between = one_level_each(kernel, tensors, target)
    known = {**tensors, **{tensor.name: tensor for tensor in between}}
    made: list[Kernel] = []
    if len(kernels) > 1:
        kernels = tuple(with_joined_axes(level, known, beside=True) for level in kernels)
    for level in kernels:
        cut = _find_cut(level, known, target)
        pieces, parts = cut_kernel(level, cut) if cut is not None else ((level,), ())
        if cut is not None and cut.strip:
            known |= {tensor.name: tensor for tensor in parts}
            pieces = (with_joined_strips(pieces[0], known, len(cut.strip)), *pieces[1:])
        made += pieces
        between += parts
    return tuple(made), between


def _find_cut(kernel: Kernel, tensors: Mapping[str, Tensor], target: Target) -> Cut | None:
    plain_rows = target.kind is Kind.GPU and kernel.roles is None
    if not _can_be_cut(kernel) or (_looks_up(kernel) and not plain_rows):
        return None
    if target.kind is Kind.CPU:
        return _column_cut(kernel, tensors) or _long_row_cut(kernel)
    if kernel.roles:
        cut = _outer_cut(kernel, tensors, target)
        plain = kernel.pattern is Pattern.MATMUL
        return _contraction_cut(kernel, target) if cut is None and plain else cut
    cut = _row_cut(kernel, tensors, target)
    if cut is not None and (cut.length or cut.strip) and _looks_up(kernel):
        return None
    return cut


def _can_be_cut(kernel: Kernel) -> bool:
    """One level of reductions over the same axes, of what can be computed apart from what follows
    them, and no result along these axes."""
    sums = reductions(kernel)
    if kernel.pattern not in _CUT or kernel.params or not sums:
        return False
    every = {let.expr.axes for let in sums if isinstance(let.expr, Reduce | Fold)}
    gone = {name for axes in every for name in axes}
    # Results along these axes would need the whole sum before their first element: that is a kernel
    # of two levels, not of parts.
    if len(every) > 1 or any(gone & {*kernel.let(o.value).axes} for o in kernel.outputs):
        return False
    names = {let.name for let in sums}
    wanted = needed(names, kernel)
    before = [let for let in kernel.body if let.name in wanted]
    if any(names & {*needed(operands(let), kernel)} for let in sums):
        return False
    return not any(isinstance(let.expr, Words) for let in walk(tuple(before)))


def _looks_up(kernel: Kernel) -> bool:
    """Whether reductions need something at places that are read, or checked: what is left over of
    parts would be looked up at points that are none of the kernel's."""
    wanted = needed((let.name for let in reductions(kernel)), kernel)
    return any(
        isinstance(let.expr, Check) or (isinstance(let.expr, Read) and let.expr.places)
        for let in walk(tuple(let for let in kernel.body if let.name in wanted))
    )


# -- how many parts ------------------------------------------------------------------------------


def _row_cut(kernel: Kernel, tensors: Mapping[str, Tensor], target: Target) -> Cut | None:
    gone = removed_axes(kernel)
    length = math.prod(axis.size for axis in gone)
    rows = math.prod(kernel.sizes.values()) // max(1, length)
    overlapping = overlapping_rows(kernel)
    together, width = _rows_of_a_block(kernel, tensors, {axis.name for axis in gone}, overlapping)
    shortest = LONG if overlapping is not None and overlapping.summed else _SHORTEST
    wave = target.limits.units * _BLOCKS_PER_UNIT
    strip = short_strips(kernel, {axis.name for axis in gone}, tensors)
    if strip:
        outer = [axis for axis in gone if axis.name not in strip]
        strips = math.prod(axis.size for axis in outer)
        pieces = rows * length // strips * width / _STRIP_BYTES
        return _strip_cut(outer, strip, min(wave / pieces, strips / _SHORTEST))
    wanted = wave / max(1, rows // together)
    if together == 1 and rows * length * width >= wave * _WAVES * _LONG_PART:
        wanted *= _WAVES
    if wanted < 2 or length < 2 * shortest:
        return None
    wanted = min(wanted, length / shortest)
    return _cut_about(gone, wanted, _WHOLE_LINES if together == 1 else 1)


def _strip_cut(outer: Sequence[KernelAxis], strip: tuple[str, ...], wanted: float) -> Cut:
    """Parts that go along whole lines: every element of a strip has a sum of its own in them."""
    cut = _even_cut(outer, wanted) if wanted >= 2 else None
    return replace(cut or Cut(()), strip=strip)


def _column_cut(kernel: Kernel, tensors: Mapping[str, Tensor]) -> Cut | None:
    """Parts that are long streams, where a matrix is large and its columns are few pieces."""
    strides = {name: row_major(tensors[name].shape) for name in kernel.inputs}
    columns = summed_columns(kernel, strides)
    if columns is None:
        return None
    size, gone = matrix_bytes(kernel, columns), removed_axes(kernel)
    rows = math.prod(axis.size for axis in gone)
    wanted = min(size / _STREAM_PART_BYTES, _MOST_PARTS, rows / _LEAST_ROWS)
    # The columns are cut into pieces of work anyway: so many fewer parts fill the threads.
    each = wanted / pieces_of_columns(kernel, columns)
    if size < _STREAM_BYTES or wanted < _LEAST_PARTS or each < _LEAST_CUT:
        return None
    # Threads are often a power of two, and then all have as many parts.
    return _even_cut(gone, 1 << int(math.log2(each)))


def _long_row_cut(kernel: Kernel) -> Cut | None:
    """Parts for the threads of a CPU, where large rows are fewer than these may be."""
    gone = removed_axes(kernel)
    names = {axis.name for axis in gone}
    length = math.prod(axis.size for axis in gone)
    rows = math.prod(kernel.sizes.values()) // max(1, length)
    reads = [let for let in kernel.body if isinstance(let.expr, Read) and names & set(let.axes)]
    width = sum(let.dtype.storage_bytes for let in reads)
    wanted = min(_MOST_PARTS / rows, length * width / _PART_BYTES)
    if kernel.roles is not None or wanted < _LEAST_PARTS:
        return None
    return _cut_about(gone, wanted, _WHOLE_LINES)


def _rows_of_a_block(
    kernel: Kernel,
    tensors: Mapping[str, Tensor],
    gone: set[str],
    overlapping: OverlappingRows | None,
) -> tuple[int, int]:
    """One, or where rows lie side by side as many as a strip of them has, where they overlap those
    of its threads; and the bytes of their widest elements."""
    strides = {name: row_major(tensors[name].shape) for name in kernel.inputs}
    reads = [let for let in kernel.body if isinstance(let.expr, Read) and gone & set(let.axes)]
    width = max((let.dtype.storage_bytes for let in reads), default=1)
    if overlapping is not None and overlapping.summed:
        return math.prod(kernel.sizes[pair.kept] for pair in overlapping.pairs), width
    if overlapping is not None:
        taps = kernel.sizes[overlapping.pairs[0].kept]
        return _STRIPS * _STRIP_VECTOR * min(taps, _STRIP_TAPS), width
    return max(1, min(side_by_side(kernel, gone, strides), _STRIP_BYTES // width)), width


def _cut_about(gone: Sequence[KernelAxis], wanted: float, unit: int) -> Cut | None:
    """About as many parts as are wanted; `unit` elements are what a part should be made of."""
    even = _even_cut(gone, wanted)
    if even is not None and _is_near(even, gone, wanted) and _has_vectors(even, gone, unit):
        return even
    return _uneven_cut(gone, wanted, unit) or even


def _is_near(cut: Cut, gone: Sequence[KernelAxis], wanted: float) -> bool:
    parts = cut.count * math.prod(axis.size for axis in gone if axis.name in cut.whole)
    return wanted / _NEAR <= parts <= wanted * _NEAR


def _has_vectors(cut: Cut, gone: Sequence[KernelAxis], unit: int) -> bool:
    """Whether parts of the last axis, where vectors are along it, are made of whole ones."""
    return unit == 1 or cut.axis != gone[-1].name or gone[-1].size // cut.count % _VECTOR == 0


def _even_cut(gone: Sequence[KernelAxis], wanted: float) -> Cut | None:
    """The cut whose number of parts is closest to what is wanted, on a logarithmic scale, of those
    that leave nothing over."""
    best, chosen = abs(math.log(wanted)), None
    before = 1
    for place, found in enumerate(gone):
        whole = tuple(axis.name for axis in gone[:place])
        for count in _divisors(found.size):
            # Twice too many parts are as bad as half as many.
            distance = abs(math.log(before * count / wanted))
            last = place == len(gone) - 1
            if distance < best and before * count > 1 and not (last and count == found.size):
                best = distance
                chosen = Cut(whole) if count == 1 else Cut(whole, found.name, count)
        before *= found.size
    return chosen


def _uneven_cut(gone: Sequence[KernelAxis], wanted: float, unit: int) -> Cut | None:
    """The cut that leaves the least over, if that is little, of those with about as many parts."""
    place, before = 0, 1
    while before * gone[place].size < wanted:
        before *= gone[place].size
        place += 1
    found, inner = gone[place], math.prod(axis.size for axis in gone[place + 1 :])
    wanted /= before
    unit = 1 if inner > 1 else unit
    counts = range(math.ceil(wanted / _AROUND), math.floor(wanted * _AROUND) + 1)
    cut = _least_left(found, counts, unit)
    if cut is None or (found.size - cut.count * cut.length) * before * inner > _LEFT_OVER:
        return None
    return replace(cut, whole=tuple(axis.name for axis in gone[:place]))


def _least_left(found: KernelAxis, counts: Iterable[int], unit: int) -> Cut | None:
    """An axis in one of so many parts, each some units long, that leave the least over."""
    cuts = (Cut((), found.name, n, found.size // n // unit * unit) for n in counts if n > 1)
    return max((cut for cut in cuts if cut.length), key=lambda c: c.count * c.length, default=None)


def _divisors(size: int) -> list[int]:
    small = [d for d in range(1, math.isqrt(size) + 1) if size % d == 0]
    return sorted({*small, *(size // d for d in small)})


def _contraction_cut(kernel: Kernel, target: Target) -> Cut | None:
    roles, sizes = kernel.roles, kernel.sizes
    assert roles is not None
    sides = [kernel.let(name).dtype for name in (roles.lhs, roles.rhs)]
    long = [name for name in roles.k if sizes[name] > 1]
    wide = kernel.let(roles.contraction).dtype is F32
    if len(long) != 1:
        return None
    batch, m, n, k = (
        math.prod(sizes[a] for a in axes) for axes in (roles.batch, roles.m, roles.n, roles.k)
    )
    if target.has("wgmma") and sides[0] in (BF16, F16) and wide:
        parts = split_for(Extent(batch, m, n, k), target)
        return Cut((), long[0], parts) if parts > 1 else None
    if min(m, n) <= FEW[-1] and usual_atom(kernel, "sm90") is None:
        word = 8 if kernel.let(roles.contraction).dtype.bits == 64 else 4
        tiles = batch * -(-max(m, n) // LONG_SIDE)
        most = target.limits.units * tiles_per_unit(m, n, word) // tiles
        return _thin_cut(KernelAxis(long[0], k), most)
    return None


def _outer_cut(kernel: Kernel, tensors: Mapping[str, Tensor], target: Target) -> Cut | None:
    """Sums over several axes in parts of the first one: the gradient of filters, over all places of
    all images, in parts of some images."""
    if not target.has("mma.sync") or usual_atom(kernel, "sm90") is None:
        return None
    problem = find_problem(kernel, tensors)
    if not target.has("wgmma") and (problem is None or problem.image is None):
        return None
    roles, sizes = kernel.roles, kernel.sizes
    assert roles is not None
    first = _outermost(roles, sizes, problem) if problem is not None else ""
    if not first:
        return None
    assert problem is not None
    cuts = _cuts_of(problem, first, roles, sizes)
    if not target.has("wgmma"):
        return _filling_cut(problem, cuts, target)
    windows = problem.image is not None
    forms = [f for f in WINDOW_FORMS if _holds_taps(f, problem)] if windows else [*_PLAIN]
    parts = split_of(_contraction_of(problem), target, [*cuts], forms)
    return cuts.get(parts)


def _filling_cut(problem: Problem, cuts: Mapping[int, Cut], target: Target) -> Cut | None:
    """The first cut that keeps all units busy with tiles of warps, or the one that comes nearest,
    in parts that are worth a tile."""
    tiles, wanted = problem.tiles(*_TILE_OF_WARPS), _TILES_AT_ONCE * target.limits.units
    long = {count: cut for count, cut in cuts.items() if problem.k // count >= _SHORTEST}
    if tiles >= target.limits.units or not long:
        return None
    return next((cut for n, cut in long.items() if n * tiles >= wanted), long[max(long)])


def _cuts_of(
    problem: Problem, first: str, roles: Roles, sizes: Mapping[str, int]
) -> dict[int, Cut]:
    """The cuts of sums over several axes by the number of their parts, fewest first: of the first
    axis, and where operands are matrices then of the next ones. Some of the last one is left."""
    names = [name for name in problem.axes.k if sizes[name] > 1]
    found: dict[int, Cut] = {}
    whole: tuple[str, ...] = ()
    before = 1
    for name in names[names.index(first) : -1]:
        found |= {before * d: Cut(whole, name, d) for d in _divisors(sizes[name])[1:-1]}
        whole, before = (*whole, name), before * sizes[name]
        found[before] = Cut(whole)
        if problem.image is not None:
            break
    return found


def _holds_taps(form: Form, problem: Problem) -> bool:
    """Whether tiles of windows are whole taps, or parts of one."""
    image = problem.image
    assert image is not None
    extent = form.rows if (image.side == "lhs") is not form.swap else form.columns
    return extent % PANEL == 0 or PANEL % extent == 0


def _contraction_of(problem: Problem) -> Contraction:
    """A contraction of 16-bit elements that takes as long as a problem, all of its sums whole."""
    first, second = problem.grains
    a = Operand(problem.layouts[0] == "row", first)
    b = Operand(problem.layouts[1] == "col", second)
    extent = Extent(problem.batch, problem.m, problem.n, problem.k)
    again = 0
    if problem.image is not None:
        outer = problem.m if problem.image.side == "lhs" else problem.n
        every, word = problem.batch * outer * problem.k, problem.dtype.storage_bytes
        again = max(0, word * (every - problem.image.elements))
    return Contraction(extent, a, b, again=again)


def _outermost(roles: Roles, sizes: Mapping[str, int], problem: Problem) -> str:
    """The first of several axes that are summed over in order, of an image that of whole images."""
    image, long = problem.image, [name for name in roles.k if sizes[name] > 1]
    if not problem.aligned or len(long) < 2 or not {*long} <= {*problem.axes.k}:
        return ""
    if image is not None:
        return "" if image.is_summed or not image.images else image.images[0]
    return next(name for name in problem.axes.k if sizes[name] > 1)


def _thin_cut(found: KernelAxis, most: int) -> Cut | None:
    """A long sum whose result has few rows, in as many parts as run at once, `most`, which keeps
    memory busy."""
    most = min(most, found.size // _SHORTEST)
    even = max((d for d in _divisors(found.size) if d <= most), default=1)
    if even * _NEAR < most:
        counts = range(math.ceil(most / _AROUND), most + 1)
        uneven = _least_left(found, counts, _WHOLE_LINES)
        if uneven and found.size - uneven.count * uneven.length <= _LEFT_OF_PRODUCT:
            return uneven
    return Cut((), found.name, even) if even > 1 else None
