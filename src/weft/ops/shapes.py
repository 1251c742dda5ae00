"""A program with dynamic dims, made ready for each set of sizes it meets."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from weft.driver.backends import Backend
from weft.driver.execute import Prepared
from weft.ops.graph.cache import PROGRAMS
from weft.ops.graph.hooks import execute
from weft.ptir.ir import Program
from weft.ptir.passes import optimise
from weft.ptir.specialise import bind_shapes, specialise

_MOST_SIZES = 64


class ByShape:
    """One program, traced and optimised once; sizes are filled in when it runs."""

    def __init__(self, program: Program, backend: Backend) -> None:
        self.program = optimise(program)
        self.backend = backend
        self._ready: OrderedDict[tuple[tuple[str, int], ...], Prepared] = OrderedDict()

    def execute(self, inputs: Sequence[Any], *, seed: int = 0) -> list[Any]:
        """The flattened results, as the backend stores them."""
        sizes = bind_shapes(self.program.main.parameters, [storage.shape for storage in inputs])
        key = tuple(sorted(sizes.items()))
        found = self._ready.get(key)
        if found is None:
            found = self._ready[key] = PROGRAMS.compile(
                specialise(self.program, sizes), self.backend
            )
            if len(self._ready) > _MOST_SIZES:
                self._ready.popitem(last=False)
        return execute(found, inputs, seed)
