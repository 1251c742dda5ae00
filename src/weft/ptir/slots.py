"""Slots: names for the tensors of a body. A slot is the id of a value, and for an element of a
tuple its index; deeper elements have no name in PTIR, and a tuple inside a tuple is one slot.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from weft.ptir.ir import Body, ElementRef, Operand
from weft.ptir.literal import TensorLiteral
from weft.ptir.types import TensorType, TupleType, ValueType

Slot: TypeAlias = tuple[int, int | None]


def slots_of(value_id: int, kind: ValueType) -> list[tuple[Slot, ValueType]]:
    """The slots of a value with their types."""
    if isinstance(kind, TensorType):
        return [((value_id, None), kind)]
    return [((value_id, index), element) for index, element in enumerate(kind.elements)]


def read_slots(operand: Operand, types: Mapping[int, ValueType]) -> list[Slot]:
    """The slots that an operand reads."""
    if isinstance(operand, TensorLiteral):
        return []
    if isinstance(operand, ElementRef):
        return [(operand.id, operand.index)]
    return [slot for slot, _ in slots_of(operand.id, types[operand.id])]


def slot_type(slot: Slot, types: Mapping[int, ValueType]) -> ValueType:
    kind = types[slot[0]]
    return kind.elements[slot[1]] if isinstance(kind, TupleType) and slot[1] is not None else kind


def result_slots(body: Body) -> list[tuple[Slot, ValueType]]:
    """The slots that a body returns, in order."""
    named = zip(body.result_ids, body.results, strict=True)
    return [found for value_id, kind in named for found in slots_of(value_id, kind)]


def is_smooth(kind: ValueType) -> bool:
    """Whether a value of this type has a cotangent: floats, complex numbers, and tuples with
    them."""
    if isinstance(kind, TupleType):
        return any(map(is_smooth, kind.elements))
    return kind.dtype.is_float or kind.dtype.is_complex
