"""Kernels that fit the machine: what fusion chose, cut or prepared for the units of a GPU."""

from __future__ import annotations

from dataclasses import replace

from weft.region.aligned import with_aligned_operands
from weft.region.ir import Kernel, Module
from weft.region.parts import in_parts
from weft.target.target import Kind, Target


def fit(module: Module, target: Target) -> Module:
    """The module with operands aligned and long sums cut, on a GPU; elsewhere as it is."""
    if target.kind is not Kind.GPU:
        return module
    tensors = dict(module.tensors)
    kernels: list[Kernel] = []
    origin = dict(module.origin)
    for kernel in module.kernels:
        made: list[Kernel] = []
        prepared, more = with_aligned_operands(kernel, tensors, target)
        tensors |= {tensor.name: tensor for tensor in more}
        for found in prepared:
            pieces, between = in_parts(found, tensors, target)
            tensors |= {tensor.name: tensor for tensor in between}
            made += pieces
        kernels += made
        origin |= {found.name: module.origin.get(kernel.name, ()) for found in made}
    return replace(module, tensors=tensors, kernels=tuple(kernels), origin=origin)
