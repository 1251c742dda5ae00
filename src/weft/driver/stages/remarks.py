"""Source locations as comments in the texts of stages.

Every stage has names of its own; the id of the frontend's instruction and the user's line are the
same in all of them. In JSON they are a field, elsewhere a comment: a text with them reads back as
the same thing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from weft.driver.stages.links import Links
from weft.driver.stages.marks import marks_of, names_of
from weft.foundation.json_fields import ORIGIN
from weft.foundation.lines import Place

_JSON: Final = ("tiny", "indexbook", "poly_view", "region", "memory")
_MOST: Final = 4
"""Instructions that are named one by one."""


def with_origins(stage: str, text: str, links: Links) -> str:
    """The text of a stage, with the instruction and the line of the user beside each value."""
    if stage != "frontend" and stage not in _JSON:
        return text  # Plans are of kernels, and code has the names of the kernel in Region.
    lines = text.split("\n")
    names, kernels = names_of(stage, lines), list(links.kernels.values())
    for number, marks in marks_of(stage, lines, links).items():
        ids = [mark for mark in marks if mark >= 0]
        if number in names:
            inside = (kernels[-1 - mark].inside for mark in marks if mark < 0)
            ids = [found for each in inside for found in each.get(names[number], ())]
        if ids:
            lines[number] = _line_with_place(stage, lines[number], ids, links)
    return "\n".join(lines)


def _line_with_place(stage: str, line: str, ids: Sequence[int], links: Links) -> str:
    places = [links.program.locations.get((links.program.main.label, at), "") for at in ids]
    known = list(dict.fromkeys(str(place) for place in places if isinstance(place, Place)))
    if stage == "frontend":
        return f"{line}  # {', '.join(known)}" if known else line
    more = [f"and {len(ids) - _MOST} more"] if len(ids) > _MOST else []
    said = " ".join([*(f"%{at}" for at in ids[:_MOST]), *more, *known[:_MOST]])
    body = line.rstrip(",")
    if not body.endswith("}"):
        return line
    rest = line[len(body) :]
    return f"{body[:-1]}, {json.dumps(ORIGIN)}: {json.dumps(said)}}}{rest}"
