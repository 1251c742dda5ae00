"""Values of a row that the first pass over it writes into scratch and the later ones read.

Each kept value has scratch of its own, with an element for every point of the reduced axes it lives
over and for every column of the tile. The elements that lanes reach together are neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.codegen.cpu import ir
from weft.codegen.cpu.scopes import LANES, Scope, Wrapper
from weft.codegen.cpu.tiling import Tiling
from weft.foundation.dtypes import DType
from weft.foundation.index_expr import Expr, axes_of, axis, constant
from weft.plan.rows import reduced_axes
from weft.region.ir import Kernel, Let


class KeptRow:
    """The kept values of one kernel: where they lie, and which are written already."""

    def __init__(self, kernel: Kernel, tiling: Tiling, first_buffer: int) -> None:
        self.sizes = kernel.sizes
        self.reduced = reduced_axes(kernel)
        self.vector_axis = tiling.vector_axis
        self.buffers = {name: first_buffer + i for i, name in enumerate(tiling.kept)}
        self.dtypes = {name: kernel.let(name).dtype for name in tiling.kept}
        self.elements = dict.fromkeys(tiling.kept, 0)
        self.wrappers: list[Wrapper] = []
        self._pass = 0
        self._written: dict[str, int] = {}
        """In which pass over this tile's row."""

    def begin_tile(self, wrappers: Sequence[Wrapper]) -> None:
        """From here on another row is computed."""
        self.wrappers = sorted(wrappers, key=lambda wrapper: wrapper[2] is LANES)
        self._written = {}

    def begin_pass(self) -> None:
        """From here on the row is gone over again."""
        self._pass += 1

    def is_kept(self, name: str) -> bool:
        return name in self.buffers

    def is_written(self, name: str) -> bool:
        """Whether an earlier pass has gone over all of it."""
        return self._written.get(name, self._pass) < self._pass

    def load(self, let: Let, home: Scope) -> ir.Load:
        return ir.Load(let.name, self.buffers[let.name], self._address(let, home))

    def store(self, let: Let, home: Scope) -> ir.Store:
        self._written.setdefault(let.name, self._pass)
        return ir.Store(self.buffers[let.name], self._address(let, home), let.name, ())

    def scratch(self) -> tuple[tuple[DType, int], ...]:
        return tuple((self.dtypes[name], count) for name, count in self.elements.items())

    def _address(self, let: Let, home: Scope) -> Expr:
        bindings = home.bindings()
        columns = {v for a in let.axes if a not in self.reduced for v in axes_of(bindings[a])}
        rows = sorted(
            (a for a in let.axes if a in self.reduced), key=lambda a: a == self.vector_axis
        )
        used = [(var, count) for var, count, _ in self.wrappers if var in columns]
        address = constant(0)
        for name in rows:
            address = address * self.sizes[name] + bindings[name]
        for var, count in used:
            address = address * count + axis(var)
        size = math.prod(self.sizes[a] for a in rows) * math.prod(count for _, count in used)
        self.elements[let.name] = max(self.elements[let.name], size)
        return address
