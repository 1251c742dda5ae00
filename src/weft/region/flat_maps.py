"""Elementwise kernels over contiguous memory, and when two of them differ in size alone.

    m[i, j] <- 0.9 m[i, j] + 0.1 g[i, j]      over 768 x 3072
    m[i]    <- 0.9 m[i] + 0.1 g[i]            over 768

Every element that such a kernel reads or writes for a point lies where the point is among all
points, in order, or is one number for all of them. So the axes mean nothing, and the updates of an
optimiser's tensors are one text over lists of elements of different lengths.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping

from weft.foundation.index_expr import Axis, Expr, coefficient, linear
from weft.region.ir import (
    Binary,
    Cast,
    Const,
    Kernel,
    Let,
    Pattern,
    Read,
    Select,
    Tensor,
    Unary,
    operands,
    row_major,
)
from weft.region.structure import buffers


def flat_key(kernel: Kernel, tensors: Mapping[str, Tensor]) -> Hashable | None:
    """All of a kernel that goes through memory in order but names and sizes: equal for those that
    are one text. None for other kernels."""
    if kernel.pattern is not Pattern.MAP or kernel.params or kernel.stages:
        return None
    names = buffers(kernel)
    if point_count(kernel) < 2 or any(tensors[name].room for name in names):
        return None
    text = _Text(kernel, tensors)
    body, outputs = text.body(), text.outputs()
    if body is None or outputs is None:
        return None
    return tuple(tensors[name].dtype for name in names), body, outputs


def point_count(kernel: Kernel) -> int:
    """Points of a kernel, over all its axes."""
    return math.prod(kernel.sizes.values())


class _Text:
    """A kernel without names: its Lets and tensors by their places."""

    def __init__(self, kernel: Kernel, tensors: Mapping[str, Tensor]) -> None:
        self.kernel, self.tensors = kernel, tensors
        self.axes = {name for name, size in kernel.sizes.items() if size > 1}
        self.lets = {let.name: place for place, let in enumerate(kernel.body)}
        self.places = {name: place for place, name in enumerate(buffers(kernel))}

    def body(self) -> Hashable | None:
        found = [self.let(let) for let in self.kernel.body]
        return None if None in found else tuple(found)

    def let(self, let: Let) -> Hashable | None:
        expr, along = let.expr, self.axes & set(let.axes)
        if along and along != self.axes:
            return None
        match expr:
            case Read(tensor=tensor, index=index):
                address = self.address(tensor, index)
                if expr.places or self.kernel.open_guards(expr):
                    return None
                if not (self.is_in_order(address) if along else not address.terms):
                    return None
                return let.dtype, bool(along), "read", self.places[tensor], address.constant
            case Const():
                # Numbers of different types are equal, which their texts are not.
                return let.dtype, bool(along), repr(expr)
            case Unary(fn=fn) | Binary(fn=fn):
                return let.dtype, bool(along), fn, *(self.lets[x] for x in operands(let))
            case Cast() | Select():
                kind = type(expr).__name__
                return let.dtype, bool(along), kind, *(self.lets[x] for x in operands(let))
        return None

    def outputs(self) -> Hashable | None:
        found = []
        for output in self.kernel.outputs:
            address = self.address(output.tensor, output.index)
            if output.base is not None or not self.is_in_order(address):
                return None
            found.append((self.places[output.tensor], self.lets[output.value]))
        return tuple(found)

    def address(self, tensor: str, index: tuple[Expr, ...]) -> Expr:
        return linear(index, row_major(self.tensors[tensor].shape))

    def is_in_order(self, address: Expr) -> bool:
        """Whether addresses are the numbers of points."""
        if address.constant or not all(isinstance(term, Axis) for term, _ in address.terms):
            return False
        step = 1
        for name, size in reversed(self.kernel.sizes.items()):
            if size > 1 and coefficient(address, name) != step:
                return False
            step *= size
        return True
