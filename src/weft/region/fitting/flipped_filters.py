"""Convolutions with flipped filters (as in input gradients): the filters are read in place instead
of copied.

    t[n, k0, k1, c] = w[c, j(k0), j(k1), n], j = (2, 1, 0)    y = sum of x[..., c] * t[n, ..., c]
                                     -->  y = sum of x[..., c] * w[c, 2 - k0, 2 - k1, n]

The gradient of an image is a convolution with the filters turned around: taps from the last to the
first, results for channels. A copy that does this takes a kernel of its own, which reads across the
filters. Places that constants name, one after the other in any direction, are an expression of
their axis; and what only copies an operand is read in the copy's place, where matrix units can.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.foundation.index_expr import Axis, Expr, axis, constant, substitute
from weft.foundation.records import replace
from weft.region.fitting.cutting import needed
from weft.region.fitting.image_copies import image_name, suits_units, with_boards
from weft.region.ir import Check, Kernel, Let, Module, Pattern, Read, Tensor
from weft.region.row_reads import is_gather
from weft.region.structure import buffers
from weft.target.target import Target

Constants = Mapping[str, NDArray[Any]]


def with_known_places(kernel: Kernel, constants: Constants) -> Kernel:
    """The kernel, with places that constants name one after the other as expressions."""
    if kernel.pattern is not Pattern.MAP or not any(map(is_gather, kernel.body)):
        return kernel
    body = tuple(_read_known(kernel, let, constants) for let in kernel.body)
    if body == kernel.body:
        return kernel
    made = replace(kernel, body=body)
    # Places that are known to be there need not be checked.
    known = _values_of_places(kernel) - _values_of_places(made)
    checks = {let.name for let in body if isinstance(let.expr, Check)} - known
    kept = needed(checks | {output.value for output in made.outputs}, made)
    return replace(made, body=tuple(let for let in body if let.name in kept))


def _values_of_places(kernel: Kernel) -> set[str]:
    reads = [let.expr for let in kernel.body if isinstance(let.expr, Read)]
    return {place.value for read in reads for place in read.places}


def _read_known(kernel: Kernel, let: Let, constants: Constants) -> Let:
    read = let.expr
    if not isinstance(read, Read):
        return let
    found = {p.param: _constant_place(kernel, p.value, p.size, constants) for p in read.places}
    known = {name: expr for name, expr in found.items() if expr is not None}
    if not known:
        return let
    left = tuple(place for place in read.places if place.param not in known)
    index = tuple(substitute(expr, {}, known) for expr in read.index)
    return replace(let, expr=replace(read, index=index, places=left))


def _constant_place(kernel: Kernel, value: str, size: int, constants: Constants) -> Expr | None:
    """The expression of a value that is read from a constant; None where there is none."""
    let = kernel.let(value)
    if isinstance(let.expr, Check):
        let = kernel.let(let.expr.x)
    read = let.expr
    if not isinstance(read, Read) or read.tensor not in constants or read.places or read.guards:
        return None
    numbers = np.asarray(constants[read.tensor])
    if numbers.ndim != 1 or len(read.index) != 1 or len(numbers) < 2:
        return None
    first, step = int(numbers[0]), int(numbers[1]) - int(numbers[0])
    even = bool((numbers == first + step * np.arange(len(numbers))).all())
    inside = numbers.min() >= 0 and numbers.max() < size
    return constant(first) + read.index[0] * step if even and inside else None


def with_filters_in_place(module: Module, target: Target) -> Module:
    """The module with convolutions that read what was only copied for them where it lies."""
    if not target.has("mma.sync"):
        return module
    used = Counter(name for kernel in module.kernels for name in buffers(kernel))
    copies = {k.outputs[0].tensor: k for k in module.kernels if _is_copy(k, module.tensors)}
    kernels, gone, origin = list[Kernel](), set[str](), dict(module.origin)
    for kernel in module.kernels:
        made = kernel
        if kernel.pattern is Pattern.CONV and kernel.roles is not None:
            for name in (kernel.roles.lhs, kernel.roles.rhs):
                read = made.let(name).expr
                copy = copies.get(read.tensor) if isinstance(read, Read) else None
                if copy is None or used[copy.outputs[0].tensor] != 2:
                    continue
                direct = _in_place(made, name, copy)
                if direct is not None and _suits(direct, module.tensors, target):
                    made = direct
                    gone.add(copy.name)
                    both = (*origin.get(copy.name, ()), *origin.get(kernel.name, ()))
                    origin[kernel.name] = tuple(dict.fromkeys(both))
        kernels.append(made)
    left = tuple(kernel for kernel in kernels if kernel.name not in gone)
    return replace(module, kernels=left, origin=origin)


def _suits(kernel: Kernel, tensors: Mapping[str, Tensor], target: Target) -> bool:
    """Whether matrix units can multiply what the kernel reads, perhaps behind a copy of its image,
    but of nothing else."""
    if suits_units(kernel, tensors, target):
        return True
    made, more = with_boards(kernel, tensors, target)
    return len(made) == 2 and more[0].name == image_name(kernel)


def _is_copy(kernel: Kernel, tensors: Mapping[str, Tensor]) -> bool:
    """Whether all that a kernel does is to put elements elsewhere, for other kernels."""
    if kernel.pattern is not Pattern.MAP or len(kernel.body) != 1 or len(kernel.outputs) != 1:
        return False
    (output,), read = kernel.outputs, kernel.body[0].expr
    plain = isinstance(read, Read) and not read.places and not kernel.open_guards(read)
    internal = tensors[output.tensor].role == "internal" and output.base is None
    return plain and internal and not kernel.params


def _in_place(kernel: Kernel, name: str, copy: Kernel) -> Kernel | None:
    """The kernel with an operand read where the copy reads it; None where an element's place in
    the copy does not tell which one it is."""
    let, source = kernel.let(name), copy.body[0].expr
    assert isinstance(let.expr, Read)
    assert isinstance(source, Read)
    if kernel.open_guards(let.expr):
        return None
    moved: dict[str, Expr] = {n: constant(0) for n, size in copy.sizes.items() if size == 1}
    for stored, read in zip(copy.outputs[0].index, let.expr.index, strict=True):
        found = _axes_by_weight(stored, copy.sizes, read, kernel.sizes)
        if found is None:
            return None
        moved |= found
    if {*copy.sizes} - {*moved}:
        return None
    index = tuple(substitute(expr, moved) for expr in source.index)
    direct = replace(let, expr=Read(source.tensor, index))
    return replace(kernel, body=tuple(direct if x.name == name else x for x in kernel.body))


def _axes_by_weight(
    stored: Expr, own: Mapping[str, int], read: Expr, sizes: Mapping[str, int]
) -> dict[str, Expr] | None:
    """The axes of a stored index by those of one that is read: digits of the same weight."""
    alone = stored.single_axis
    if alone is not None:
        return {alone.name: read}
    digits = {f: t.name for t, f in read.terms if isinstance(t, Axis) and sizes[t.name] > 1}
    wanted = {f: t.name for t, f in stored.terms if isinstance(t, Axis) and own[t.name] > 1}
    plain = stored.constant == read.constant == 0 and len(digits) == len(wanted)
    if not plain or any(not isinstance(t, Axis) for t, _ in (*stored.terms, *read.terms)):
        return None
    if any(own[wanted[f]] != sizes.get(digits.get(f, ""), 0) for f in wanted):
        return None
    return {wanted[f]: axis(digits[f]) for f in wanted}
