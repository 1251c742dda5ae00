"""Grouped matrix products: each group of rows times its own matrix, as in a mixture of experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.coarse.grouped import MULTIPLIED
from weft.foundation.dtypes import INDICES
from weft.foundation.errors import SpecViolation
from weft.ops.arithmetic import listed
from weft.ops.functional.capture import capture
from weft.ops.functional.checks import (
    Checked,
    ensure_dtype,
    ensure_rank,
    ensure_same_backend,
    ensure_same_dtype,
    ensure_shape,
    ensure_tensor,
    wrong_value,
)
from weft.ops.functional.registry import functional
from weft.ops.session import Handle, Session
from weft.ops.tensor import Tensor


@dataclass(frozen=True)
class GroupedMatmulChecked(Checked):
    """x [rows, in], weight [groups, in, out], or [groups, out, in], and offsets [groups]."""

    transposed: bool


def check_grouped_matmul(
    x: Any, weight: Any, offsets: Any, transposed: Any = False
) -> GroupedMatmulChecked:
    data, matrices = ensure_tensor("x", x), ensure_tensor("weight", weight)
    numbers = ensure_tensor("offsets", offsets)
    if not isinstance(transposed, bool):
        raise wrong_value("transposed", transposed, "it must be True or False")
    form = "(groups, out, in)" if transposed else "(groups, in, out)"
    ensure_rank("x", data, 2, "(rows, in)")
    ensure_rank("weight", matrices, 3, form)
    ensure_rank("offsets", numbers, 1, "(groups,)")
    ensure_dtype("x", data, MULTIPLIED, "f16, bf16, f32 or f64")
    ensure_same_dtype("x", data, "weight", matrices)
    ensure_dtype("offsets", numbers, INDICES, "integers (si32 or si64)")
    ensure_same_backend("x", data, "weight", matrices)
    ensure_same_backend("x", data, "offsets", numbers)
    if data.shape[1] != matrices.shape[2 if transposed else 1]:
        raise SpecViolation(
            "ShapeMismatch",
            f"x {listed(data.shape)} has rows of {data.shape[1]}, but the weight "
            f"{listed(matrices.shape)} takes {matrices.shape[2 if transposed else 1]}",
            f"the weight is {form}; transposed={not transposed} takes the other form",
        )
    ensure_shape("offsets", numbers, matrices.shape[:1], "the row where each group ends")
    _check_offsets(offsets, data.shape[0])
    return GroupedMatmulChecked(transposed)


def _check_offsets(offsets: Any, rows: Any) -> None:
    """Offsets that are numbers already rise, and end no later than the rows."""
    if isinstance(offsets, Tensor):
        return
    found = np.asarray(offsets)
    falls = np.flatnonzero(np.diff(found, prepend=0) < 0)
    if falls.size:
        group = int(falls[0])
        before = f"{found[group - 1]}, where group {group - 1} ends" if group else "0"
        why = f"offsets has {found[group]} for group {group}, which is less than {before}"
        raise SpecViolation("InvalidOffsets", why, "offsets are where groups end, in order")
    if isinstance(rows, int) and found.size and found[-1] > rows:
        why = f"offsets ends at {found[-1]}, but x has {rows} rows"
        raise SpecViolation("InvalidOffsets", why, "offsets are where groups end, in order")


def capture_grouped_matmul(
    s: Session, checked: GroupedMatmulChecked, x: Handle, weight: Handle, offsets: Handle
) -> Handle:
    return s.emit("weft.grouped_matmul", x, weight, offsets, transposed=checked.transposed)


@functional
def grouped_matmul(
    x: Tensor, weight: Tensor, offsets: Tensor, *, transposed: bool = False
) -> Tensor:
    """Multiplies each group of rows by its own matrix: the experts of a mixture, whose numbers of
    rows are known only at run time. x is [rows, in] with the rows of a group one after the other,
    the weight is [groups, in, out] (or [groups, out, in] if `transposed`), and `offsets[g]` is the
    row at which group g ends and the next one begins. Rows after the last group are 0. Offsets that
    are computed at run time are clamped to the number of rows, and an offset below the previous one
    counts as equal to it."""
    checked = check_grouped_matmul(x, weight, offsets, transposed)
    return capture(capture_grouped_matmul, checked, x, weight, offsets)
