"""Windows over several axes, reduced one axis after the other.

    y[p, q] = sum over k, l < 3 of x[2 p + k, 2 q + l]

      -->  t[i, q] = sum over l < 3 of x[i, 2 q + l];  y[p, q] = sum over k < 3 of t[2 p + k, q]

The sizes of the windows add up, and do not multiply. Only along the last axis are neighbours of a
result not neighbours of what is read; it comes first, where there is least of everything. What lies
outside of the operand, or between its elements, is what the reduction begins with, in each step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from weft.foundation.dtypes import DType
from weft.foundation.index_expr import axes_of, axis, substitute
from weft.foundation.records import dataclass, replace
from weft.region.fitting.cutting import free_name
from weft.region.fitting.image_copies import Made
from weft.region.fitting.joining import live
from weft.region.ir import (
    Cast,
    Kernel,
    KernelAxis,
    Let,
    Output,
    Pattern,
    Read,
    Reduce,
    Tensor,
    operands,
)

_WORTH: Final = 1 << 18
"""Elements of windows from which on another kernel pays for itself."""
_LEFT: Final = 0.6
"""The part of them that may be left."""


@dataclass(frozen=True)
class _Windows:
    """A reduction of windows: its operand as it is read, and as it is reduced."""

    read: Let
    value: Let
    total: Let

    @property
    def source(self) -> Read:
        assert isinstance(self.read.expr, Read)
        return self.read.expr

    @property
    def reduction(self) -> Reduce:
        assert isinstance(self.total.expr, Reduce)
        return self.total.expr


def with_separate_windows(kernel: Kernel, tensors: Mapping[str, Tensor]) -> Made:
    """The kernels that reduce windows axis by axis, the last axis first, and what is between them;
    the kernel as it is where its windows have one axis, or are few."""
    kernels: list[Kernel] = []
    between: list[Tensor] = []
    known = dict(tensors)
    while True:
        found = _last_axis_apart(kernel, known)
        if found is None:
            return (*kernels, kernel), tuple(between)
        first, tensor, kernel = found
        kernels.append(first)
        between.append(tensor)
        known[tensor.name] = tensor


def _last_axis_apart(
    kernel: Kernel, tensors: Mapping[str, Tensor]
) -> tuple[Kernel, Tensor, Kernel] | None:
    windows = _find_windows(kernel)
    if windows is None:
        return None
    read, taps = windows.source, windows.reduction.axes
    shape = tensors[read.tensor].shape
    for dim in range(len(shape) - 1, -1, -1):
        here = axes_of(read.index[dim])
        tap, place = here & {*taps}, here - {*taps}
        if not tap:
            continue
        others = [index for at, index in enumerate(read.index) if at != dim]
        apart = len(tap) == len(place) == 1 and not any(axes_of(index) & here for index in others)
        mixed = any(axes_of(g.expr) & here and axes_of(g.expr) - here for g in read.guards)
        if not apart or mixed or len(taps) < 2:
            return None
        size = kernel.sizes[next(iter(place))]
        window = kernel.sizes[next(iter(tap))]
        every = math.prod(kernel.sizes[name] for name in windows.read.axes)
        less = every // window + math.prod(shape) // shape[dim] * size * window
        if every < _WORTH or less > _LEFT * every:
            return None
        return _taken_apart(kernel, windows, tensors, dim, next(iter(tap)), next(iter(place)))
    return None


def _find_windows(kernel: Kernel) -> _Windows | None:
    """The only reduction of a kernel, where it is of an operand, in whatever dtype, as it is
    read."""
    totals = [let for let in kernel.body if isinstance(let.expr, Reduce)]
    if kernel.pattern is not Pattern.ROW or kernel.params or kernel.stages or len(totals) != 1:
        return None
    (total,) = totals
    assert isinstance(total.expr, Reduce)
    value = kernel.let(total.expr.value)
    read = kernel.let(value.expr.x) if isinstance(value.expr, Cast) else value
    if not isinstance(read.expr, Read) or read.expr.places:
        return None
    used = [name for let in kernel.body for name in operands(let)]
    alone = {*read.axes} == {*value.axes} and used.count(read.name) == used.count(value.name) == 1
    if not alone or read.name in {output.value for output in kernel.outputs}:
        return None
    begins = _first_of(total.expr.fn, read.dtype)
    # In each step, what is outside counts for nothing.
    if begins is None or (read.expr.guards and read.expr.fill != begins):
        return None
    # A narrow float would be rounded once more.
    exact = total.expr.fn != "sum" or not total.dtype.is_float or total.dtype.bits >= 32
    return _Windows(read, value, total) if exact and value.dtype is total.dtype else None


def _first_of(fn: str, dtype: DType) -> float | int | None:
    if fn == "sum":
        return 0
    if fn in ("max", "min") and dtype.is_float:
        return -math.inf if fn == "max" else math.inf
    return None


def _taken_apart(
    kernel: Kernel,
    windows: _Windows,
    tensors: Mapping[str, Tensor],
    dim: int,
    tap: str,
    place: str,
) -> tuple[Kernel, Tensor, Kernel]:
    """The kernel that reduces along one axis, its result, and the kernel that reduces that."""
    read, total = windows.source, windows.total
    shape = tensors[read.tensor].shape
    axes = [KernelAxis(f"i{n}", size) for n, size in enumerate(shape)]
    inside, across = f"i{dim}", f"i{len(shape)}"
    renamed = {place: axis(inside), tap: axis(across)}
    axes[dim] = KernelAxis(inside, kernel.sizes[place])
    names = tuple(found.name for found in axes)
    own = tuple(g for g in read.guards if tap in axes_of(g.expr) or place in axes_of(g.expr))
    index = [axis(name) for name in names]
    index[dim] = substitute(read.index[dim], renamed)
    guards = tuple(replace(guard, expr=substitute(guard.expr, renamed)) for guard in own)
    every = (*names, across)
    source = replace(read, index=tuple(index), guards=guards)
    body = [replace(windows.read, axes=every, expr=source)]
    if windows.value is not windows.read:
        body.append(replace(windows.value, axes=every))
    body.append(replace(total, axes=names, expr=replace(windows.reduction, axes=(across,))))
    sizes = tuple(found.size for found in axes)
    tensor = Tensor(free_name(f"{kernel.name}_{total.name}", tensors), total.dtype, sizes)
    output = Output(tensor.name, total.name, tuple(map(axis, names)))
    reduced = KernelAxis(across, kernel.sizes[tap], reduce=True)
    first = replace(
        kernel, name=f"{kernel.name}_window{dim}", axes=(*axes, reduced), body=tuple(body),
        outputs=(output,), labels={},
    )  # fmt: skip
    rest = tuple(guard for guard in read.guards if guard not in own)
    left = tuple(name for name in windows.read.axes if name != tap)
    place_of = tuple(axis(place) if at == dim else e for at, e in enumerate(read.index))
    again = Read(tensor.name, place_of, rest, read.fill if rest else None)
    taps = tuple(name for name in windows.reduction.axes if name != tap)
    value = Let(windows.read.name, total.dtype, left, again)
    changed = {
        windows.read.name: value,
        total.name: replace(total, expr=replace(windows.reduction, axes=taps, value=value.name)),
    }
    behind = [changed.get(let.name, let) for let in kernel.body]
    second = live(replace(kernel, body=tuple(behind)))
    return first, tensor, second
