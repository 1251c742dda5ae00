"""Horizontal fusion: equal elementwise kernels over arrays of different lengths in one launch, such
as an optimiser's update of every tensor of a model.

    which of the lists is this block's?    by the number of the block
    take_set
    for each turn: point = own block * grain + turn * threads * vector + thread * vector
        if it exists: read, compute, store

Lists of one length follow one another, each with as many blocks as it takes: the number of a block
is compared with where each length begins. That is a few numbers in the code, the same for all
threads. There is no table to read but that of the buffers, and the code does not grow with the
number of lists.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Final, TypeAlias

from weft.codegen.gpu import ir
from weft.codegen.gpu.body.accept import MAX_POINTS
from weft.codegen.gpu.body.scopes import Scope, group_at
from weft.codegen.gpu.ir.scalar import BLOCK, Lit, Name, Scalar
from weft.codegen.gpu.maps.map import Map
from weft.codegen.gpu.template import Job
from weft.plan.ir import MapPlan

Lengths: TypeAlias = Sequence[tuple[int, int]]
"""Elements of lists, and how many of that length follow one another."""
MOST_LENGTHS: Final = 64
"""That a block looks for its own among."""


def fits(length: int, plan: MapPlan) -> bool:
    """Whether a list of so many elements may be one of several that a plan is for."""
    return plan.block <= 1 and length % plan.vector == 0 and length // plan.vector < MAX_POINTS


def build(job: Job[MapPlan], lengths: Lengths, name: str) -> ir.Kernel:
    """The dialect kernel of lists of one text, `name` in the generated source; `job` is that of one
    of them."""
    made = _Together(job, lengths).kernel_called(name, job.tensors)
    return replace(made, sets=sum(count for _, count in lengths))


class _Together(Map):
    """A kernel that goes through memory in order (`region.flat_maps`), over several lists."""

    def __init__(self, job: Job[MapPlan], lengths: Lengths) -> None:
        super().__init__(job.short, job.refs, job.plan, job.target)
        self.counts = [count for _, count in lengths]
        self.vectors = [length // job.plan.vector for length, _ in lengths]
        self.blocks = [-(-length // job.plan.grain) for length, _ in lengths]

    @property
    def grid(self) -> int:
        return sum(map(int.__mul__, self.blocks, self.counts))

    def work(self) -> Iterator[ir.Stmt]:
        blocks = [0, *map(int.__mul__, self.blocks, self.counts)]
        begins, firsts = [*accumulate(blocks[:-1])], [*accumulate([0, *self.counts[:-1]])]
        for place, begin in enumerate(begins[1:], 1):
            yield ir.Let(f"past{place}", begin <= BLOCK)
        inside, each = Name("inside"), Name("each")
        yield ir.Let(inside.name, BLOCK - _choose_by_length(begins))
        yield ir.Let(each.name, _choose_by_length(self.blocks))
        yield ir.Let("own", inside % each)
        yield ir.Let("vectors", _choose_by_length(self.vectors))
        yield ir.TakeSet(_choose_by_length(firsts) + inside // each)
        yield from self.turns(Name("own"), Name("vectors"))

    def point(self, root: Scope) -> None:
        """Everything for the vector with the number `point`, which says where it lies."""
        axes: dict[str, Scalar] = dict.fromkeys(self.extent.sizes, Lit(0))
        group = group_at(root, axes, self.axis, self.plan.vector, Lit(1))
        self.store_points(group, self.axis, axes)


def _choose_by_length(values: Sequence[int]) -> Scalar:
    """Of numbers for all lengths that of the block's."""
    found: Scalar = Lit(values[0])
    for place, (before, value) in enumerate(pairwise(values), 1):
        # Exactly the flags of the lengths that begin at or before this block are 1: the differences
        # up to the block's own length add up to its value.
        found = found + Name(f"past{place}") * (value - before)
    return found
