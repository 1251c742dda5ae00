"""Kernels that fit the machine: what fusion chose, cut or prepared for its units."""

from __future__ import annotations

from dataclasses import replace

from weft.region.aligned import with_aligned_operands
from weft.region.ir import Kernel, Module, Tensor
from weft.region.parts import in_parts
from weft.region.structure import buffers
from weft.region.whole_parts import whole_in_parts
from weft.target.target import Kind, Target


def fit(module: Module, target: Target) -> Module:
    """The module with long sums cut, and on a GPU with operands aligned and ops that stay whole in
    steps."""
    tensors = dict(module.tensors)
    kernels: list[Kernel] = []
    origin = dict(module.origin)
    for kernel in module.kernels:
        made: list[Kernel] = []
        prepared, more = _prepared(kernel, tensors, target)
        tensors |= {tensor.name: tensor for tensor in more}
        for found in prepared:
            pieces, between = in_parts(found, tensors, target)
            tensors |= {tensor.name: tensor for tensor in between}
            made += pieces
        kernels += made
        origin |= {found.name: module.origin.get(kernel.name, ()) for found in made}
    # What only the kernel that was taken apart worked in is gone.
    used = {name for kernel in kernels for name in buffers(kernel)}
    left = {n: found for n, found in tensors.items() if n in used or found.role != "internal"}
    return replace(module, tensors=left, kernels=tuple(kernels), origin=origin)


def _prepared(
    kernel: Kernel, tensors: dict[str, Tensor], target: Target
) -> tuple[tuple[Kernel, ...], tuple[Tensor, ...]]:
    """The kernels that take a kernel's place on a GPU, and the tensors between them."""
    if target.kind is not Kind.GPU:
        return (kernel,), ()
    if kernel.opaque is not None:
        return whole_in_parts(kernel, tensors)
    return with_aligned_operands(kernel, tensors, target)
