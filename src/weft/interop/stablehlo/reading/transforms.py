"""Fourier transforms over the last axes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from weft.foundation.dtypes import CF32, CF64, F64
from weft.interop.stablehlo.reading.shapes import reversed_along
from weft.interop.stablehlo.reading.site import Lowering, Site
from weft.ptir.builder import Value
from weft.ptir.fourier import transformed


def _fft(at: Site) -> Value:
    (x,), lengths = at.x, at.ints("fft_length")
    axes = list(range(x.rank - len(lengths), x.rank))
    match at.word("fft_type"):
        case "FFT":
            return _transform_axes(at, x, axes, -1)
        case "IFFT":
            return _transform_axes(at, x, axes, 1)
        case "RFFT":
            whole = _transform_axes(
                at, at.b.cast(x, CF64 if x.dtype is F64 else CF32), axes[-1:], -1
            )
            return _transform_axes(at, _slice_first(at, whole, lengths[-1] // 2 + 1), axes[:-1], -1)
    half = _transform_axes(at, x, axes[:-1], 1)
    return at.b.emit("real", _transform_axes(at, _mirror_half(at, half, lengths[-1]), axes[-1:], 1))


def _transform_axes(at: Site, x: Value, axes: list[int], sign: int) -> Value:
    """The transform along axes; the inverse one is divided by their sizes."""
    for axis in axes:
        size = at.static(x)[axis]
        if not size:
            continue
        order = [*(a for a in range(x.rank) if a != axis), axis]
        sums = transformed(x.transpose(order), size, sign)
        x = sums.transpose([order.index(a) for a in range(x.rank)])
        x = x / size if sign > 0 else x
    return x


def _slice_first(at: Site, x: Value, count: int) -> Value:
    return at.sliced(x, [0] * x.rank, [*at.static(x)[:-1], count])


def _mirror_half(at: Site, half: Value, size: int) -> Value:
    """All elements of a transform of real numbers, of which the first half is given."""
    count, last = (size - 1) // 2, half.rank - 1
    half = _slice_first(at, half, size // 2 + 1)
    if count < 1:
        return half
    starts = [*(0 for _ in range(last)), 1]
    rest = at.sliced(half, starts, [*at.static(half)[:-1], count])
    return at.b.concat([half, at.b.emit("conj", reversed_along(at, rest, [last]))], last)


TRANSFORMS: Final[Mapping[str, Lowering]] = {"fft": _fft}
