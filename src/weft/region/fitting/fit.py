"""The list of rewrites that fit kernels to the machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final

from weft.foundation.records import replace
from weft.region.fitting.aligned import with_aligned_operands
from weft.region.fitting.few_channels import with_folded_windows, with_patches
from weft.region.fitting.filters import with_panels
from weft.region.fitting.gathers_and_scatters import (
    sorted_together,
    with_near_gathers,
    with_short_places,
    with_sums_in_place,
    with_wide_sums,
)
from weft.region.fitting.hulls import with_hulls
from weft.region.fitting.image_copies import Made, with_board_of_groups, with_boards
from weft.region.fitting.joined_axes import with_joined_axes, with_joined_rows
from weft.region.fitting.joined_groups import with_joined_groups
from weft.region.fitting.long_sums import in_parts
from weft.region.fitting.one_row import with_one_row
from weft.region.fitting.phases import with_phases
from weft.region.fitting.phases_at_once import with_phases_at_once
from weft.region.fitting.row_padding import with_room
from weft.region.fitting.transposed_windows import with_turned_windows, with_written_windows
from weft.region.fitting.whole_ops import whole_in_parts
from weft.region.fitting.whole_rows import with_whole_rows
from weft.region.fitting.window_axes import with_separate_windows
from weft.region.forms.planes import find_planes
from weft.region.ir import Cast, Const, Kernel, Module, Pattern, Tensor
from weft.region.structure import buffers
from weft.target.target import Kind, Target

_ZERO: Final = ("0", "0.0", "False")


def fit(module: Module, target: Target) -> Module:
    """The module with long sums cut; on a GPU with room in odd rows, or with them joined, operands
    aligned, hulls of what is seen, windows as their operands lie, single rows of 8-bit numbers as
    contractions and ops that stay whole in steps, whose places are short;
    elsewhere with windows reduced axis by axis, those that have zeros in them multiplied by phases,
    with parameters laid out for products, with what is picked read where it lies together, and with
    scatters that add narrow floats in a wider dtype."""
    module = with_hulls(with_room(module, target), target)
    together: dict[str, tuple[Kernel, ...]] = {}
    if target.kind is Kind.GPU:
        module, together = sorted_together(module)
    tensors, own = dict(module.tensors), dict[str, Tensor]()
    kernels: list[Kernel] = []
    origin = dict(module.origin)
    read = Counter(name for kernel in module.kernels for name in kernel.inputs)
    shared = {name for name, count in read.items() if count > 1}
    zeros = {kernel.outputs[0].tensor for kernel in module.kernels if _fills_with_zeros(kernel)}
    for kernel in module.kernels:
        made: list[Kernel] = []
        sorted_here = together.get(kernel.name)
        prepared, more = _prepare_kernel(kernel, tensors, zeros, sorted_here, target, shared)
        fresh = list(more)
        tensors |= {tensor.name: tensor for tensor in more}
        for found in prepared:
            pieces, between = in_parts(found, tensors, target)
            tensors |= {tensor.name: tensor for tensor in between}
            fresh += between
            made += pieces
        if target.kind is Kind.GPU:
            own.update((t.name, t) for t in fresh if t.name not in module.tensors)
            made = with_sums_in_place(made, own)
        kernels += made
        origin |= {found.name: module.origin.get(kernel.name, ()) for found in made}
    kernels = _without_idle(kernels, tensors, zeros)
    kernels, short = with_short_places(kernels, tensors)
    tensors |= short
    # What only the kernel that was taken apart worked in is gone.
    used = {name for kernel in kernels for name in buffers(kernel)}
    left = {n: found for n, found in tensors.items() if n in used or found.role != "internal"}
    names = {kernel.name for kernel in kernels}
    origin = {name: found for name, found in origin.items() if name in names}
    return replace(module, tensors=left, kernels=tuple(kernels), origin=origin)


def _prepare_kernel(
    kernel: Kernel,
    tensors: dict[str, Tensor],
    zeros: Collection[str],
    together: tuple[Kernel, ...] | None,
    target: Target,
    shared: Collection[str],
) -> Made:
    """The kernels that take a kernel's place on a machine, and the tensors between them. `together`
    are the scatters that it sorts the updates of; several kernels read what is `shared`."""
    if target.kind is not Kind.GPU:
        return _fit_phases(kernel, tensors, target, shared)
    if kernel.opaque is not None:
        return whole_in_parts(kernel, tensors, zeros, together)
    if kernel.pattern is Pattern.CONV:
        if find_planes(kernel, tensors) is not None:
            return (kernel,), ()
        kept = with_board_of_groups(kernel, tensors, target)
        phases = kept or with_phases_at_once(kernel, tensors, target)
        groups = phases or with_joined_groups(kernel, tensors, target)
        patches = groups or with_patches(kernel, tensors, target)
        folded = patches or with_folded_windows(kernel, tensors, target)
        rows = folded or with_whole_rows(kernel, tensors, target)
        return rows or with_boards(kernel, tensors, target)
    written = with_written_windows(kernel, tensors, target)
    if written is not None:
        return _align_operands(written, tensors, target)
    turned = with_turned_windows(kernel, tensors)
    if turned is not None:
        known = {**tensors, turned.tensor.name: turned.tensor}
        made, more = _align_operands(turned.kernel, known, target)
        return (*made, turned.copy), (turned.tensor, *more)
    return _align_operands(kernel, tensors, target)


def _align_operands(kernel: Kernel, tensors: Mapping[str, Tensor], target: Target) -> Made:
    joined = with_joined_axes(kernel, tensors)
    return with_aligned_operands(with_one_row(joined, tensors, target), tensors, target)


def _fit_rows(kernel: Kernel, tensors: Mapping[str, Tensor], target: Target) -> Made:
    """A kernel of a CPU without a contraction: its windows are reduced axis by axis."""
    windows, between = with_separate_windows(kernel, tensors)
    kernels: list[Kernel] = []
    known = {**tensors, **{tensor.name: tensor for tensor in between}}
    for window in windows:
        joined = with_joined_rows(with_near_gathers(window, known), known)
        prepared, more = with_wide_sums(joined, known)
        kernels += prepared
        between += more
    return tuple(kernels), between


def _fit_phases(
    kernel: Kernel, tensors: Mapping[str, Tensor], target: Target, shared: Collection[str]
) -> Made:
    """A kernel of a CPU by phases; contractions are behind their weights laid out."""
    phases, between = with_phases(kernel, tensors)
    kernels: list[Kernel] = []
    known = {**tensors, **{tensor.name: tensor for tensor in between}}
    for phase in phases:
        if phase.roles is None:
            prepared, more = _fit_rows(phase, known, target)
        else:
            prepared, more = with_panels(phase, known, target, shared)
        kernels += prepared
        between += more
    return tuple(kernels), between


def _fills_with_zeros(kernel: Kernel) -> bool:
    """Whether all that a kernel does is to write zeros, none of them -0."""
    if kernel.pattern is not Pattern.MAP or len(kernel.outputs) != 1 or kernel.outputs[0].base:
        return False
    found = [let.expr for let in kernel.body if not isinstance(let.expr, Cast)]
    return all(isinstance(expr, Const) and str(expr.value) in _ZERO for expr in found)


def _without_idle(
    kernels: list[Kernel], tensors: Mapping[str, Tensor], zeros: Collection[str]
) -> list[Kernel]:
    """The kernels, without those that write zeros for nobody."""
    used = Counter(name for kernel in kernels for name in buffers(kernel))
    idle = {name for name in zeros if used[name] == 1 and tensors[name].role == "internal"}
    return [kernel for kernel in kernels if kernel.outputs[0].tensor not in idle]
