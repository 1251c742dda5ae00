"""Padding by a constant or by elements of the tensor, and shuffles of pixels and channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from weft.foundation.errors import SpecViolation
from weft.ops.arithmetic import listed
from weft.ops.array.manipulation import permute_dims, reshape
from weft.ops.array.movement import flipped, window
from weft.ops.functional.capture import capture, with_batch
from weft.ops.functional.checks import (
    Checked,
    ensure_choice,
    ensure_known,
    ensure_positive,
    ensure_rank,
    ensure_rank_at_least,
    ensure_tensor,
    wrong_value,
)
from weft.ops.functional.registry import functional
from weft.ops.numbers import Number, is_number
from weft.ops.session import Handle, Session
from weft.ops.tensor import Tensor

MODES = ("constant", "reflect", "edge", "wrap")


@dataclass(frozen=True)
class PadChecked(Checked):
    """(low, high) for every axis."""

    widths: tuple[tuple[int, int], ...]
    mode: str
    value: Number


def check_pad(x: Any, widths: Any, mode: Any, value: Any) -> PadChecked:
    tensor = ensure_tensor("x", x)
    ensure_choice("mode", mode, MODES)
    if not is_number(value):
        raise wrong_value("value", value, "it must be a number")
    found = _widths(widths, tensor)
    if mode != "constant":
        for axis, (low, high) in enumerate(found):
            if not (low or high):
                continue
            size = ensure_known("x", tensor.shape[axis])
            most = size - 1 if mode == "reflect" else size
            if (size == 0 and max(low, high) > 0) or (mode != "edge" and max(low, high) > most):
                raise SpecViolation(
                    "InvalidAttributeValue",
                    f"axis {axis} of x {listed(tensor.shape)} cannot be padded by ({low}, {high}) "
                    f"with mode {mode}",
                    f"at most {max(most, 0)} elements can be taken from it",
                )
    return PadChecked(found, mode, value)


def _widths(widths: Any, x: Tensor) -> tuple[tuple[int, int], ...]:
    """One number, a pair for every axis, or for a tensor of one axis that pair alone."""
    given: Any = widths
    if isinstance(given, int):
        given = [(given, given)] * x.ndim
    elif _is_pair(given) and x.ndim == 1:
        given = [given]
    right = isinstance(given, Sequence) and len(given) == x.ndim
    if not right or not all(map(_is_pair, given)):
        raise SpecViolation(
            "InvalidAttributeValue",
            f"the widths {widths!r} do not say how to pad x {listed(x.shape)}",
            _pairs_meant(widths, x.ndim),
        )
    found = tuple((int(low), int(high)) for low, high in given)
    for axis, (low, high) in enumerate(found):
        if min(low, high) < 0 and ensure_known("x", x.shape[axis]) + low + high < 0:
            raise SpecViolation(
                "InvalidAttributeValue",
                f"the widths ({low}, {high}) cut more off axis {axis} of x {listed(x.shape)} than "
                "it has",
                "cut off fewer elements",
            )
    return found


def _pairs_meant(widths: Any, rank: int) -> str:
    """What to give. A flat list is what PyTorch takes, for the last axis first; a pair alone NumPy
    would take for every axis."""
    plain = "give a number, or a pair (low, high) for every axis"
    flat = isinstance(widths, Sequence) and all(isinstance(width, int) for width in widths)
    if not flat or len(widths) % 2 or not 0 < len(widths) <= 2 * rank:
        return plain
    pairs = list(zip(widths[::2], widths[1::2], strict=True))[::-1]
    torch = [(0, 0)] * (rank - len(pairs)) + pairs
    numpy = f", or {pairs * rank} as NumPy does" if len(pairs) == 1 else ""
    return f"{plain}: {torch} to read them as PyTorch does{numpy}"


def _is_pair(value: Any) -> bool:
    pair = isinstance(value, Sequence) and len(value) == 2
    return pair and all(isinstance(width, int) for width in value)


def capture_pad(s: Session, checked: PadChecked, x: Handle) -> Handle:
    if checked.mode == "constant":
        more = [(max(low, 0), max(high, 0)) for low, high in checked.widths]
        lows, highs = zip(*more, strict=True) if more else ((), ())
        x = s.emit("pad", x, low=lows, high=highs, interior=(0,) * x.rank, pad_value=checked.value)
        return _cut_edges(x, checked.widths)
    x = _cut_edges(x, checked.widths) if checked.mode == "wrap" else x
    for axis, (low, high) in enumerate(checked.widths):
        if max(low, high) > 0:
            x = _extend_axis(s, x, axis, max(low, 0), max(high, 0), checked.mode)
    return x if checked.mode == "wrap" else _cut_edges(x, checked.widths)


def _cut_edges(x: Handle, widths: Sequence[tuple[int, int]]) -> Handle:
    """What widths under 0 leave. What is mirrored or repeated is so before, and may be taken away
    again; the other end that is wrapped around is that of what is left."""
    for axis, (low, high) in enumerate(widths):
        if min(low, high) < 0:
            before, after = max(-low, 0), max(-high, 0)
            size = ensure_known("x", x.shape[axis])
            x = window(x, axis, before, size - before - after)
    return x


def _extend_axis(s: Session, x: Handle, axis: int, low: int, high: int, mode: str) -> Handle:
    size = ensure_known("x", x.shape[axis])
    if mode == "edge":
        first, last = window(x, axis, 0, 1), window(x, axis, size - 1, 1)
        parts = [_repeat_axis(first, axis, low), x, _repeat_axis(last, axis, high)]
    elif mode == "wrap":
        parts = [window(x, axis, size - low, low), x, window(x, axis, 0, high)]
    else:
        before = flipped(window(x, axis, 1, low), axis)
        after = flipped(window(x, axis, size - 1 - high, high), axis)
        parts = [before, x, after]
    return s.concat([part for part in parts if part.shape[axis] != 0], axis)


def _repeat_axis(x: Handle, axis: int, times: int) -> Handle:
    return x.broadcast_to((*x.shape[:axis], times, *x.shape[axis + 1 :]))


@functional
def pad(
    x: Tensor,
    widths: int | Sequence[int] | Sequence[tuple[int, int]],
    mode: str = "constant",
    value: Number = 0,
) -> Tensor:
    """x with more elements at both ends of its axes: a value, or with `mode` the elements mirrored
    at the edge (reflect), the edge repeated (edge), or those of the other end (wrap).

    `widths` is a number, or a pair (low, high) for every axis, first axis first; for x with one
    axis it may be a single pair. A negative width removes elements. A single pair for x with
    several axes is rejected, because PyTorch would pad the last axis and NumPy all of them."""
    checked = check_pad(x, widths, mode, value)
    return capture(capture_pad, checked, ensure_tensor("x", x))


@dataclass(frozen=True)
class ShuffleChecked(Checked):
    """By which factor channels become positions."""

    factor: int


def _factor(tensor: Tensor, factor: Any) -> int:
    ensure_rank("x", tensor, 4, "(NCHW)")
    if isinstance(factor, bool) or not isinstance(factor, int) or factor < 1:
        raise wrong_value("factor", factor, "it must be a whole number over 0")
    return factor


def check_pixel_shuffle(x: Any, factor: Any) -> ShuffleChecked:
    tensor = ensure_tensor("x", x)
    _factor(tensor, factor)
    if ensure_known("channels", tensor.shape[1]) % (factor * factor):
        raise SpecViolation(
            "ShapeMismatch",
            f"x {listed(tensor.shape)} has {tensor.shape[1]} channels, not a multiple of "
            f"{factor * factor}",
            "the channels become squares of factor by factor positions",
        )
    return ShuffleChecked(factor)


def capture_pixel_shuffle(s: Session, checked: ShuffleChecked, x: Handle) -> Handle:
    n = x.shape[0]
    channels, height, width = (ensure_known("x", dim) for dim in x.shape[1:])
    r = checked.factor
    parted = x.reshape((n, channels // (r * r), r, r, height, width))
    return parted.transpose([0, 1, 4, 2, 5, 3]).reshape(
        (n, channels // (r * r), height * r, width * r)
    )


@functional
def pixel_shuffle(x: Tensor, factor: int) -> Tensor:
    """[N, C r², H, W] as [N, C, H r, W r]."""

    def run(x: Tensor) -> Tensor:
        return capture(capture_pixel_shuffle, check_pixel_shuffle(x, factor), x)

    found: Tensor = with_batch(4, x, run)
    return found


def check_pixel_unshuffle(x: Any, factor: Any) -> ShuffleChecked:
    tensor = ensure_tensor("x", x)
    count = _factor(tensor, factor)
    if any(ensure_known("x", size) % count for size in tensor.shape[2:]):
        raise SpecViolation(
            "ShapeMismatch",
            f"the positions of x {listed(tensor.shape)} are not multiples of {count}",
            "squares of factor by factor positions become channels",
        )
    return ShuffleChecked(count)


def capture_pixel_unshuffle(s: Session, checked: ShuffleChecked, x: Handle) -> Handle:
    n = x.shape[0]
    channels, height, width = (ensure_known("x", dim) for dim in x.shape[1:])
    r = checked.factor
    parted = x.reshape((n, channels, height // r, r, width // r, r))
    return parted.transpose([0, 1, 3, 5, 2, 4]).reshape(
        (n, channels * r * r, height // r, width // r)
    )


@functional
def pixel_unshuffle(x: Tensor, factor: int) -> Tensor:
    """[N, C, H r, W r] as [N, C r², H, W]: `pixel_shuffle` undone."""

    def run(x: Tensor) -> Tensor:
        return capture(capture_pixel_unshuffle, check_pixel_unshuffle(x, factor), x)

    found: Tensor = with_batch(4, x, run)
    return found


@functional
def channel_shuffle(x: Tensor, groups: int) -> Tensor:
    """The channels of [N, C, ...] interleaved: the first of each group, then the second of each,
    and so on."""
    tensor = ensure_tensor("x", x)
    ensure_rank_at_least("x", tensor, 3)
    count, channels = ensure_positive("groups", groups), ensure_known("x", tensor.shape[1])
    if channels % count:
        raise SpecViolation(
            "ShapeMismatch", f"{channels} channels have no {count} equal groups", "divide them"
        )
    front, rest = tensor.shape[0], tensor.shape[2:]
    parted = reshape(tensor, (front, count, channels // count, *rest))
    turned = permute_dims(parted, (0, 2, 1, *range(3, parted.ndim)))
    return reshape(turned, (front, channels, *rest))
