"""Fast comparison of lists by the identity of their objects.

To compare a list with what it held before, object by object, takes a loop of some tens of
nanoseconds each. In CPython a list is a block of pointers to its objects, and blocks of memory are
compared at once. That is looked at on one list before it is relied upon.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any, Final

_WORD: Final = ctypes.sizeof(ctypes.c_void_p)
_ITEMS: Final = object.__basicsize__ + _WORD
"""Where in a list the address of its block is: behind what objects begin with, and its length."""
_word: Final = ctypes.c_size_t.from_address
_bytes_at: Final = ctypes.string_at


def _ids_by_asking(items: list[Any]) -> object:
    return list(map(id, items))


def _looked_up(items: list[Any]) -> object:
    return _bytes_at(_word(id(items) + _ITEMS).value, _WORD * len(items)) if items else b""


def _choose_way() -> Callable[[list[Any]], object]:
    """The quick way, where it shows what a list holds."""
    if sys.implementation.name != "cpython" or list.__basicsize__ < _ITEMS + _WORD:
        return _ids_by_asking
    # Five: most versions of Python make room for more than a list holds, which must not show.
    probe = [object() for _ in range(5)]
    wanted = b"".join(id(each).to_bytes(_WORD, sys.byteorder) for each in probe)
    return _looked_up if _looked_up(probe) == wanted else _ids_by_asking


identities: Final[Callable[[list[Any]], object]] = _choose_way()
"""Which objects a list holds, in order: equal for two lists exactly where these are the same
objects, as long as they live."""
