"""Removing taps of a window that lie outside the image at every place.

    y[n] = sum over k < 3 of w[n, k] x[k - 1], where x has one element
        -->  d[n] = sum over k != 1 of 0 w[n, k];  y[n] = w[n, 1] x[0] + d[n]

Such taps multiply zeros, and of what a program makes of parameters alone that is all that there is
to say: the sum of their products is 0, or NaN where a weight is infinite or none. It is a kernel of
its own, which later runs leave out, and of a 3x3 window over a single pixel one ninth is left.
"""

from __future__ import annotations

from collections.abc import Mapping

from weft.foundation.dtypes import I1, SI32
from weft.foundation.index_expr import axes_of, axis, constant, evaluate
from weft.foundation.records import dataclass, replace
from weft.region.fitting.cutting import placed, renamed
from weft.region.ir import (
    AxisIndex,
    Binary,
    Cast,
    Const,
    Kernel,
    KernelAxis,
    Let,
    Materialize,
    Output,
    Pattern,
    Read,
    Reduce,
    Select,
    Tensor,
    Unary,
    operands,
)


@dataclass(frozen=True)
class _Seen:
    """The taps along an axis that some result sees: `count` of them from `first` on."""

    first: int
    count: int


def without_idle_taps(
    kernel: Kernel, weights: str, other: str
) -> tuple[Kernel, Kernel | None, Tensor | None]:
    """The contraction without such taps, the kernel that sums up what they come to, and its
    tensor; the contraction as it is where there are none. `weights` and `other` are its reads."""
    seen = _seen_taps(kernel, other)
    read = kernel.let(weights).expr
    if not seen or not isinstance(read, Read) or kernel.roles is None:
        return kernel, None, None
    total = kernel.roles.contraction
    after = [let.expr for let in kernel.body if total in operands(let)]
    if all(taps.count == 1 for taps in seen.values()) and len(seen) == len(kernel.roles.k):
        return kernel, None, None
    if not all(isinstance(expr, Unary | Cast | Binary | Select) for expr in after):
        return kernel, None, None
    (own,) = (name for name in kernel.let(weights).axes if name not in kernel.roles.k)
    name = f"{kernel.name}_idle"
    idle = _idle(kernel, read, own, name, seen)
    tensor = Tensor(name, kernel.let(weights).dtype, (kernel.sizes[own],))
    return _add_idle_taps(_narrow_axes(kernel, seen), own, name), idle, tensor


def _seen_taps(kernel: Kernel, other: str) -> dict[str, _Seen]:
    """The axes of a window of which some taps are beyond the image at every place."""
    read = kernel.let(other).expr
    if not isinstance(read, Read) or read.fill != 0 or kernel.roles is None:
        return {}
    found = {}
    for name in kernel.roles.k:
        guards = [guard for guard in read.guards if axes_of(guard.expr) == {name}]
        inside = [
            tap
            for tap in range(kernel.sizes[name] if guards else 0)
            if all(0 <= evaluate(guard.expr, {name: tap}) < guard.size for guard in guards)
        ]
        whole = bool(inside) and inside[-1] - inside[0] + 1 == len(inside)
        if whole and len(inside) < kernel.sizes[name]:
            found[name] = _Seen(inside[0], len(inside))
    return found


def _narrow_axes(kernel: Kernel, seen: Mapping[str, _Seen]) -> Kernel:
    """The kernel with these taps alone; an axis of which one is left is none."""
    gone = {name for name, taps in seen.items() if taps.count == 1}
    axes = tuple(
        replace(each, size=seen[each.name].count) if each.name in seen else each
        for each in kernel.axes
        if each.name not in gone
    )
    moved = {
        name: constant(taps.first) if name in gone else axis(name) + taps.first
        for name, taps in seen.items()
    }

    def narrowed(let: Let) -> Let:
        expr = placed(let.expr, moved)
        if isinstance(expr, Read):
            guards = tuple(guard for guard in expr.guards if axes_of(guard.expr))
            expr = replace(expr, guards=guards, fill=expr.fill if guards else None)
        elif isinstance(expr, Reduce):
            expr = replace(expr, axes=tuple(name for name in expr.axes if name not in gone))
        return replace(let, axes=tuple(n for n in let.axes if n not in gone), expr=expr)

    assert kernel.roles is not None
    roles = replace(kernel.roles, k=tuple(name for name in kernel.roles.k if name not in gone))
    return replace(kernel, axes=axes, body=tuple(map(narrowed, kernel.body)), roles=roles)


def _idle(kernel: Kernel, read: Read, own: str, name: str, seen: Mapping[str, _Seen]) -> Kernel:
    """The sum of zero times the weights of all other taps."""
    assert kernel.roles is not None
    summed = kernel.roles.k
    every, dtype = (own, *summed), kernel.let(kernel.roles.contraction).dtype
    body = [
        Let("w", dtype, every, Read(read.tensor, read.index)),
        Let("zero", dtype, (), Const(0.0)),
        Let("none", dtype, every, Binary("mul", "zero", "w")),
    ]
    value = "zero"
    for tap, taps in seen.items():
        body.append(Let(f"at_{tap}", SI32, (tap,), AxisIndex(axis(tap))))
        bounds = (("ge", taps.first), ("lt", taps.first + taps.count))
        for fn, limit in bounds:
            stem = f"{fn}_{tap}"
            body.append(Let(f"{stem}_limit", SI32, (), Const(limit)))
            body.append(Let(stem, I1, (tap,), Binary(fn, f"at_{tap}", f"{stem}_limit")))
            body.append(Let(f"{stem}_value", dtype, every, Select(stem, value, "none")))
            value = f"{stem}_value"
    body.append(Let("sum", dtype, (own,), Reduce("sum", summed, value)))
    axes = [KernelAxis(own, kernel.sizes[own])]
    axes += [each for each in kernel.axes if each.name in summed]
    output = Output(name, "sum", (axis(own),))
    return Kernel(f"{name}_sum", Pattern.ROW, tuple(axes), tuple(body), (output,))


def _add_idle_taps(kernel: Kernel, own: str, name: str) -> Kernel:
    """The kernel with what idle taps come to added to its sums."""
    assert kernel.roles is not None
    total = kernel.let(kernel.roles.contraction)
    whole = f"{total.name}_whole"
    new = {total.name: whole}
    body = list[Let]()
    for let in kernel.body:
        body.append(replace(let, expr=renamed(let.expr, new)))
        if let.name == total.name:
            body.append(Let(f"{name}_read", total.dtype, (own,), Read(name, (axis(own),))))
            both = Binary("add", total.name, f"{name}_read")
            body.append(Let(whole, total.dtype, total.axes, both))
    outputs = tuple(
        replace(o, value=new.get(o.value, o.value), materialize=Materialize.DEFERRED)
        for o in kernel.outputs
    )
    return replace(kernel, body=tuple(body), outputs=outputs)
