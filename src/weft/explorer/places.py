"""Where in the text of a stage an error is: by its line number, or its path in the JSON."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

_LINE: Final = re.compile(r"\bline (\d+)")
_PATH: Final = re.compile(r" at [\w ]*?((?:\.\w+|\[\d+\])*): (?:field '([^']+)')?")
_STEP: Final = re.compile(r"\.(\w+)|\[(\d+)\]")
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')
Step = str | int
"""A field of an object, or a place in a list."""


def line_of(error: str, text: str) -> int:
    """The line of a text that an error is about, from 1 on; 0 where it does not say that."""
    told = _LINE.search(error)
    if told:
        return int(told[1])
    found = _PATH.search(error)
    if not found or not text.lstrip().startswith(("{", "[")):
        return 0
    steps: list[Step] = [name or int(number) for name, number in _STEP.findall(found[1])]
    return line_at(text, [*steps, *([found[2]] if found[2] else [])])


def line_at(text: str, wanted: Sequence[Step]) -> int:
    """The line where a part of a JSON text begins; where it is missing, that of the smallest part
    around it. 0 where nothing of the path is there."""
    path: list[Step] = []
    deepest, place, key, is_next = 0, 0, "", False
    for token in _TOKEN.finditer(text):
        if is_next:
            place, is_next = token.start(), False
        match token[0]:
            case "{":
                path.append("")
            case "[":
                path.append(0)
            case "}" | "]" if path:
                path.pop()
            case "," if path and isinstance(path[-1], int):
                path[-1] += 1
            case ":" if path:
                path[-1] = key
            case word:
                key = word[1:-1]
                continue
        depth = len(path)
        if depth > deepest and path == list(wanted[:depth]):
            deepest, place = depth, token.start()
            # An element of a list begins behind the bracket or comma before it.
            is_next = token[0] != ":"
    return text.count("\n", 0, place) + 1 if deepest else 0
