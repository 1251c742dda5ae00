"""Values that wait for others."""

from __future__ import annotations

from weft.foundation.dtypes import ANY
from weft.ptir.ops.scheduling import Barrier
from weft.testing.generator import Generator
from weft.testing.generators.registry import generates


@generates(Barrier, weight=1)
def barrier(g: Generator) -> None:
    x, after = g.pick(ANY), g.pick(ANY)
    g.emit(Barrier(), x, after, facts=x.facts)
