"""Fusion of kernels as stages of the one kernel that reads them.

    h = kernel(x);  y = kernel(h)    ->    y = kernel(x), with the stage h

Every point of both is computed by itself, or from a small window, and rows of `h` are computed as
the rows of `y` come to need them: `h` is never in memory as a whole. That is done where it takes
less time by the same estimate that chose the kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Final, TypeVar

from weft.foundation.index_expr import axes_of, axis
from weft.foundation.records import replace
from weft.region.cost import kernel_seconds
from weft.region.fitting.cutting import needed
from weft.region.fitting.joining import replaced
from weft.region.forms.cuts import MOST_BYTES, cut_of
from weft.region.forms.shared_slides import find_shared_slide
from weft.region.forms.slides import find_slide
from weft.region.forms.sliding import Sliding, read_repeatedly
from weft.region.forms.staged import find_staged, slides_alone
from weft.region.ir import (
    Check,
    Fold,
    Kernel,
    Let,
    Module,
    Pattern,
    Read,
    Stage,
    Tensor,
    Weighed,
    Words,
)
from weft.region.structure import buffers
from weft.region.writing.axes import simplified, split_axis
from weft.target.target import Kind, Target

T = TypeVar("T")

MOST_STAGES: Final = 8
"""Of one kernel: each is a loop nest of its own, and takes as long to compile as a kernel."""


def join_stages(module: Module, target: Target, most: int = MOST_STAGES) -> Module:
    """The module with kernels as stages of those that read them, where that pays: at `most` so many
    of one kernel."""
    # What registers hold is joined first, so that shared memory takes nothing from them.
    for shared in (False, True) if target.kind is Kind.GPU else (False,):
        for name in [kernel.name for kernel in module.kernels]:
            found = next((k for k in module.kernels if k.name == name), None)
            while found is not None:
                module, found = _with_stage(module, found, target, most, shared=shared)
    return module


def may_have_stages(module: Module, reader: Kernel) -> bool:
    """Whether a kernel reads at several places what a kernel makes that could be a stage of it."""
    made = {output.tensor for maker in _makers(module, reader) for output in maker.outputs}
    return not made.isdisjoint(read_repeatedly(reader))


def _with_stage(
    module: Module, reader: Kernel, target: Target, most: int, *, shared: bool
) -> tuple[Module, Kernel | None]:
    """The module with one more stage in a kernel, and that kernel; None where there is none."""
    for maker in _makers(module, reader):
        kernel = _join_kernels(module, maker, reader, target, most, shared=shared)
        if isinstance(kernel, str):
            module = _with_reason(module, maker, kernel) if kernel else module
            continue
        apart = sum(kernel_seconds(k, module.tensors, target) for k in (maker, reader))
        together = kernel_seconds(kernel, module.tensors, target)
        handed = frozenset(output.tensor for output in maker.outputs)
        weighed = [w for w in module.weighed if not (w.stage and w.value in handed)]
        weighed += [Weighed(name, together, apart, stage=True) for name in sorted(handed)]
        module = replace(module, weighed=tuple(weighed))
        if together < apart:
            module = replaced(module, (maker, reader), kernel, handed)
            return module, next(k for k in module.kernels if k.outputs == kernel.outputs)
        module = _with_reason(module, maker, "as a stage it takes longer")
    return module, None


def _with_reason(module: Module, maker: Kernel, why: str) -> Module:
    """The module with what else speaks for storing the results of a kernel."""
    known = {output.tensor: module.stored.get(output.tensor, "") for output in maker.outputs}
    said = {name: f"{old}; {why}" if old else why for name, old in known.items() if why not in old}
    return replace(module, stored={**module.stored, **said})


def _makers(module: Module, reader: Kernel) -> Sequence[Kernel]:
    """The kernels that nobody but one reads, the last first."""
    if not _is_pointwise(reader):
        return []
    return [
        kernel
        for kernel in reversed(module.kernels)
        if kernel.name != reader.name
        and kernel.outputs[0].tensor in reader.inputs
        and _is_pointwise(kernel)
        and _stores_axes(_axes_of_result(kernel, module.tensors), module.tensors)
        and all(_is_private(module, output.tensor, reader) for output in kernel.outputs)
        and not _is_overwritten(module, kernel, reader)
    ]


def _is_pointwise(kernel: Kernel) -> bool:
    """Whether a kernel computes every point by itself or from a window, from places that are known,
    and reports nothing."""
    if kernel.pattern not in (Pattern.MAP, Pattern.ROW, Pattern.STAGED) or kernel.params:
        return False
    if 0 in kernel.sizes.values():
        return False
    names = _outer(kernel)
    whole = all(kernel.let(output.value).axes == names for output in kernel.outputs)
    based = any(output.base is not None for output in kernel.outputs)
    lets = list(kernel.every_let())
    odd = any(isinstance(let.expr, Fold | Check | Words) for let in lets)
    gathers = any(isinstance(let.expr, Read) and let.expr.places for let in lets)
    return whole and not (based or odd or gathers) and slides_alone(kernel)


def _outer(kernel: Kernel) -> tuple[str, ...]:
    """The axes of the results of a kernel."""
    return tuple(found.name for found in kernel.axes if not found.reduce)


def _stores_axes(kernel: Kernel, tensors: Mapping[str, Tensor]) -> bool:
    """Whether each axis of all results is an axis of its tensor, in order; those of one element
    are nobody's."""
    index = tuple(map(axis, _outer(kernel)))
    shape = tuple(kernel.sizes[name] for name in _outer(kernel))
    stored = ((output.index, tensors[output.tensor].shape) for output in kernel.outputs)
    return all((_long(place, own), _long(own, own)) == (index, shape) for place, own in stored)


def _long(along: Sequence[T], shape: Sequence[int]) -> tuple[T, ...]:
    """What belongs to the axes of a shape that have more than one element."""
    return tuple(found for found, size in zip(along, shape, strict=True) if size != 1)


def _axes_of_result(kernel: Kernel, tensors: Mapping[str, Tensor]) -> Kernel:
    """The kernel with an axis for each axis of its first result, where one goes through several."""
    left = [size for size in tensors[kernel.outputs[0].tensor].shape if size != 1]
    made = kernel
    for found in (found for found in kernel.axes if not found.reduce):
        sizes = [left.pop(0)] if left else []
        while left and prod(sizes) < found.size:
            sizes.append(left.pop(0))
        if prod(sizes) != found.size:
            return kernel
        made = split_axis(made, found.name, sizes) if len(sizes) > 1 else made
    return simplified(made) if not left else kernel


def _is_private(module: Module, name: str, reader: Kernel) -> bool:
    """Whether a tensor is between two kernels, and nobody else sees it."""
    if module.tensors[name].role != "internal" or name not in reader.inputs:
        return False
    # The one that makes it, and the one that reads it.
    users = [kernel.name for kernel in module.kernels if name in buffers(kernel)]
    return len(users) == 2


def _is_overwritten(module: Module, maker: Kernel, reader: Kernel) -> bool:
    """Whether what a kernel reads may be other elements by the time of another kernel."""
    names = [kernel.name for kernel in module.kernels]
    between = module.kernels[names.index(maker.name) : names.index(reader.name) + 1]
    # As a stage it reads later than before, when something may have been updated in place.
    bases = {output.base for kernel in between for output in kernel.outputs}
    return not bases.isdisjoint(maker.inputs)


def _join_kernels(
    module: Module, maker: Kernel, reader: Kernel, target: Target, most: int, *, shared: bool
) -> Kernel | str:
    """One kernel in the place of two, with its rows in registers of a GPU, or `shared` there in
    shared memory; or why there is none, if that is to be said."""
    kernel = _with_maker(
        module, *(_axes_of_result(part, module.tensors) for part in (maker, reader))
    )
    if len(kernel.stages) > most:
        return f"{reader.name} would have more than {most} stages"
    form = find_staged(kernel)
    if isinstance(form, str):
        return f"as a stage it would not slide: {form}"
    if target.kind is Kind.GPU:
        place = _find_place(module, kernel, (maker, reader), target, shared=shared)
        if isinstance(place, str):
            return place
        if not any(place.is_shared(output.tensor) for output in maker.outputs):
            return "it is read at one place"
        return kernel
    if _is_turning(maker) or _is_turning(reader):
        return "as a stage it would be turned element by element, and not in blocks"
    cut = cut_of(kernel, form, target)
    if cut.bytes > MOST_BYTES:
        return f"rings would take {cut.bytes:,} bytes, over {MOST_BYTES:,}; {cut.why}"
    return kernel


def _is_turning(kernel: Kernel) -> bool:
    """Whether a map reads a tensor whose last axis is not its own last axis."""
    if kernel.pattern is not Pattern.MAP or not kernel.axes:
        return False
    last = _outer(kernel)[-1]
    reads = [let.expr for let in kernel.body if isinstance(let.expr, Read)]
    return any(
        last not in axes_of(read.index[-1]) and any(last in axes_of(e) for e in read.index)
        for read in reads
        if read.index
    )


def _find_place(
    module: Module, kernel: Kernel, of: Sequence[Kernel], target: Target, *, shared: bool
) -> Sliding | str:
    """Where a GPU keeps the rows of a kernel that is made of others."""
    found: Sliding | str = find_slide(kernel, module.tensors)
    if not shared:
        return found if isinstance(found, Sliding) else ""
    if isinstance(found, Sliding):
        return ""
    # What registers hold stays there.
    staged = (one for one in of if one.stages)
    if any(isinstance(find_slide(one, module.tensors), Sliding) for one in staged):
        return f"as a stage it would take others out of registers: {found}"
    found = find_shared_slide(kernel, module.tensors, target)
    return f"as a stage it has no place: {found}" if isinstance(found, str) else found


def _with_maker(module: Module, maker: Kernel, reader: Kernel) -> Kernel:
    """The reader with a stage for each result of the maker, each with what it needs of its body."""
    made, shapes = [], {o.tensor: module.tensors[o.tensor].shape for o in maker.outputs}
    for output in maker.outputs:
        names = needed((output.value,), maker)
        body = tuple(let for let in maker.body if let.name in names)
        shape = shapes[output.tensor]
        found = module.tensors[output.tensor]
        local = replace(found, shape=_long(shape, shape), role="local")
        used = {name for let in body for name in let.axes}
        axes = tuple(a for a in maker.axes if not a.reduce or a.name in used)
        made.append(Stage(local, axes, body, output.value))
    inner = (replace(stage, body=_read_as_locals(stage.body, shapes)) for stage in reader.stages)
    stages = (*maker.stages, *made, *inner)
    body = _read_as_locals(reader.body, shapes)
    return replace(reader, pattern=Pattern.STAGED, body=body, stages=stages, form=None)


def _read_as_locals(
    body: tuple[Let, ...], shapes: Mapping[str, tuple[int, ...]]
) -> tuple[Let, ...]:
    """Lets that read tensors of these shapes as locals, which have no axes of one element."""
    found = []
    for let in body:
        read = let.expr
        if isinstance(read, Read) and read.tensor in shapes:
            short = replace(read, index=_long(read.index, shapes[read.tensor]))
            found.append(replace(let, expr=short))
        else:
            found.append(let)
    return tuple(found)
