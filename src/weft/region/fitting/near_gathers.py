"""Copies whose indices pick from the last dimensions of a tensor, such as filters that are turned
round: all that lies together is read together.

    for k, for i, for o:  t[i, k, o] = w[o, i, p[k]]        -->        for i, for o, for k: ...

In the order in which elements are written, each pass over the picked elements reads one of those
that lie side by side, with the whole tensor between two of them. What is picked from is small: the
axes that decide it go last, and as many lines of the result are written side by side.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from weft.foundation.index_expr import axes_of, params_of
from weft.region.ir import Kernel, Pattern, Read, Tensor

_MOST: Final = 64
"""Elements that are picked together: so many lines of the result are written side by side."""
_WORTH: Final = 1 << 12
"""Elements of a copy from which its order matters: fewer stay in the nearest cache."""


def with_near_gathers(kernel: Kernel, tensors: Mapping[str, Tensor]) -> Kernel:
    """The kernel, the axes last that pick from the last dimensions of what it reads."""
    last = _axes_that_pick(kernel, tensors)
    names = list(kernel.sizes)
    if not last or names[-len(last) :] == last:
        return kernel
    order = [*(name for name in names if name not in last), *last]
    axes = tuple(sorted(kernel.axes, key=lambda each: order.index(each.name)))
    body = tuple(
        replace(let, axes=tuple(name for name in order if name in let.axes)) for let in kernel.body
    )
    return replace(kernel, axes=axes, body=body)


def _axes_that_pick(kernel: Kernel, tensors: Mapping[str, Tensor]) -> list[str]:
    """The axes that pick, in the order of the dimensions; none where the order does not matter."""
    if kernel.pattern is not Pattern.MAP or kernel.opaque is not None or kernel.stages:
        return []
    if math.prod(kernel.sizes.values()) < _WORTH:
        return []
    reads = [let.expr for let in kernel.body if isinstance(let.expr, Read) and let.expr.places]
    if len(reads) != 1 or len({let.name for let in kernel.body}) < len(kernel.body):
        return []
    read, shape = reads[0], tensors[reads[0].tensor].shape
    values = {place.param: place.value for place in read.places}
    picks = [dim for dim, expr in enumerate(read.index) if params_of(expr) & values.keys()]
    if not picks or picks != list(range(picks[0], len(shape))):
        return []
    found: list[str] = []
    for dim in picks:
        for param in params_of(read.index[dim]) & values.keys():
            found += [name for name in kernel.let(values[param]).axes if name not in found]
    before = {name for expr in read.index[: picks[0]] for name in axes_of(expr)}
    few = math.prod(kernel.sizes[name] for name in found) <= _MOST
    return found if few and not before & {*found} and math.prod(shape[picks[0] :]) <= _MOST else []
