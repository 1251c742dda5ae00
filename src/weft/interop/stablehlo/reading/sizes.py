"""Constant propagation on integers that hold sizes of tensors.

Modules compute shapes as they compute anything else, by operations on small integer tensors. Those
are followed while a module is read: an entry is a number, the name of an open size, or `UNKNOWN`.
Numbers are folded through all of the usual arithmetic, names only where it leaves them as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np

from weft.interop.stablehlo.records import HloOp
from weft.ptir.builder import Value
from weft.ptir.types import UNKNOWN, Dim

Held: TypeAlias = tuple[Dim, ...]
"""The entries of a value, flattened."""
MOST: Final = 64
"""Longer values hold no sizes."""
SHAPE_OF: Final = "shape.shape_of"


def _divide_to_zero(a: int, b: int) -> int:
    """Rounded to zero; nobody reads the quotient by zero that a guard throws away."""
    return int(abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1) if b else 0


_ARITHMETIC: Final[Mapping[str, Callable[..., int]]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": _divide_to_zero,
    "remainder": lambda a, b: a - b * _divide_to_zero(a, b),
    "minimum": min,
    "maximum": max,
    "negate": lambda a: -a,
    "sign": lambda a: (a > 0) - (a < 0),
    "abs": abs,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "select": lambda c, a, b: a if c else b,
    "clamp": lambda low, x, high: min(max(x, low), high),
}
_COMPARISONS: Final[Mapping[str, Callable[[int, int], bool]]] = {
    "EQ": lambda a, b: a == b,
    "NE": lambda a, b: a != b,
    "LT": lambda a, b: a < b,
    "LE": lambda a, b: a <= b,
    "GT": lambda a, b: a > b,
    "GE": lambda a, b: a >= b,
}


def held(op: HloOp, x: Sequence[Value], known: Callable[[int], Held | None]) -> Held | None:
    """What the first result of an operation holds, where that can be told."""
    match op.name:
        case "constant":
            data = op.attributes["value"]
            if data.type.dtype.is_integer and data.type.rank <= 2 and data.type.size <= MOST:
                return tuple(int(n) for n in data.array.reshape(-1))
        case "get_dimension_size":
            return (x[0].shape[int(op.attributes["dimension"])],)
        case "shape.shape_of":
            return x[0].shape
        case "custom_call" if op.attributes["call_target_name"] == SHAPE_OF:
            return x[0].shape
        case "reshape" | "convert" | "dynamic_reshape":
            return known(op.operands[0])
        case "broadcast_in_dim" if x[0].rank == 0:
            entries = known(op.operands[0])
            count = int(np.prod([dim or 0 for dim in _first_dims(op)]))
            return entries * count if entries and count <= MOST else None
        case "slice" if x[0].rank == 1:
            entries = known(op.operands[0])
            bounds = (op.attributes[n] for n in ("start_indices", "limit_indices", "strides"))
            return entries[slice(*(int(bound[0]) for bound in bounds))] if entries else None
        case "concatenate" if x[0].dtype.is_integer and not op.attributes["dimension"]:
            parts = [_entries_or_unknown(known(n), v) for n, v in zip(op.operands, x, strict=True)]
            return None if None in parts else tuple(dim for part in parts for dim in part or ())
        case "compare" if not x[0].dtype.is_float:
            rule = _COMPARISONS[direction(op)]
            return _by_entries(lambda a, b: int(rule(a, b)), op, known)
        case name if name in _ARITHMETIC and not any(v.dtype.is_float for v in x):
            return _size_left_alone(op, known) or _by_entries(_ARITHMETIC[name], op, known)
    return None


def direction(op: HloOp) -> str:
    """How a comparison compares."""
    return str(op.attributes["comparison_direction"]).rstrip(">").split()[-1]


def _first_dims(op: HloOp) -> tuple[int | None, ...]:
    return getattr(op.types[0], "dims", ())


def _entries_or_unknown(found: Held | None, x: Value) -> Held | None:
    """The sizes that a vector holds; one that something else computes has no name."""
    return found or ((UNKNOWN,) if x.shape == (1,) else None)


def _by_entries(
    rule: Callable[..., int], op: HloOp, known: Callable[[int], Held | None]
) -> Held | None:
    """Entry by entry, where all are numbers."""
    operands = [known(number) for number in op.operands]
    lengths = {len(entries) for entries in operands if entries is not None}
    if None in operands or len(lengths) != 1:
        return None
    rows = zip(*(entries for entries in operands if entries is not None), strict=True)
    return tuple(rule(*row) if all(isinstance(n, int) for n in row) else UNKNOWN for row in rows)


_NEUTRAL: Final = {"add": 0, "subtract": 0, "multiply": 1, "divide": 1}


def _size_left_alone(op: HloOp, known: Callable[[int], Held | None]) -> Held | None:
    """An open size that arithmetic leaves as it is: with a neutral number, or the larger and the
    smaller of it and itself."""
    if len(op.operands) != 2:
        return None
    left, right = (known(number) for number in op.operands)
    if left is None or right is None or len(left) != 1 or len(right) != 1:
        return None
    if right[0] == _NEUTRAL.get(op.name):
        return left
    if op.name in ("add", "multiply") and left[0] == _NEUTRAL[op.name]:
        return right
    return left if op.name in ("maximum", "minimum") and left == right else None
