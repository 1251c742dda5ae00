"""Vector widths: the axis that vectors run along, and how wide aligned accesses can be."""

from __future__ import annotations

import math
from collections.abc import Mapping

from weft.foundation.index_expr import Expr, coefficient, linear
from weft.region.ir import Kernel, KernelAxis, Pattern, Read, Tensor, row_major


def vector_bytes(kernel: Kernel, tensors: Mapping[str, Tensor], *, stored: bool = False) -> int:
    """The widest access, up to 16 bytes, that every tensor along the innermost axis allows; of
    `stored` ones alone."""
    results = {output.tensor for output in kernel.outputs}
    allowed = _allowed_bytes(kernel, tensors).items()
    return min((width for name, width in allowed if name in results or not stored), default=16)


def access_bytes(kernel: Kernel, tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """How wide each tensor along the innermost axis is accessed: as it allows, and in no more
    elements than those tensors which do not allow whole vectors."""
    allowed = _allowed_bytes(kernel, tensors)
    sizes = {name: tensors[name].dtype.storage_bytes for name in allowed}
    most = min((width // sizes[name] for name, width in allowed.items() if width < 16), default=16)
    return {name: min(width, most * sizes[name]) for name, width in allowed.items()}


def _allowed_bytes(kernel: Kernel, tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """The widest access, up to 16 bytes, that each tensor along the innermost axis allows.

    Tensors that do not change along that axis, or that are read across it, do not take part: those
    are not accessed by vectors at all.
    """
    axis = inner_axis(kernel)
    if axis is None:
        return {}
    found: dict[str, int] = {}
    for name, address in _addresses(kernel, tensors):
        if coefficient(address, axis.name) == 1:
            size = tensors[name].dtype.storage_bytes
            steps = [abs(f) for term, f in address.terms if str(term) != axis.name]
            numbers = [stretch(axis, tensors[name]), address.constant, *steps]
            width = found.get(name, 16)
            while width > size and any((number * size) % width for number in numbers):
                width //= 2
            found[name] = width
    return found


def stretch(axis: KernelAxis, tensor: Tensor) -> int:
    """Elements of a tensor along an axis in which it is contiguous, with the room behind them."""
    return tensor.shape[-1] if tensor.room and tensor.extents[-1] == axis.size else axis.size


def length_with_room(kernel: Kernel, tensors: Mapping[str, Tensor], name: str | None) -> int:
    """Elements along an axis, of which vectors may be made: with the room behind them where all
    tensors along it have some."""
    axis = next((a for a in kernel.axes if a.name == name), KernelAxis("", 1))
    found = tensors_along(kernel, name)
    return math.gcd(*(stretch(axis, tensors[each]) for each in found)) or axis.size


def tensors_along(kernel: Kernel, axis: str | None, *, stored: bool = False) -> list[str]:
    """What changes along an axis; of it what is `stored` alone."""
    reads = [let for let in kernel.body if isinstance(let.expr, Read) and axis in let.axes]
    names = [let.expr.tensor for let in reads if isinstance(let.expr, Read) and not stored]
    return names + [o.tensor for o in kernel.outputs if axis in kernel.let(o.value).axes]


def inner_axis(kernel: Kernel) -> KernelAxis | None:
    """The axis that vectors run along: the last one, or the last that is reduced."""
    is_map, reduced = kernel.pattern is Pattern.MAP, kernel.reduced
    inner = [a for a in kernel.axes if is_map or a.name in reduced]
    if not inner or kernel.pattern in (Pattern.MATMUL, Pattern.CONV):
        inner = [a for a in kernel.axes if not a.reduce]
    return inner[-1] if inner else None


def _addresses(kernel: Kernel, tensors: Mapping[str, Tensor]) -> list[tuple[str, Expr]]:
    found = [(let.expr.tensor, let.expr.index) for let in kernel.body if isinstance(let.expr, Read)]
    found += [(output.tensor, output.index) for output in kernel.outputs]
    return [(name, linear(index, row_major(tensors[name].shape))) for name, index in found]
