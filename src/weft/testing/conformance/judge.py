"""Judging a backend's results: nothing to say, or what is wrong in detail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.foundation.dtypes import DType, as_dtype
from weft.foundation.errors import UserError
from weft.testing.conformance.case import Holds, Values, Wanted
from weft.testing.conformance.oracles.rounding import rounded
from weft.testing.conformance.tolerance import Exact, ulp

Array: TypeAlias = NDArray[Any]

SHOWN = 8
"""How many wrong elements are listed."""
LISTED = 24
"""How many elements of a tensor are written out."""


@dataclass(frozen=True)
class WrongElement:
    """An element that does not pass, all in text."""

    index: str
    expected: str
    got: str
    difference: str
    operands: str = ""
    """The inputs at this place, where every input has the shape of the result."""


@dataclass(frozen=True)
class Problem:
    """What is wrong with the results of a case."""

    reason: str
    elements: tuple[WrongElement, ...] = ()


def judge(expected: Values | Holds, got: Sequence[Any], inputs: Sequence[Array]) -> Problem | None:
    """The first problem with the results, if there is one."""
    kinds = (
        [(want.dtype, want.exact.shape) for want in expected.wanted]
        if isinstance(expected, Values)
        else list(expected.kinds)
    )
    problem = _wrong_types(kinds, got)
    if problem:
        return Problem(problem)
    with np.errstate(all="ignore"):
        if isinstance(expected, Holds):
            said = expected.check(got)
            return Problem(f"{expected.property}: {said}") if said else None
        for position, (want, array) in enumerate(zip(expected.wanted, got, strict=True)):
            found = _compare(want, array, inputs)
            if found:
                which = f"result {position}: " if len(got) > 1 else ""
                return Problem(which + found.reason, found.elements)
    return None


def _wrong_types(kinds: Sequence[tuple[DType, tuple[int, ...]]], got: Sequence[Any]) -> str:
    if len(got) != len(kinds):
        return f"there are {len(got)} results, not {len(kinds)}"
    for position, ((dtype, shape), result) in enumerate(zip(kinds, got, strict=True)):
        if not isinstance(result, np.ndarray):
            return f"result {position} is of type {type(result).__name__}, not an array"
        if result.dtype != dtype.numpy or result.shape != shape:
            return f"result {position} is {_type_text(result)}, not {dtype}{list(shape)}"
    return ""


def _type_text(array: Array) -> str:
    try:
        return f"{as_dtype(array.dtype)}{list(array.shape)}"
    except UserError:
        return f"{array.dtype}{list(array.shape)}"


def _compare(want: Wanted, got: Array, inputs: Sequence[Array]) -> Problem | None:
    passed = want.rule.accepts(got, want.exact, want.dtype)
    wrong = np.argwhere(~passed)
    if not len(wrong):
        return None
    operands = inputs if all(x.shape == got.shape for x in inputs) else ()
    elements = tuple(
        _describe_element(want, got, tuple(index), operands) for index in wrong[:SHOWN]
    )
    first = elements[0]
    amount = "the element is" if got.size == 1 else f"{len(wrong)} of {got.size} elements are"
    reason = (
        f"{amount} wrong ({want.rule}); at {first.index} it is {first.got}, not {first.expected}"
    )
    return Problem(reason, elements)


def _describe_element(
    want: Wanted, got: Array, index: tuple[Any, ...], operands: Sequence[Array]
) -> WrongElement:
    place = [int(i) for i in index]
    return WrongElement(
        str(place),
        show(expected_array(want)[index]),
        show(got[index]),
        _difference(want, got[index], index),
        ", ".join(show(operand[index]) for operand in operands),
    )


def expected_array(want: Wanted) -> Array:
    """What was expected, in the dtype of the result."""
    return want.exact if isinstance(want.rule, Exact) else rounded(want.exact, want.dtype)


def _difference(want: Wanted, got: Any, index: tuple[Any, ...]) -> str:
    """How far an element is off: in ulp for floats, as a number for integers."""
    dtype, exact = want.dtype, want.exact[index]
    if dtype.is_integer:
        return f"{int(got) - int(exact):+d}"
    if not (dtype.is_float or dtype.is_complex):
        return ""
    wide: Any = np.clongdouble if dtype.is_complex else np.longdouble
    distance = abs(wide(got) - wide(exact))
    if not np.isfinite(distance):
        return ""
    spacing = float(ulp(np.asarray(exact), dtype))
    return f"{float(distance):.3g} ({float(distance) / spacing:.3g} ulp)"


def show(value: Any) -> str:
    """One element, as short as it can be said exactly."""
    if isinstance(value, np.bool_ | bool):
        return "true" if value else "false"
    dtype = as_dtype(value.dtype)
    if dtype.is_integer:
        return str(int(value))
    if dtype.is_complex:
        return f"({_number_text(value.real)}, {_number_text(value.imag)})"
    return _number_text(value)


def _number_text(value: Any) -> str:
    if value.dtype.kind == "V" or value.dtype.itemsize < 4:
        return repr(float(value))
    return str(value)


def listing(array: Array) -> str:
    """A tensor in a line: its type and its first elements."""
    flat = array.reshape(-1)
    elements = ", ".join(show(value) for value in flat[:LISTED])
    more = f", ... ({flat.size - LISTED} more)" if flat.size > LISTED else ""
    return (
        f"{_type_text(array)}: {elements}{more}"
        if flat.size
        else f"{_type_text(array)}: no elements"
    )
