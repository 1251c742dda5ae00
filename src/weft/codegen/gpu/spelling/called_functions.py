"""Which device functions of the prelude a kernel calls, directly or not. Only those are compiled:
the whole prelude would take a tenth of the compile time of a short kernel.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final

from weft.foundation.records import dataclass

_WORD: Final = re.compile(r"[A-Za-z_]\w*")
_FUNCTION: Final = re.compile(r"(?:template <.*> )?INLINE [\w *&]*?(\w+)\(")
_ABOVE: Final = re.compile(r"//|template <(?!.*\b(?:INLINE|struct)\b)")
"""How lines begin that belong to what follows."""


@dataclass(frozen=True)
class _Part:
    """A function, or, without a name, what stands between functions."""

    name: str
    text: str
    words: frozenset[str]


def only_called(texts: Iterable[str], body: Sequence[str]) -> list[str]:
    """Texts without the functions that neither the lines of a kernel nor others of them name."""
    parts = [part for text in texts for part in _parts(text)]
    waiting = {part for part in parts if part.name}
    words = set(_WORD.findall("\n".join(body))).union(*(p.words for p in parts if not p.name))
    while found := {part for part in waiting if part.name in words}:
        waiting -= found
        words.update(*(part.words for part in found))
    return [part.text for part in parts if part not in waiting]


@lru_cache(maxsize=256)
def _parts(text: str) -> tuple[_Part, ...]:
    return tuple(
        _Part(name, "\n".join(lines), frozenset(_WORD.findall("\n".join(lines))))
        for name, lines in _split_functions(text.rstrip("\n").split("\n"))
    )


def _split_functions(lines: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """The lines of each part, with the name of a function; a function ends where its braces do."""
    held: list[str] = []
    name, depth = "", 0
    for line in lines:
        held.append(line)
        found = None if name else _FUNCTION.match(line)
        if found is not None and not line.endswith("\\"):
            name, depth = found[1], 0
        depth += line.count("{") - line.count("}")
        if (name and (depth or "}" not in line)) or (not name and _ABOVE.match(line)):
            continue
        yield name, held
        held, name = [], ""
    if held:
        yield "", held
