"""Sequences and optionals: Python's lists and None."""

from __future__ import annotations

import numpy as np

from weft.foundation.errors import SpecViolation
from weft.interop.onnx.rules.shapes import pieces
from weft.interop.onnx.table import Call, rule
from weft.interop.onnx.values import Array, Value, array, is_array, value_as_tensor, wf


def _sequence_place(position: Value, size: int, end: int) -> int:
    """A place in a sequence, that may be counted from its end."""
    found = int(array(position).reshape(-1)[0])
    if not -size <= found < end:
        raise SpecViolation("GatherIndexOutOfBounds", f"place {found} in a sequence of {size}")
    return found + size if found < 0 else found


def _check_sequence(sequence: Value) -> None:
    if not isinstance(sequence, list):
        raise SpecViolation("MalformedModel", "a sequence is wanted, and a tensor is given")


@rule("SequenceEmpty", raw=True)
def sequence_empty(call: Call) -> list[Value]:
    return []


@rule("SequenceConstruct", raw=True)
def sequence_construct(call: Call, *values: Value) -> list[Value]:
    return list(values)


@rule("SequenceInsert", raw=True)
def sequence_insert(
    call: Call, sequence: list[Value], value: Value, position: Value = None
) -> list[Value]:
    _check_sequence(sequence)
    size = len(sequence)
    at = size if position is None else _sequence_place(position, size, size + 1)
    return [*sequence[:at], value, *sequence[at:]]


@rule("SequenceErase", raw=True)
def sequence_erase(call: Call, sequence: list[Value], position: Value = None) -> list[Value]:
    _check_sequence(sequence)
    size = len(sequence)
    at = size - 1 if position is None else _sequence_place(position, size, size)
    return [*sequence[:at], *sequence[at + 1 :]]


@rule("SequenceAt", raw=True)
def sequence_at(call: Call, sequence: list[Value], position: Value) -> Value:
    _check_sequence(sequence)
    return sequence[_sequence_place(position, len(sequence), len(sequence))]


@rule("SequenceLength", raw=True)
def sequence_length(call: Call, sequence: list[Value]) -> Array:
    _check_sequence(sequence)
    return np.array(len(sequence), np.int64)


@rule("SplitToSequence", raw=True)
def split_to_sequence(call: Call, x: Value, sizes: Value = None) -> list[Value]:
    axis = call.attr("axis", 0)
    length = int(x.shape[axis])
    if sizes is None:
        parts, squeezed = [1] * length, not call.attr("keepdims", 1)
    else:
        given, squeezed = array(sizes), False
        parts = [int(each) for each in given.reshape(-1)]
        if not given.ndim:
            step = parts[0]
            parts = [min(step, length - start) for start in range(0, length, step)]
    found = pieces(value_as_tensor(x), parts, axis)
    return [wf.squeeze(each, axis=axis) for each in found] if squeezed else list(found)


@rule("ConcatFromSequence", raw=True)
def concat_from_sequence(call: Call, sequence: list[Value]) -> Value:
    _check_sequence(sequence)
    axis = call.need("axis")
    if all(map(is_array, sequence)):
        return (
            np.stack(sequence, axis) if call.attr("new_axis", 0) else np.concatenate(sequence, axis)
        )
    parts = [value_as_tensor(each) for each in sequence]
    return wf.stack(parts, axis=axis) if call.attr("new_axis", 0) else wf.concat(parts, axis=axis)


@rule("SequenceMap", raw=True)
def sequence_map(call: Call, sequence: list[Value], *more: Value) -> tuple[list[Value], ...]:
    _check_sequence(sequence)
    body = call.need("body")
    rows = []
    for index, first in enumerate(sequence):
        rest = [each[index] if isinstance(each, list) else each for each in more]
        rows.append(call.run(body, [first, *rest]))
    return tuple([row[i] for row in rows] for i in range(len(body.outputs)))


@rule("OptionalHasElement", raw=True)
def optional_has_element(call: Call, x: Value = None) -> Array:
    return np.array(x is not None)


@rule("OptionalGetElement", raw=True)
def optional_get_element(call: Call, x: Value) -> Value:
    if x is None:
        raise SpecViolation("MalformedModel", "an optional without a value is read")
    return x
