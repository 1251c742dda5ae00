"""Where the elements of an array begin.

NumPy's own answer, `array.ctypes.data`, takes a microsecond or two: longer than a small kernel. In
CPython the object of an array begins with the head that all objects have, and the pointer to its
elements comes next. That is looked at on one array before it is relied upon.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Few: TypeAlias = list[tuple[int, memoryview, int, int]]
"""Numbers of arrays, each with a table, a place in it that points to the array, and the offset
there."""
_HEAD: Final = object.__basicsize__
_word: Final = ctypes.c_size_t.from_address


def _address_by_asking(array: Array) -> int:
    return int(array.ctypes.data)


def _looked_up(array: Array) -> int:
    return _word(id(array) + _HEAD).value


def _choose_way() -> Callable[[Array], int]:
    """The quick way, where it says of an array what NumPy says."""
    if sys.implementation.name != "cpython" or np.ndarray.__basicsize__ <= _HEAD:
        return _address_by_asking
    probe = np.zeros(8, np.uint8)[3:]
    return _looked_up if _looked_up(probe) == _address_by_asking(probe) else _address_by_asking


address_of: Final[Callable[[Array], int]] = _choose_way()
"""The address of an array's first element."""


def few_words(changing: Mapping[int, Iterable[tuple[memoryview, int, int]]]) -> Few | None:
    """All words that point to arrays, by the numbers of these, where each has one or two; else
    None: then it is quicker to ask for each address once."""
    found = [(number, *word) for number, words in changing.items() for word in words]
    return found if len(found) <= 2 * len(changing) else None


def point_words(few: Few, arrays: Sequence[Array]) -> None:
    """Let words point to these arrays."""
    for number, table, place, offset in few:
        table[place] = address_of(arrays[number]) + offset
