"""Pages of the explorer: their data as it was before it was made small, and an evil name."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Iterator
from typing import Any

from weft.explorer.packing import HOLE

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'"
"""A title that must be shown and not carried out."""


def data_of(text: str) -> Any:
    """What a page has, its programs as the records that they were made of."""
    found = re.search(r'id="data">([^<]*)</script>', text)
    assert found is not None
    data = json.loads(gzip.decompress(base64.b64decode(found[1])))
    return {**data, "programs": [unpacked(program) for program in data["programs"]]}


def unpacked(record: Any) -> Any:
    stages = [
        {**stage, "text": _lines(stage["text"]), "marks": _marks(json.loads(stage["marks"]))}
        for stage in record["stages"]
    ]
    for stage in stages:
        assert stage.pop("count") == len(stage["text"])
    return {
        **record,
        "stages": stages,
        "values": _values(record["values"]),
        "kernels": _kernels(record["kernels"]),
    }


def _lines(text: str) -> list[str]:
    packed = json.loads(text)
    if isinstance(packed, list):
        return packed
    kinds = [kind.split(HOLE) for kind in packed["kinds"]]
    before = [[0] * (len(parts) - 1) for parts in kinds]
    numbers = iter(packed["numbers"])
    found = []
    for kind in packed["order"]:
        before[kind] = [then + next(numbers) for then in before[kind]]
        pairs = zip(before[kind], kinds[kind][1:], strict=True)
        found.append(kinds[kind][0] + "".join(f"{number}{part}" for number, part in pairs))
    return found


def _steps(flat: Iterator[int], first: int) -> tuple[list[int], int]:
    found, last = [], first
    for _ in range(next(flat)):
        last += next(flat)
        found.append(last)
    return found, (found[0] if found else first)


def _marks(packed: Any) -> list[list[Any]]:
    flat, found, end, first = iter(packed["flat"]), [], 0, 0
    for gap in flat:
        start = end + gap
        end = start + next(flat)
        about, first = _steps(flat, first)
        name = next(flat)
        found.append([start, end, about, *([packed["names"][name - 1]] if name else [])])
    return found


def _values(packed: Any) -> list[list[Any]]:
    flat, words, found, number = iter(packed["flat"]), packed["words"], [], 0
    for step in flat:
        number += step
        op, kind, file, line, layer = (next(flat) for _ in range(5))
        uses = [number - next(flat) for _ in range(next(flat))]
        found.append([number, words[op], words[kind], words[file], line, words[layer], uses])
    return found


def _kernels(packed: Any) -> list[Any]:
    if not packed["count"]:
        return []
    lines = iter(_lines(packed["nests"]))
    named = json.loads(packed["inside"])
    values, inside = iter(packed["values"]), iter(named["flat"])
    found, first, second = [], 0, 0
    for at in range(packed["count"]):
        kernel = {name: column[at] for name, column in packed["columns"].items()}
        kernel["nest"] = "\n".join(next(lines) for _ in range(kernel["nest"]))
        kernel["fields"] = packed["plans"][kernel["fields"]]
        kernel["values"], first = _steps(values, first)
        kernel["inside"] = {}
        for _ in range(next(inside)):
            name = named["words"][next(inside)]
            kernel["inside"][name], second = _steps(inside, second)
        found.append(kernel)
    return found
