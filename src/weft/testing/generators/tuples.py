"""Tuples of values that are there."""

from __future__ import annotations

from weft.foundation.dtypes import ANY
from weft.ptir.ops.tuples import MakeTuple
from weft.testing.generator import Generator
from weft.testing.generators.registry import generates


@generates(MakeTuple, weight=1)
def make_tuple(g: Generator) -> None:
    items = [g.pick(ANY) for _ in range(g.choices.integer(1, 3))]
    g.emit_tuple(MakeTuple(), *items, facts=[item.facts for item in items])
