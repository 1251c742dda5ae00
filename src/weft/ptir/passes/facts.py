"""Analyses of control flow for passes: what a region reaches, where random numbers are drawn, and
which symbols an instruction mentions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from weft.ptir.ir import Body, Instruction, Program
from weft.ptir.op import Op
from weft.ptir.ops.random import Drawing
from weft.ptir.specialise import is_static
from weft.ptir.types import Dim, Symbol, symbols_of


@dataclass(frozen=True)
class Facts:
    """Answers about one program, computed when first asked."""

    program: Program

    def reachable(self, roots: Iterable[int]) -> set[int]:
        """The regions with these ids and all that they run in turn."""
        found: set[int] = set()
        open_ids = list(roots)
        while open_ids:
            region_id = open_ids.pop()
            if region_id not in found:
                found.add(region_id)
                open_ids.extend(self._children.get(region_id, ()))
        return found

    def used_regions(self) -> set[int]:
        """The regions that some function reaches."""
        return self.reachable(
            child for f in self.program.functions for i in f.body for child in i.op.regions
        )

    # -- randomness ------------------------------------------------------------------------------

    def is_random(self, op: Op) -> bool:
        """Whether the op draws random numbers, itself or in a region it runs."""
        if op.random or not op.regions:
            return op.random
        return any(child in self._random_regions for child in op.regions)

    def is_removable(self, op: Op) -> bool:
        """Whether the op can go, when nothing reads its value, without changing what others draw.

        The numbers of a stream depend on how often it was drawn from before, so a stream must not
        lose a draw that comes before one that stays.
        """
        if not self.is_random(op):
            return True
        regions = self.reachable(op.regions)
        drawn = self._streams_of(op, regions)
        # A stream that nothing else draws from has no later draw whose number could change.
        alone = all(stream is not None and self._draws[stream] == 1 for stream in drawn)
        # Regions that somebody else runs as well draw there, too: all references must come from
        # within.
        inside = Counter(op.regions)
        for region_id in regions:
            inside.update(self._children.get(region_id, ()))
        return alone and all(self._references[r] == inside[r] for r in regions)

    def _streams_of(self, op: Op, regions: Iterable[int]) -> list[int | None]:
        ops = [op, *(i.op for r in regions for i in self.program.regions_by_id[r].body)]
        return [o.stream for o in ops if isinstance(o, Drawing)]

    # -- symbols ---------------------------------------------------------------------------------

    def mentioned(self, instruction: Instruction) -> set[Symbol]:
        """Symbols in the output type and attributes of an instruction and in the regions it
        runs."""
        if self.is_static:
            return set()
        found = _own_symbols(instruction)
        for region_id in self.reachable(instruction.op.regions):
            found |= self._region_symbols[region_id]
        return found

    # -- tables ----------------------------------------------------------------------------------

    @cached_property
    def is_static(self) -> bool:
        """Whether nothing mentions a symbol."""
        return is_static(self.program)

    @cached_property
    def _children(self) -> dict[int, tuple[int, ...]]:
        return {region.id: _run_by(region) for region in self.program.regions}

    @cached_property
    def _references(self) -> Counter[int]:
        return Counter(child for body in self.program.bodies for child in _run_by(body))

    @cached_property
    def _draws(self) -> Counter[int | None]:
        """How many instructions draw from each stream."""
        ops = (i.op for body in self.program.bodies for i in body.body)
        return Counter(op.stream for op in ops if isinstance(op, Drawing))

    @cached_property
    def _random_regions(self) -> set[int]:
        """The regions that draw, themselves or in a region they run."""
        parents: dict[int, list[int]] = {}
        for parent, children in self._children.items():
            for child in children:
                parents.setdefault(child, []).append(parent)
        found: set[int] = set()
        open_ids = [r.id for r in self.program.regions if any(i.op.random for i in r.body)]
        while open_ids:
            region_id = open_ids.pop()
            if region_id not in found:
                found.add(region_id)
                open_ids.extend(parents.get(region_id, ()))
        return found

    @cached_property
    def _region_symbols(self) -> dict[int, set[Symbol]]:
        return {
            region.id: {s for kind in region.parameters for s in symbols_of(kind)}.union(
                *(_own_symbols(i) for i in region.body)
            )
            for region in self.program.regions
        }


def _run_by(body: Body) -> tuple[int, ...]:
    return tuple(child for i in body.body for child in i.op.regions)


def _own_symbols(instruction: Instruction) -> set[Symbol]:
    found = set(symbols_of(instruction.output))

    def note(dim: Dim) -> Dim:
        if isinstance(dim, Symbol):
            found.add(dim)
        return dim

    instruction.op.with_dims(note)
    return found
