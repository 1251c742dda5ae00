"""The template of plain elementwise kernels: a thread computes a vector of contiguous elements, a
block a range of them.

    for each turn: point = block * grain + turn * threads * vector + thread * vector
        if it exists: read, compute, store

`grain` points go to a block, in `grain / (threads * vector)` turns, of which `unroll` may be
interleaved. Where 32 bits do not count all points, they count those of the inner axes, and the
number of the block says where the outer ones stand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Final

from weft.codegen.gpu import ir
from weft.codegen.gpu.body.accept import MAX_POINTS, kernel_refusals, refuse, too_many
from weft.codegen.gpu.body.cache_hints import CacheHints
from weft.codegen.gpu.body.index import unflatten
from weft.codegen.gpu.body.reductions import Reduction
from weft.codegen.gpu.body.scopes import (
    Group,
    Scope,
    Sweep,
    end_in_room,
    group_at,
    in_whole_vectors,
)
from weft.codegen.gpu.body.thread import Emitter, Refs
from weft.codegen.gpu.ir.scalar import BLOCK, THREAD, Lit, Name, Scalar, wide
from weft.codegen.gpu.template import Job
from weft.foundation.errors import Finding, InternalError
from weft.foundation.index_expr import Axis, Expr, coefficient
from weft.plan.ir import MapPlan, Plan
from weft.region.forms.widths import inner_axis, length_with_room
from weft.region.ir import Fold, Kernel, Let, Output, Reduce, Tensor
from weft.target.target import Target


def accepts(
    kernel: Kernel, tensors: Mapping[str, Tensor], plan: MapPlan, target: Target
) -> list[Finding]:
    """Why this template cannot carry out the kernel with the plan; empty if it can."""
    return [*kernel_refusals(kernel, tensors), *_map_refusals(kernel, tensors, plan)]


def _map_refusals(
    kernel: Kernel, tensors: Mapping[str, Tensor], plan: MapPlan
) -> Iterator[Finding]:
    if any(isinstance(let.expr, Reduce | Fold) for let in kernel.body):
        yield refuse("Reduction", "an elementwise plan cannot carry out a reduction")
    axis = inner_axis(kernel)
    size = axis.size if axis else 1
    roomy = length_with_room(kernel, tensors, axis.name if axis else None)
    if size % plan.vector and roomy % plan.vector:
        yield refuse("Vector", f"a vector of {plan.vector} does not divide an axis of {size}")
    turn = plan.threads * plan.vector * plan.unroll
    if plan.grain % turn:
        yield refuse(
            "Grain",
            f"a grain of {plan.grain} is not a multiple of {turn}: {plan.threads} threads, "
            f"{plan.unroll} x {plan.vector} points each at a time",
            f"give a multiple of {turn}, or fewer threads",
        )
    extent = _Extent(kernel, plan)
    yield from too_many(extent.vectors, blocks=extent.grid)


class _Extent:
    """The axes of a kernel in the order in which its points are numbered, the one that vectors run
    along last, and how many vectors and blocks there are."""

    def __init__(self, kernel: Kernel, plan: MapPlan) -> None:
        axis = inner_axis(kernel)
        last = [axis.name] if axis else []
        self.lengths = kernel.sizes
        self.sizes = dict(kernel.sizes)
        for name in last:
            self.sizes[name] = -(-self.sizes[name] // plan.vector)
        order = [name for name in self.sizes if name not in last] + last
        count = 0
        # As few outer axes as leave a number of points that 32 bits hold: the block's number says
        # where these stand, by one division for all of its threads.
        while count < len(order) - 1 and self.over(order[count:]) >= MAX_POINTS:
            count += 1
        self.outer, self.inner = order[:count], order[count:]
        self.vectors = self.over(self.inner)
        self.blocks = -(-self.vectors * plan.vector // plan.grain)
        self.grid = self.blocks * self.over(self.outer)

    def over(self, names: Sequence[str]) -> int:
        return prod(self.sizes[name] for name in names)

    def is_order_of(self, address: Expr) -> bool:
        """Whether addresses go up by one from point to point."""
        # A quotient, or a start that is known at run time, is not seen through here: such an
        # address is worked out from the axes.
        if self.outer or not all(isinstance(term, Axis) for term, _ in address.terms):
            return False
        step = 1
        for name in reversed(self.inner):
            if self.lengths[name] > 1 and coefficient(address, name) != step:
                return False
            step *= self.lengths[name]
        return True


class Elementwise(Emitter):
    """What elementwise templates share: there is nothing to sweep over."""

    def __init__(self, kernel: Kernel, refs: Refs, target: Target) -> None:
        super().__init__(kernel, refs)
        self.hints = CacheHints(kernel, refs, target)

    def is_lasting(self, let: Let) -> bool:
        return let.name in self.hints.lasting

    def is_passing(self, output: Output) -> bool:
        return self.hints.passing

    def store_points(self, group: Group, axis: str | None, axes: Mapping[str, Scalar]) -> None:
        """All results at the points of a group along an axis; `axes` are the others."""
        for output in self.kernel.outputs:
            along = axis in self.lets[output.value].axes
            points = group if along else Group(None, group.instances[:1])
            self.store(output, points, self.stored_once(output, axes))

    def sweep(self, scope: Scope, axes: Sequence[str], body: Sweep) -> None:
        raise InternalError("a reduction in an elementwise kernel")

    def finish(self, scope: Scope, reduction: Reduction, carries: Sequence[str]) -> list[str]:
        raise InternalError("a reduction in an elementwise kernel")

    @property
    def partials(self) -> int:
        return 1


class Map(Elementwise):
    """A grain of points to a block."""

    def __init__(self, kernel: Kernel, refs: Refs, plan: MapPlan, target: Target) -> None:
        super().__init__(kernel, refs, target)
        self.plan = plan
        axis = inner_axis(kernel)
        self.axis = axis.name if axis else None
        self.extent = _Extent(kernel, plan)

    @property
    def grid(self) -> int:
        return self.extent.grid

    @property
    def threads(self) -> int:
        return self.plan.threads

    @property
    def extents(self) -> Mapping[str, int]:
        return in_whole_vectors(self.kernel.sizes, self.axis, self.plan.vector)

    def offset(self, address: Expr, scope: Scope) -> Scalar:
        """Of elements that lie in the order of the points by the number of the point alone."""
        if scope.group is None or not self.extent.is_order_of(address):
            return super().offset(address, scope)
        # The point's number counts vectors, so its first element is that times the vector.
        step = scope.group.instances.index(scope) + address.constant
        return wide(Name("point")) * self.plan.vector + step

    def work(self) -> Iterator[ir.Stmt]:
        plan, extent = self.plan, self.extent
        whole = extent.vectors * plan.vector % plan.grain == 0
        block = BLOCK % extent.blocks if extent.outer else BLOCK
        yield from self.turns(block, None if whole else Lit(extent.vectors))

    def turns(self, block: Scalar, end: Scalar | None) -> Iterator[ir.Stmt]:
        """The grain of a block, as far as there are vectors: up to an `end`, or all."""
        plan = self.plan
        turns = plan.grain // (plan.threads * plan.vector)
        start = block * (plan.grain // plan.vector) + THREAD
        number: Scalar = Name("turn") * plan.threads + start if turns > 1 else start
        scope = Scope(None, {}, [])
        self.point(scope)
        work: tuple[ir.Stmt, ...] = tuple(scope.body)
        if end is not None:
            work = (ir.If(Name("point") < end, work),)
        work = (ir.Let("point", number), *work)
        if turns == 1:
            yield from work
        else:
            yield ir.For("turn", 0, turns, 1, work, times=plan.unroll)

    def point(self, root: Scope) -> None:
        """Everything for the vector with the number `point`."""
        extent = self.extent
        places = unflatten(BLOCK // extent.blocks, extent.outer, extent.sizes)
        places |= unflatten(Name("point"), extent.inner, extent.sizes)
        axes: dict[str, Scalar] = {}
        for number, (name, place) in enumerate(places.items()):
            if extent.sizes[name] == 1:
                axes[name] = Lit(0)
                continue
            factor = self.plan.vector if name == self.axis else 1
            root.body.append(ir.Let(f"at{number}", place * factor))
            axes[name] = Name(f"at{number}")
        group = group_at(root, axes, self.axis, self.plan.vector, Lit(1))
        end_in_room(group, self.kernel.sizes)
        self.store_points(group, self.axis, axes)


class MapTemplate:
    """A vector of points to a thread."""

    name: Final = "map"

    def takes(self, plan: Plan) -> bool:
        return isinstance(plan, MapPlan) and plan.block <= 1

    def accepts(self, job: Job[MapPlan]) -> list[Finding]:
        return accepts(job.short, job.tensors, job.plan, job.target)

    def build(self, job: Job[MapPlan], name: str) -> ir.Kernel:
        return Map(job.short, job.refs, job.plan, job.target).kernel_called(name, job.tensors)


TEMPLATE: Final = MapTemplate()
