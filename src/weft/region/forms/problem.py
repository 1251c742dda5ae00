"""The problem that a product poses to tensor cores: sizes, and the layouts of its operands.

A kernel's axes are made of atoms; here rows, columns and contracted axes each become one again.
They can, where in every tensor that they index the strides follow one another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from weft.foundation.index_expr import Expr, Guard, axes_of, coefficient, linear
from weft.foundation.records import replace
from weft.region.form import Image, MatrixAxes, Problem
from weft.region.forms.alignment import ROW, grain, is_aligned
from weft.region.forms.image import find_image, is_convolution
from weft.region.forms.part_sums import whole_results
from weft.region.forms.row_folds import folds_parts
from weft.region.forms.runs import longest_run
from weft.region.ir import AxisIndex, Kernel, Let, Pattern, Read, Roles, Tensor, row_major
from weft.region.structure import buffers

Strides = Mapping[str, Sequence[int]]


def find_problem(kernel: Kernel, tensors: Mapping[str, Tensor]) -> Problem | None:
    """The problem of a contraction kernel; None where an operand is computed, or is padded and no
    image. Each rewrite asks for it, and the next one again, so a kernel keeps its own."""
    if kernel.roles is None:
        return None
    given = tuple(tensors[name] for name in buffers(kernel))
    if given not in kernel.problems:
        kernel.problems[given] = _problem(kernel, kernel.roles, tensors)
    return kernel.problems[given]


def _problem(kernel: Kernel, roles: Roles, tensors: Mapping[str, Tensor]) -> Problem | None:
    strides = {name: row_major(tensors[name].shape) for name in buffers(kernel)}
    plain = _matrices(kernel, roles, strides)
    if plain is not None and _is_one_matrix(kernel, roles, plain):
        return plain
    return _image_problem(kernel, roles, strides, tensors) or plain


def _is_one_matrix(kernel: Kernel, roles: Roles, problem: Problem) -> bool:
    """Whether rows, columns and contracted axes all act as one."""
    own = (problem.axes.m, problem.axes.n, problem.axes.k)
    asked = zip(own, (roles.m, roles.n, roles.k), strict=True)
    return all({n for n in names if kernel.sizes[n] > 1} <= {*run} for run, names in asked)


def _matrices(kernel: Kernel, roles: Roles, strides: Strides) -> Problem | None:
    """The problem of two operands that are read as they lie."""
    sides = [kernel.let(roles.lhs), kernel.let(roles.rhs)]
    found = [
        address for let in sides if (address := _address_of_side(kernel, let, strides)) is not None
    ]
    if len(found) < len(sides):
        return None
    return _make_problem(kernel, roles, strides, found, (found[:1], found[1:], found), None)


def _image_problem(
    kernel: Kernel, roles: Roles, strides: Strides, tensors: Mapping[str, Tensor]
) -> Problem | None:
    """The problem of an image and a matrix."""
    image = image_of(kernel, tensors)
    if image is None:
        return None
    sides = [kernel.let(roles.lhs), kernel.let(roles.rhs)]
    number = ("lhs", "rhs").index(image.side)
    read, filters = sides[number].expr, sides[1 - number].expr
    if not isinstance(read, Read) or not isinstance(filters, Read):
        return None
    if not {*kernel.open_guards(filters)} <= _phase_guards(kernel, read, image):
        return None
    other = linear(filters.index, strides[filters.tensor])
    own = linear(read.index, strides[read.tensor])
    found = [own, other] if number == 0 else [other, own]
    # Places of an image follow one another as the copy engine goes through them; taps and channels
    # that are summed over are met one by one, in any order.
    runs: list[list[Expr]] = [[], [], [] if image.is_summed else [other]]
    runs[1 - number] = [other]
    problem = _make_problem(kernel, roles, strides, found, runs, image)
    if any(axis.phase is not None for axis in image.moved):
        problem = replace(problem, k=_mean_depth(kernel, image))
    whole = kernel.sizes[image.channels] * problem.dtype.storage_bytes % ROW == 0
    alone = whole or image.advance or read.index[-1].single_axis is not None
    if not alone or not _has_neighbours(other, roles, image, problem):
        problem = replace(problem, aligned=False)
    return problem if image.is_summed else _of_filters(kernel, roles, image, problem)


def _phase_guards(kernel: Kernel, read: Read, image: Image) -> set[Guard]:
    """The guards that end the windows of some phases of an image before others."""
    pairs = [{axis.tap, axis.phase.axis} for axis in image.moved if axis.phase is not None]
    return {guard for guard in kernel.open_guards(read) if axes_of(guard.expr) in pairs}


def _mean_depth(kernel: Kernel, image: Image) -> int:
    """The length of the sums of a phase, on average."""
    counts = [axis.counts(kernel.sizes) for axis in image.moved]
    taps = math.prod(sum(found) / len(found) for found in counts)
    return math.ceil(kernel.sizes[image.channels] * taps)


def _has_neighbours(other: Expr, roles: Roles, image: Image, problem: Problem) -> bool:
    """Whether channels, or rows or columns, of what meets an image are neighbours in memory."""
    own = problem.axes.n if image.side == "lhs" else problem.axes.m
    inner = image.channels if image.is_summed else roles.k[-1]
    return 1 in (coefficient(other, inner), *(coefficient(other, name) for name in own[-1:]))


def _of_filters(kernel: Kernel, roles: Roles, image: Image, problem: Problem) -> Problem | None:
    """The gradient of filters: all places of an image are summed over in order, and channels make
    whole rows of copies. Where taps do not come before channels, each has a matrix of its own."""
    sizes, axes, word = kernel.sizes, problem.axes, problem.dtype.storage_bytes
    if not {name for name in roles.k if sizes[name] > 1} <= {*axes.k}:
        return None
    if sizes[image.channels] * word % ROW:
        return None
    own = [name for name in (axes.m if image.side == "lhs" else axes.n) if sizes[name] > 1]
    ordered = [name for name in (*image.taps, image.channels) if name in own]
    if image.channels in own and own == ordered:
        return problem
    apart = {*axes.batch, *image.taps} - {image.channels}
    batch = [name for name in sizes if name in apart and sizes[name] > 1]
    count, alone = math.prod(sizes[name] for name in batch), (image.channels,)
    axes = replace(axes, batch=tuple(batch))
    if image.side == "lhs":
        axes = replace(axes, m=alone)
        return replace(problem, batch=count, m=sizes[image.channels], axes=axes)
    axes = replace(axes, n=alone)
    return replace(problem, batch=count, n=sizes[image.channels], axes=axes)


def image_of(kernel: Kernel, tensors: Mapping[str, Tensor]) -> Image | None:
    """The image that one of the operands is windows of; None where both are matrices."""
    if kernel.roles is None:
        return None
    for side in ("lhs", "rhs"):
        read = kernel.let(getattr(kernel.roles, side)).expr
        if isinstance(read, Read):
            found = find_image(kernel, side, tensors[read.tensor].shape)
            if found is not None and is_convolution(found):
                return found
    return None


def _make_problem(
    kernel: Kernel,
    roles: Roles,
    strides: Strides,
    found: Sequence[Expr],
    runs: Sequence[Sequence[Expr]],
    image: Image | None,
) -> Problem:
    """`runs` are the addresses along which rows, columns and contracted axes must act as one."""
    along = image is None or (image.is_summed and image.side == "lhs")
    axes, scattered = _matrix_axes(kernel, roles, strides, runs, along=along)
    sides, sizes = [kernel.let(roles.lhs), kernel.let(roles.rhs)], kernel.sizes
    batch, m, n, k = (math.prod(sizes[a] for a in names) for names in _axis_groups(axes, roles))
    contiguous = [_runs_along(address, roles.k, sizes) for address in found]
    if image is not None:
        contiguous[("lhs", "rhs").index(image.side)] = image.is_summed
    layouts = ("row" if contiguous[0] else "col", "col" if contiguous[1] else "row")
    items = [let.dtype.storage_bytes for let in sides]
    aligned = all(is_aligned(*side) for side in zip(found, items, strict=True))
    first, second = (grain(*side) for side in zip(found, items, strict=True))
    grains = (first, second)
    return Problem(batch, m, n, k, sides[0].dtype, layouts, aligned, grains, axes, image, scattered)


def _axis_groups(axes: MatrixAxes, roles: Roles) -> tuple[tuple[str, ...], ...]:
    return axes.batch, axes.m, axes.n, roles.k


def _matrix_axes(
    kernel: Kernel,
    roles: Roles,
    strides: Strides,
    runs: Sequence[Sequence[Expr]],
    *,
    along: bool,
) -> tuple[MatrixAxes, bool]:
    """Matrices, rows and columns: those that act as one; outer ones that do not are matrices. And
    whether rows, which go `along` the places of an image, act as one in the operands only."""
    sizes = kernel.sizes
    order = {axis.name: number for number, axis in enumerate(kernel.axes)}
    others = _other_addresses(kernel, roles, strides)
    m, n, k = (sorted(names, key=order.__getitem__) for names in (roles.m, roles.n, roles.k))
    outer_m, rows = longest_run(m, [*runs[0], *others], sizes)
    beside = _other_addresses(kernel, roles, strides, numbers=False)
    outer_n, columns = longest_run(n, [*runs[1], *beside], sizes)
    scattered = any(sizes[name] > 1 for name in outer_m) and along and _scatters(kernel, strides)
    if scattered:
        apart, whole = longest_run(m, runs[0], sizes)
        scattered = not apart
        outer_m, rows = ((), whole) if scattered else (outer_m, rows)
    _, summed = longest_run(k, runs[2], sizes)
    batch = sorted({*roles.batch, *outer_m, *outer_n}, key=order.__getitem__)
    found = MatrixAxes(tuple(a for a in batch if sizes[a] != 1), rows, columns, summed)
    return found, scattered


def _scatters(kernel: Kernel, strides: Strides) -> bool:
    """Whether rows of a convolution's results, each of neighbours in memory, may be stored wherever
    they belong: nothing is computed of their numbers."""
    roles = kernel.roles
    if roles is None or kernel.pattern is not Pattern.CONV:
        return False
    last = next((name for name in reversed(roles.n) if kernel.sizes[name] > 1), "")
    found = [linear(output.index, strides[output.tensor]) for output in kernel.outputs]
    numbers = [let for let in kernel.body if isinstance(let.expr, AxisIndex)]
    beside = any({*let.axes} & {*roles.m} for let in numbers)
    return not beside and all(coefficient(address, last) == 1 for address in found)


def _other_addresses(
    kernel: Kernel, roles: Roles, strides: Strides, *, numbers: bool = True
) -> list[Expr]:
    """The addresses and numbers of everything but the operands, and but for results that are sums
    of columns, or `numbers` of parts of rows, which have none of their columns."""
    beside = [
        let.expr
        for let in kernel.body
        if let.name not in (roles.lhs, roles.rhs) and not {*let.axes} & {*roles.k}
    ]
    places = [(e.tensor, e.index) for e in beside if isinstance(e, Read)]
    apart = folds_parts(kernel) and not numbers
    places += [
        (output.tensor, output.index)
        for output in whole_results(kernel)
        if not apart or {*roles.n} <= {*kernel.let(output.value).axes}
    ]
    found = [linear(index, strides[name]) for name, index in places]
    return found + [e.expr for e in beside if isinstance(e, AxisIndex)]


def _address_of_side(kernel: Kernel, let: Let, strides: Strides) -> Expr | None:
    if not isinstance(let.expr, Read) or kernel.open_guards(let.expr):
        return None
    return linear(let.expr.index, strides[let.expr.tensor])


def _runs_along(address: Expr, axes: Sequence[str], sizes: Mapping[str, int]) -> bool:
    """Whether neighbours along the last of these axes are neighbours in memory. Where no axis has
    two elements, nobody can tell: they are."""
    last = next((name for name in reversed(axes) if sizes[name] != 1), None)
    return last is None or coefficient(address, last) == 1
