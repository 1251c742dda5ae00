"""Windows of single channels whose lines fill no vectors: channels become the neighbours.

    y[c, p, q] = sum over k, l of x[c, 2 p + k, 2 q + l] * w[c, k, l]

      -->  t[i, j, c] = x[c, i, j];  u[k, l, c] = w[c, k, l]
           s[p, q, c] = sum over k, l of t[2 p + k, 2 q + l, c] * u[k, l, c]
           y[c, p, q] = s[p, q, c]

Along a line, places that move by two are no neighbours in memory, and a line of seven places is
less than a vector; one element after the other was multiplied. The channels of a place lie side by
side in the copies, whatever the windows are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from weft.foundation.index_expr import axes_of, axis, coefficient
from weft.foundation.records import dataclass, replace
from weft.region.fitting.cutting import free_name, reductions
from weft.region.fitting.image_copies import Made
from weft.region.fitting.joining import live
from weft.region.ir import (
    Binary,
    Cast,
    Kernel,
    KernelAxis,
    Let,
    Output,
    Pattern,
    Read,
    Reduce,
    Tensor,
)

_WORTH: Final = 1 << 16
"""Products from which three more kernels pay for themselves."""
_MANY_TAPS: Final = 16
"""Taps from which they do where lines nearly fill a vector."""


@dataclass(frozen=True)
class _Windows:
    """The sum, the reads of image and filter, and the axis of their channels."""

    total: Let
    image: Let
    filter: Let
    channel: str


def with_channels_beside(kernel: Kernel, tensors: Mapping[str, Tensor], lanes: int) -> Made:
    """The kernels that sum windows with their channels last, and the tensors between them; the
    kernel as it is where its lines fill vectors of so many lanes."""
    found = _find_windows(kernel, tensors, lanes)
    if found is None:
        return (kernel,), ()
    image, image_copy, image_read = _channels_last(kernel, found.image, found.channel, tensors)
    known = {**tensors, image.name: image}
    filters, filter_copy, filter_read = _channels_last(kernel, found.filter, found.channel, known)
    reduced = {*kernel.reduced}
    kept = [each for each in kernel.axes if each.name not in reduced and each.name != found.channel]
    kept.append(KernelAxis(found.channel, kernel.sizes[found.channel]))
    order = [*kept, *(each for each in kernel.axes if each.name in reduced)]
    names = [each.name for each in order]

    def ordered(let: Let) -> Let:
        return replace(let, axes=tuple(name for name in names if name in let.axes))

    reads = {found.image.name: image_read, found.filter.name: filter_read}
    body = tuple(ordered(reads.get(let.name, let)) for let in kernel.body)
    shape = tuple(each.size for each in kept)
    total = found.total
    sums = Tensor(
        free_name(f"{kernel.name}_{total.name}", {*known, filters.name}), total.dtype, shape
    )
    places = tuple(axis(each.name) for each in kept)
    summed = replace(
        kernel, name=f"{kernel.name}_windows", axes=tuple(order), body=body, labels={},
        outputs=(Output(sums.name, total.name, places),),
    )  # fmt: skip
    again = replace(total, expr=Read(sums.name, places))
    behind = tuple(again if let.name == total.name else let for let in kernel.body)
    last = live(replace(kernel, pattern=Pattern.MAP, body=behind))
    return (image_copy, filter_copy, live(summed), last), (image, filters, sums)


def _find_windows(kernel: Kernel, tensors: Mapping[str, Tensor], lanes: int) -> _Windows | None:
    """The only sum of a kernel, of products of an image and its filters, both with the same axis of
    channels."""
    totals = reductions(kernel)
    plain = not (kernel.params or kernel.stages or kernel.opaque or kernel.roles)
    if kernel.pattern is not Pattern.ROW or not plain or len(totals) != 1:
        return None
    (total,) = totals
    if not isinstance(total.expr, Reduce) or total.expr.fn != "sum" or not total.dtype.is_float:
        return None
    product = kernel.let(total.expr.value).expr
    if not isinstance(product, Binary) or product.fn != "mul":
        return None
    sides = [_read_of(kernel, name) for name in (product.lhs, product.rhs)]
    for image, filters in (sides, sides[::-1]):
        if image is None or filters is None or image is filters:
            return None
        channel = _channel_of(kernel, total, image, filters, tensors, lanes)
        if channel is not None:
            return _Windows(total, image, filters, channel)
    return None


def _read_of(kernel: Kernel, name: str) -> Let | None:
    """The read that a factor is, in whatever dtype, if nothing else needs it."""
    let = kernel.let(name)
    if isinstance(let.expr, Cast):
        let = kernel.let(let.expr.x)
    return let if isinstance(let.expr, Read) and not let.expr.places else None


def _channel_of(
    kernel: Kernel,
    total: Let,
    image: Let,
    filters: Let,
    tensors: Mapping[str, Tensor],
    lanes: int,
) -> str | None:
    """The axis of the channels, where lines of places are shorter than vectors, or places along
    them are apart."""
    assert isinstance(image.expr, Read)
    assert isinstance(filters.expr, Read)
    assert isinstance(total.expr, Reduce)
    taps = {*total.expr.axes}
    along = axes_of(image.expr.index[-1])
    places = along - taps
    (channel,) = found if len(found := {*filters.axes} - taps) == 1 else ("",)
    if not channel or len(places) != 1 or not along & taps or channel in places:
        return None
    here = [at for at, index in enumerate(image.expr.index) if channel in axes_of(index)]
    there = [at for at, index in enumerate(filters.expr.index) if channel in axes_of(index)]
    if len(here) != 1 or len(there) != 1 or channel not in total.axes:
        return None
    whole = (kernel.sizes[channel], axis(channel))
    for let, at in ((image, here[0]), (filters, there[0])):
        assert isinstance(let.expr, Read)
        if (tensors[let.expr.tensor].shape[at], let.expr.index[at]) != whole:
            return None
        if any(channel in axes_of(guard.expr) for guard in let.expr.guards):
            return None
    (place,) = places
    apart = coefficient(image.expr.index[-1], place) != 1
    size, window = kernel.sizes[place], math.prod(kernel.sizes[name] for name in taps)
    # Lines of 14 places took 0.30 ms and 0.36 with three taps each way, 0.65 and 0.49 with five.
    short = size <= lanes // 2 or (size < lanes and window >= _MANY_TAPS)
    large = math.prod(kernel.sizes.values()) >= _WORTH
    return channel if (apart or short) and large and kernel.sizes[channel] >= lanes else None


def _channels_last(
    kernel: Kernel, read: Let, channel: str, tensors: Mapping[str, Tensor]
) -> tuple[Tensor, Kernel, Let]:
    """A copy of what is read with its channels behind all else, the kernel that makes it, and the
    read of it."""
    source = read.expr
    assert isinstance(source, Read)
    given = tensors[source.tensor]
    at = next(n for n, index in enumerate(source.index) if channel in axes_of(index))
    order = [*(n for n in range(len(given.shape)) if n != at), at]
    shape = tuple(given.shape[n] for n in order)
    name = free_name(f"{kernel.name}_{read.name}_last", tensors)
    copied = Tensor(name, given.dtype, shape)
    names = tuple(f"i{n}" for n in range(len(shape)))
    index = [axis("")] * len(order)
    for place, n in enumerate(order):
        index[n] = axis(names[place])
    value = Let("v0", given.dtype, names, Read(source.tensor, tuple(index)))
    axes = tuple(KernelAxis(name, size) for name, size in zip(names, shape, strict=True))
    stored = Output(name, value.name, tuple(map(axis, names)))
    made = Kernel(name, Pattern.MAP, axes, (value,), (stored,))
    moved = replace(source, tensor=name, index=tuple(source.index[n] for n in order))
    return copied, made, replace(read, expr=moved)
