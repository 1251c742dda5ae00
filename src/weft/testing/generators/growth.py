"""Growing a random body: one random op after the other."""

from __future__ import annotations

from functools import lru_cache

from weft.ptir.op import Op
from weft.testing.generator import Generator, Skip
from weft.testing.generators.registry import GENERATORS, IDIOMS, Entry

MAX_DEPTH = 2


def allowed_entries(g: Generator) -> tuple[Entry, ...]:
    """What may come next: ops of which at least one spelling is allowed, and idioms."""
    nested = g.rules.control_flow and g.depth < MAX_DEPTH
    found = [
        entry
        for cls, entry in _entries_of(g.rules.spellings)
        if (g.setting.focus is None or cls.name in g.setting.focus)
        and (nested or not entry.control_flow)
    ]
    return (*found, *(entry for entry in IDIOMS if g.allows(*entry.needs)))


@lru_cache(maxsize=64)
def _entries_of(spellings: frozenset[str]) -> tuple[tuple[type[Op], Entry], ...]:
    return tuple(
        (cls, entry)
        for cls, entry in GENERATORS.items()
        if not spellings.isdisjoint(cls.spellings())
    )


def grow(g: Generator, size: int) -> None:
    """Add ops until the body has `size` instructions more, or nothing fits any further."""
    entries = allowed_entries(g)
    weights = [entry.weight for entry in entries]
    wanted = len(g.draft.steps) + size
    attempts = 2 * size + 4 if g.depth else 8 * size + 16
    for _ in range(attempts if entries else 0):
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
