"""Embedding tables, and rotary position embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from weft.foundation.dtypes import FLOATS, INDICES
from weft.foundation.errors import SpecViolation
from weft.ops.arithmetic import listed
from weft.ops.array.movement import window
from weft.ops.functional.capture import capture, widened
from weft.ops.functional.checks import (
    Checked,
    ensure_dtype,
    ensure_known,
    ensure_rank,
    ensure_rank_at_least,
    ensure_tensor,
    wrong_value,
)
from weft.ops.functional.registry import functional
from weft.ops.session import Handle, Session
from weft.ops.tensor import Tensor


@dataclass(frozen=True)
class EmbeddingChecked(Checked):
    """A table of rows and the numbers of rows."""


def check_embedding(indices: Any, table: Any) -> EmbeddingChecked:
    ensure_dtype("indices", ensure_tensor("indices", indices), INDICES, "integers (si32 or si64)")
    ensure_rank("table", ensure_tensor("table", table), 2, "(rows, features)")
    return EmbeddingChecked()


def capture_embedding(
    s: Session, checked: EmbeddingChecked, indices: Handle, table: Handle
) -> Handle:
    return s.emit("take", table, indices)


@functional
def embedding(indices: Tensor, table: Tensor) -> Tensor:
    """Row `indices[...]` of the table for every index."""
    checked = check_embedding(indices, table)
    return capture(capture_embedding, checked, ensure_tensor("indices", indices), table)


@dataclass(frozen=True)
class RotaryChecked(Checked):
    """x [..., S, D] with D even, positions [S]."""

    base: float
    interleaved: bool


def check_rotary(x: Any, positions: Any, base: Any, interleaved: Any) -> RotaryChecked:
    tensor, places = ensure_tensor("x", x), ensure_tensor("positions", positions)
    ensure_dtype("x", tensor, FLOATS, "floats")
    ensure_rank_at_least("x", tensor, 2)
    ensure_dtype("positions", places, {*INDICES, *FLOATS}, "integers or floats")
    if ensure_known("the last axis of x", tensor.shape[-1]) % 2:
        raise SpecViolation(
            "ShapeMismatch", f"the last axis of x {listed(tensor.shape)} is odd", "use pairs"
        )
    if places.shape != tensor.shape[-2:-1]:
        raise SpecViolation(
            "ShapeMismatch",
            f"positions {listed(places.shape)} do not belong to x {listed(tensor.shape)}",
            "one position for every entry of the last but one axis of x",
        )
    if not isinstance(base, int | float) or base <= 0:
        raise wrong_value("base", base, "it must be a number over 0")
    return RotaryChecked(float(base), bool(interleaved))


def capture_rotary(s: Session, checked: RotaryChecked, x: Handle, positions: Handle) -> Handle:
    half = int(x.shape[-1]) // 2
    length = x.shape[-2]
    wide = widened(x)
    # -2 i / D, with D twice the half.
    exponent = s.iota(wide.dtype, (1, half), 1) * (-1.0 / half)
    powers = s.emit("pow", s.full(checked.base, wide.dtype, (1, half)), exponent)
    places = positions.cast(wide.dtype).reshape((length, 1))
    angles = places.broadcast_to((length, half)) * powers.broadcast_to((length, half))
    aligned = (*([1] * (x.rank - 2)), length, half)
    parted = (*x.shape[:-1], half, 2) if checked.interleaved else (*x.shape[:-1], 2, half)
    axis = x.rank if checked.interleaved else x.rank - 1
    pairs = wide.reshape(parted)
    first, second = window(pairs, axis, 0, 1), window(pairs, axis, 1, 1)
    target = first.shape
    cosine, sine = (
        f.reshape(aligned).reshape(_with_one(aligned, axis)).broadcast_to(target)
        for f in (angles.cos(), angles.sin())
    )
    turned = s.concat([first * cosine - second * sine, first * sine + second * cosine], axis)
    return s.cast(turned.reshape(x.shape), x.dtype)


def _with_one(shape: tuple[Any, ...], axis: int) -> tuple[Any, ...]:
    return (*shape[:axis], 1, *shape[axis:])


@functional
def rotary_embedding(
    x: Tensor, positions: Tensor, *, base: float = 10_000.0, interleaved: bool = False
) -> Tensor:
    """Pairs of features rotated by the angle `position * base^(-2i / D)`: x [..., S, D], positions
    [S].

    A pair is (i, i + D/2), or with `interleaved` (2i, 2i + 1)."""
    checked = check_rotary(x, positions, base, interleaved)
    return capture(capture_rotary, checked, ensure_tensor("x", x), positions)
