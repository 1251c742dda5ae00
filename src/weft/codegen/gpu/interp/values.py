"""Statements on single values, for the lanes of a warp."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final, Protocol

import numpy as np

from weft.codegen.gpu.interp.elements import apply, in_range, load_element
from weft.codegen.gpu.interp.memory import Array
from weft.codegen.gpu.interp.races import Hazard
from weft.codegen.gpu.interp.scalars import ALL_LANES, Lanes, Value, among, is_whole, truth
from weft.codegen.gpu.ir import values
from weft.codegen.gpu.ir.element_ops import ElementOp
from weft.codegen.gpu.ir.scalar import Scalar
from weft.foundation import functions, numeric, philox
from weft.foundation.dtypes import BY_NAME, SI64, UI32, DType
from weft.foundation.errors import SpecViolation
from weft.foundation.radix_sort import sort_keys

_LANE = np.arange(32)
_ALL = (32,)
_OF_ZEROS: Final = ("div", "fmod")
"""Functions of integers that nobody may divide by zero."""


class Warp(Protocol):
    """What these statements need of the warp that runs them."""

    elements: dict[str, Array]
    dtypes: dict[str, DType]
    names: dict[str, Value]

    @property
    def block(self) -> Any: ...

    def value(self, expression: Any) -> Value: ...


def keep(warp: Warp, name: str, dtype: DType, array: Array) -> None:
    """Name a value: 32 elements of a dtype."""
    found = np.asarray(array, dtype.numpy)
    warp.elements[name] = found if found.shape == _ALL else np.broadcast_to(found, _ALL)
    warp.dtypes[name] = dtype


def run_value(node: values.ValueStmt, warp: Warp, mask: Lanes) -> None:
    """Carry out one statement."""
    match node:
        case values.Compute(op=op):
            _compute(op, warp, mask)
        case values.Assign():
            _assign(node, warp, mask)
        case values.ReadParam(name=name):
            source = warp.block.arrays[node.buffer]
            in_range(source, np.asarray([node.element]))
            warp.names[name] = min(max(int(source[node.element]), node.low), node.high)
        case values.LoadVector():
            _load_vector(node, warp, mask)
        case values.LoadAcross():
            _load_across(node, warp, mask)
        case values.IndexValue(name=name, dtype=dtype, value=value):
            number = np.asarray(warp.value(value), np.int64)
            keep(warp, name, dtype, numeric.cast(number, SI64, dtype))
        case values.Words():
            _run_words(node, warp, mask)
        case values.Variable(name=name, dtype=dtype, start=start):
            keep(warp, name, dtype, np.asarray(start))
        case values.Choose(name=name, dtype=dtype, cond=cond, x=x, y=y):
            chosen = np.where(truth(warp.value(cond)), warp.elements[x], warp.elements[y])
            keep(warp, name, dtype, chosen)
        case values.Shuffle(name=name, dtype=dtype, source=source, mask=bits):
            if not is_whole(mask):
                raise Hazard("an exchange is reached by part of a warp")
            keep(warp, name, dtype, warp.elements[source][_LANE ^ bits])
        case values.ShuffleDown(name=name, dtype=dtype, source=source, count=count):
            if not is_whole(mask):
                raise Hazard("an exchange is reached by part of a warp")
            # A lane with nobody so far behind it gets its own value, as the instruction does.
            behind = np.where(_LANE + count < _LANE.size, _LANE + count, _LANE)
            keep(warp, name, dtype, warp.elements[source][behind])
        case values.Alike():
            _run_alike(node, warp, mask)
        case values.SortKey(name=name, dtype=dtype, source=source, descending=descending):
            keep(warp, name, dtype, sort_keys(warp.elements[source], descending))
        case values.StoreElement(source=source):
            _store(node, (source,), warp, mask)
        case values.StoreVector(sources=sources):
            _check_alignment(node.offset, len(sources), warp, mask)
            _store(node, sources, warp, mask)
        case values.CombineElement():
            _combine(node, warp, among(mask, warp.value(node.guard)))
        case values.PlaceOf(name=name, source=source, size=size):
            warp.names[name] = _clip_place(warp.elements[source], size)
        case values.Report():
            _run_report(node, warp, among(mask, warp.value(node.guard)))


def _combine(node: values.CombineElement, warp: Warp, lanes: Lanes) -> None:
    target, place = warp.block.arrays[node.buffer], _lanes_at(node.offset, warp)[lanes]
    in_range(target, place)
    combine = {"add": np.add, "max": np.maximum, "min": np.minimum}[node.fn]
    combine.at(target, place, warp.elements[node.source][lanes])


def _clip_place(value: Array, size: int) -> Array:
    if value.dtype == np.uint64:  # of which 64 signed bits do not hold every one
        value = np.minimum(value, np.uint64(size - 1))
    return np.clip(value.astype(np.int64), 0, size - 1)


class Reported(SpecViolation):
    """What a kernel leaves in the error word: a check by number, and an element."""

    def __init__(self, number: int, element: int, why: str) -> None:
        super().__init__("Reported", f"check {number}: {why}")
        self.number, self.element = number, element


def _run_report(node: values.Report, warp: Warp, lanes: Lanes) -> None:
    value = warp.elements[node.value]
    broken = {
        "inside": (value < 0) | (value >= node.size),
        "nonzero": value == 0,
        "nonnegative": value < 0,
    }[node.rule]
    if (broken & lanes).any():
        element = np.broadcast_to(np.asarray(warp.value(node.element)), (32,))
        first = int(element[broken & lanes].min())
        why = functions.broken_at(functions.broken_rule(node.rule, node.size), first)
        raise Reported(node.number, first, why)


@cache
def _as_it_is(fn: str, dtype: str) -> Callable[[Array, Array], Array] | None:
    """A function of two numbers of a dtype where it is computed in that dtype, whatever they are;
    nearly all ops of a long loop are such."""
    kind = BY_NAME[dtype]
    plain = fn in functions.BINARY.keys() - functions.ON_BITS and fn not in _OF_ZEROS
    return functions.BINARY[fn] if plain and numeric.compute_dtype(kind) is kind else None


def _assign(node: values.Assign, warp: Warp, mask: Lanes) -> None:
    lanes, new = among(mask, warp.value(node.guard)), warp.elements[node.source]
    if lanes is not ALL_LANES:
        new = np.where(lanes, new, warp.elements[node.name])
    keep(warp, node.name, warp.dtypes[node.name], new)


def _compute(op: ElementOp, warp: Warp, mask: Lanes) -> None:
    if len(op.args) == 2 and not op.deferred_rounding:
        lhs, rhs = op.args
        function = _as_it_is(op.fn, op.dtype.name)
        if function is not None and warp.dtypes[lhs] is warp.dtypes[rhs] is op.dtype:
            keep(warp, op.name, op.dtype, function(warp.elements[lhs], warp.elements[rhs]))
            return
    arguments = {name: warp.elements[name] for name in op.args}
    if op.fn in _OF_ZEROS and op.dtype.is_integer:
        # Lanes without a point hold zeros; what they divide by does not matter.
        divisor = arguments[op.args[1]]
        arguments[op.args[1]] = np.where(divisor == 0, divisor.dtype.type(1), divisor)
    keep(warp, op.name, op.dtype, apply(op, arguments, warp.dtypes))


def _run_alike(node: values.Alike, warp: Warp, mask: Lanes) -> None:
    if not is_whole(mask):
        raise Hazard("lanes are compared by part of a warp")
    number = _lanes_at(node.number, warp)
    if number.min() < 0 or number.max() >= 1 << node.bits:
        raise Hazard(f"a number among {sorted(set(number.tolist()))} has not {node.bits} bits")
    same = number[:, None] == number
    before, count = node.names
    # Row n of the matrix has the lanes that agree with lane n: those below the diagonal come before
    # it.
    warp.names[before] = np.tril(same, -1).sum(axis=1)
    warp.names[count] = same.sum(axis=1)


def _run_words(node: values.Words, warp: Warp, mask: Lanes) -> None:
    element = np.where(mask, _lanes_at(node.element, warp), 0)
    count = len(node.names)
    if (element % count).any():
        raise Hazard(f"{count} words begin at no multiple of {count}")
    # Lanes on padding have read no state, and hold zeros where the others have theirs.
    seed, offset = warp.elements[node.seed], warp.elements[node.offset]
    made = philox.words_at(element + np.arange(count)[:, None], seed, offset)
    for name, found in zip(node.names, made, strict=True):
        keep(warp, name, UI32, found)


def _lanes_at(offset: Scalar, warp: Warp) -> Array:
    found = warp.value(offset)
    return np.full(_ALL, found) if isinstance(found, int) else found


def _check_alignment(offset: Scalar, count: int, warp: Warp, lanes: Lanes) -> None:
    if (_lanes_at(offset, warp)[lanes] % count).any():
        raise Hazard(f"a vector of {count} begins at no multiple of {count} elements")


def _load_vector(node: values.LoadVector, warp: Warp, mask: Lanes) -> None:
    lanes = among(mask, warp.value(node.guard))
    source = warp.block.arrays[node.buffer]
    _check_alignment(node.offset, len(node.names), warp, lanes)
    first = warp.value(node.offset)
    for number, name in enumerate(node.names):
        found = load_element(source, first + number, lanes, 0)
        keep(warp, name, node.dtype, found)


def _load_across(node: values.LoadAcross, warp: Warp, mask: Lanes) -> None:
    source = warp.block.arrays[node.buffer]
    count, first = _lanes_at(node.count, warp), warp.value(node.offset)
    for number, name in enumerate(node.names):
        lanes = mask & (number < count)
        keep(warp, name, node.dtype, load_element(source, first + number, lanes, 0))


def _store(
    node: values.StoreElement | values.StoreVector,
    sources: tuple[str, ...],
    warp: Warp,
    mask: Lanes,
) -> None:
    lanes = among(mask, warp.value(node.guard))
    target = warp.block.arrays[node.buffer]
    for number, name in enumerate(sources):
        place = _lanes_at(node.offset, warp)[lanes] + number
        in_range(target, place)
        # Which of two would stay depends on the machine.
        if len(set(place.tolist())) != place.size:
            raise Hazard("two lanes store the same element")
        target[place] = warp.elements[name][lanes]
