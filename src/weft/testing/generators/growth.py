"""Letting a body grow: one random op after the other."""

from __future__ import annotations

from weft.ptir.op import Op
from weft.testing.generator import Generator, Skip
from weft.testing.generators.registry import GENERATORS, IDIOMS, Entry

MAX_DEPTH = 2


def allowed_entries(g: Generator) -> list[Entry]:
    """What may come next: ops of which at least one spelling is allowed, and idioms."""
    nested = g.rules.control_flow and g.depth < MAX_DEPTH
    found = [
        entry
        for cls, entry in GENERATORS.items()
        if _wanted(g, cls) and (nested or not entry.control_flow)
    ]
    return found + IDIOMS


def _wanted(g: Generator, cls: type[Op]) -> bool:
    focus = g.setting.focus
    in_focus = focus is None or cls.name in focus
    return in_focus and any(g.allows(spelling) for spelling in cls.spellings())


def grow(g: Generator, size: int) -> None:
    """Add ops until the body has `size` instructions more, or nothing fits any further."""
    entries = allowed_entries(g)
    weights = [entry.weight for entry in entries]
    wanted = len(g.draft.steps) + size
    for _ in range(8 * size + 16):
        if len(g.draft.steps) >= wanted:
            return
        attempt(g, g.choices.weighted(entries, weights))


def attempt(g: Generator, entry: Entry) -> bool:
    """One op, or nothing at all."""
    mark = g.draft.mark()
    try:
        entry.generate(g)
    except Skip:
        g.draft.back_to(mark)
        return False
    return True
