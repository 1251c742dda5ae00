"""Checks of an edited book against the one that was made: all that follows from the graph is fixed.
Which values are stored (`materialise`) and how fine the atoms are is free.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Final

from weft.foundation.errors import Finding, SpecViolation
from weft.indexbook.ir import IndexBook, IndexInfo

FACT: Final = "E1306 BookDisagrees"
_FREE: Final = frozenset({"atoms", "materialise"})


def agree(read: IndexBook, made: IndexBook) -> None:
    """Raise where a book that was read says something of the graph that is not so."""
    found = list(_book_differences(read, made))
    if found:
        raise SpecViolation.of(found)


def _book_differences(read: IndexBook, made: IndexBook) -> Iterator[Finding]:
    if read.infos.keys() != made.infos.keys():
        odd = min(read.infos.keys() ^ made.infos.keys())
        why = "the book has it, the graph does not" if odd in read.infos else "it is missing"
        yield Finding(FACT, odd, why)
    for value_id in read.infos.keys() & made.infos.keys():
        yield from _field_findings(value_id, read.infos[value_id], made.infos[value_id])


def _field_findings(value_id: str, read: IndexInfo, made: IndexInfo) -> Iterator[Finding]:
    for field in fields(IndexInfo):
        if field.name not in _FREE and getattr(read, field.name) != getattr(made, field.name):
            yield Finding(
                FACT,
                value_id,
                f"the field {field.name} is not what follows from the graph",
                "change the graph (stage tiny); atoms and materialise are the book's to choose",
            )
