"""Kernels with reductions: a row is one point of the axes that no reduction removes.

`threads` threads share a row, `rows_per_block` rows a block. Each thread takes every `threads`-th
vector of the row; its partial results are merged by exchanges inside a warp, then through shared
memory. With `keep_row` every element of a row stays in registers from the first pass to the last;
otherwise each reduction, and storing, is a loop that reads the row again.

One thread per row is the general case: reductions over any axes, inside one another or not, as
loops. Several threads need reductions that all run over the same axes. Rows that do not exist, at
the end of the grid, are computed as copies of the last one and not stored: all threads of a block
meet in every exchange.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import prod

from weft.codegen.gpu import ir, values
from weft.codegen.gpu.accept import MAX_POINTS, kernel_refusals, refuse
from weft.codegen.gpu.index import unflatten
from weft.codegen.gpu.reductions import Reduction
from weft.codegen.gpu.scalar import BLOCK, LANE, THREAD, WARP, Lit, Name, Scalar, both, least
from weft.codegen.gpu.thread import Emitter, Group, Refs, Scope, Sweep, group_at
from weft.foundation.dtypes import DType
from weft.foundation.errors import Finding, SpecViolation
from weft.plan.ir import RowPlan
from weft.plan.rows import (
    chunks_of,
    is_regular,
    reduced_axes,
    row_length,
    row_registers,
    row_vector_axis,
)
from weft.region.ir import Kernel, Output, Tensor
from weft.target.target import Target

_WARP = 32
_SLOT = 8
"""Bytes of one partial result in shared memory."""
_INTERLEAVED = 4
"""Turns of a loop over memory that the compiler may interleave."""


def accepts(
    kernel: Kernel, tensors: Mapping[str, Tensor], plan: RowPlan, target: Target
) -> list[Finding]:
    """Why this template cannot carry out the kernel with the plan; empty if it can."""
    return [*kernel_refusals(kernel, tensors), *_refusals(kernel, plan, target)]


def _refusals(kernel: Kernel, plan: RowPlan, target: Target) -> Iterator[Finding]:
    if plan.threads > 1 and not is_regular(kernel):
        yield refuse(
            "IrregularRows",
            "the reductions run over different axes",
            "use threads=1: one thread computes a row by itself",
        )
        return
    axis = row_vector_axis(kernel)
    size = kernel.sizes[axis] if axis else 1
    if size % plan.vector:
        yield refuse("Vector", f"a vector of {plan.vector} does not divide an axis of {size}")
    if prod(kernel.sizes.values()) >= MAX_POINTS:
        yield refuse("Points", "the kernel has more points than 32 bits count")
    keeps = plan.keep_row and plan.threads > 1
    instances = plan.vector * (chunks_of(kernel, plan) if keeps else 1)
    if plan.accumulators > max(1, instances):
        yield refuse(
            "Accumulators",
            f"{plan.accumulators} partial results cannot be kept by {instances} elements at a time",
        )
    if keeps:
        yield from _registers(kernel, plan, target)


def _registers(kernel: Kernel, plan: RowPlan, target: Target) -> Iterator[Finding]:
    needed, given = row_registers(kernel, plan, target)
    if needed > given:
        yield refuse(
            "Registers",
            f"keeping a row takes about {needed} registers of each thread, which has {given}",
            "use more threads, or keep_row=false",
        )


def build(
    kernel: Kernel,
    tensors: Mapping[str, Tensor],
    refs: Refs,
    plan: RowPlan,
    target: Target,
    name: str,
) -> ir.Kernel:
    """The dialect kernel, called `name` in the generated source."""
    findings = accepts(kernel, tensors, plan, target)
    if findings:
        raise SpecViolation.of(findings)
    return _Rows(kernel, refs, plan).kernel_called(name, tensors)


class _Rows(Emitter):
    def __init__(self, kernel: Kernel, refs: Refs, plan: RowPlan) -> None:
        super().__init__(kernel, refs)
        self.plan = plan
        self.reduced = reduced_axes(kernel)
        self.outer = [a.name for a in kernel.axes if a.name not in self.reduced]
        self.rows = prod(kernel.sizes[name] for name in self.outer)
        self.axis = row_vector_axis(kernel)
        self.kept: list[Group] | None = None
        self.slots: list[ir.SharedTile] = []

    @property
    def partials(self) -> int:
        return self.plan.accumulators

    @property
    def shared(self) -> bool:
        """Whether several threads work on one row."""
        return self.plan.threads > 1

    def kernel_called(self, name: str, tensors: Mapping[str, Tensor]) -> ir.Kernel:
        body: list[ir.Stmt] = []
        if self.rows:
            body += self.read_params({found.name: found.dtype for found in tensors.values()})
            body += self.work()
        return ir.Kernel(
            name,
            grid=-(-self.rows // self.plan.rows_per_block),
            threads=self.plan.threads * self.plan.rows_per_block,
            buffers=self.names,
            maps=(),
            tiles=tuple(self.slots),
            barriers=(),
            tables=(),
            body=tuple(body),
            reports=self.reports,
        )

    def work(self) -> Iterator[ir.Stmt]:
        plan = self.plan
        place: Scalar = THREAD // plan.threads
        yield ir.Let("number", BLOCK * plan.rows_per_block + place)
        whole = self.rows % plan.rows_per_block == 0
        exists: Scalar = Lit(1) if whole else Name("number") < self.rows
        root = Scope(None, {}, [])
        if self.shared:
            yield ir.Let("row", Name("number") if whole else least("number_", 0))
        else:
            yield ir.Let("row", Name("number"))
        root.axes = self.outer_axes(root)
        self.store_all(root, exists if self.shared else Lit(1))
        if self.shared or whole:
            yield from root.body
        else:
            yield ir.If(exists, tuple(root.body))
