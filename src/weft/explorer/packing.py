"""Compression of the page's records: equal layers are written nearly once.

Lines of a stage that differ in their numbers alone are one line with holes, and its numbers: each
as what it is more than it was in the line of that kind before. In a model of equal layers these are
the same again and again, which is what gzip finds, however far apart the layers are. What only some
views show is JSON in a string, which a page takes apart when somebody looks at it. `unpack.js` is
the other direction.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

Json: TypeAlias = dict[str, Any]
HOLE: Final = "\0"
"""Where a number was."""
_NUMBER: Final = re.compile(r"(?<![\d.])(0|[1-9]\d{0,8})(?!\d)", re.ASCII)
"""Spelled in the one way in which a number of this value is written."""
_FEWEST: Final = 3
"""Lines of a kind, in the mean, from which on holes pay."""


def slimmed(record: Mapping[str, Any]) -> Json:
    """A record as `unpack.js` takes it."""
    stages = [
        {
            **stage,
            "count": len(stage["text"]),
            "text": _later(holed(stage["text"])),
            "marks": _later(_marks(stage["marks"])),
        }
        for stage in record["stages"]
    ]
    return {
        **record,
        "stages": stages,
        "values": _pack_instructions(record["values"]),
        "kernels": _kernels(record["kernels"]),
    }


def _later(data: Any) -> str:
    """What a page takes apart when it is first looked at."""
    return json.dumps(data, separators=(",", ":"))


def holed(lines: Sequence[str]) -> Json | list[str]:
    """Kinds of lines, which kind each line is, and the numbers of all lines; the lines themselves
    where too few are alike."""
    kinds: dict[str, int] = {}
    before: list[list[int]] = []
    order: list[int] = []
    numbers: list[int] = []
    for line in lines:
        if HOLE in line:
            return list(lines)
        parts = _NUMBER.split(line)
        found = [int(part) for part in parts[1::2]]
        kind = kinds.setdefault(HOLE.join(parts[::2]), len(kinds))
        if kind == len(before):
            before.append([0] * len(found))
        numbers += [now - then for now, then in zip(found, before[kind], strict=True)]
        before[kind] = found
        order.append(kind)
    if len(kinds) * _FEWEST > len(lines):
        return list(lines)
    return {"kinds": list(kinds), "order": order, "numbers": numbers}


def _marks(spans: Iterable[Sequence[Any]]) -> Json:
    """For each span of lines: how many lines after the last, how many lines, what it is about, and
    the number of its name from 1 on."""
    names: dict[str, int] = {}
    flat: list[int] = []
    end = first = 0
    for start, after, about, *name in spans:
        flat += [start - end, after - start]
        first = _pack_differences(about, first, flat)
        flat.append(names.setdefault(name[0], len(names)) + 1 if name else 0)
        end = after
    return {"names": list(names), "flat": flat}


def _pack_differences(numbers: Sequence[int], first: int, flat: list[int]) -> int:
    """Add how many numbers there are, and each as what it is more than the one before; the first as
    what it is more than `first`. Answers the first."""
    flat.append(len(numbers))
    before = first
    for number in numbers:
        flat.append(number - before)
        before = number
    return numbers[0] if numbers else first


class _Words:
    """Words by number, in the order in which they are first met."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def __call__(self, word: str) -> int:
        return self._numbers.setdefault(word, len(self._numbers))

    def all(self) -> list[str]:
        return list(self._numbers)


def _pack_instructions(rows: Iterable[Sequence[Any]]) -> Json:
    """Instructions: the step from the id before, four words, the line, and how far back each
    operand is."""
    words = _Words()
    flat: list[int] = []
    last = 0
    for number, op, kind, file, line, layer, uses in rows:
        flat += [number - last, words(op), words(kind), words(file), line, words(layer)]
        flat += [len(uses), *(number - use for use in uses)]
        last = number
    return {"words": words.all(), "flat": flat}


def _kernels(kernels: Sequence[Mapping[str, Any]]) -> Json:
    """A column for each field: what is alike stands together."""
    columns = {name: [kernel[name] for kernel in kernels] for name in (kernels or [{}])[0]}
    if not columns:
        return {"count": 0, "columns": {}}
    nests = [nest.split("\n") for nest in columns.pop("nest")]
    columns["nest"] = [len(lines) for lines in nests]
    flat: list[int] = []
    first = 0
    for about in columns.pop("values"):
        first = _pack_differences(about, first, flat)
    words = _Words()
    inside: list[int] = []
    first = 0
    for named in columns.pop("inside"):
        inside.append(len(named))
        for name, about in named.items():
            inside.append(words(name))
            first = _pack_differences(about, first, inside)
    plans: dict[str, int] = {}
    columns["fields"] = [
        plans.setdefault(json.dumps(fields), len(plans)) for fields in columns["fields"]
    ]
    return {
        "count": len(kernels),
        "columns": columns,
        "plans": [json.loads(fields) for fields in plans],
        "nests": _later(holed([line for lines in nests for line in lines])),
        "values": flat,
        "inside": _later({"words": words.all(), "flat": inside}),
    }
