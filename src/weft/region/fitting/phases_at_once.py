"""Strided convolution gradients with all phases in one convolution.

    y[p] = sum over k < 3 of w[k] x[(p + k - 1) / 2]            where p + k - 1 is even
        -->  y[2 q + 1 - f] = d[1 - f] + sum over j < 2 of w[2 j + f] x[q + j]  where 2 j + f < 3

A phase is the set of places that meet the same taps (`phases.py`); f, the first of these taps, is
an axis of matrices. Phases need not have the same number of taps: those with the most come first.
Matrix units multiply elements of the image only, as it lies in memory, where otherwise a copy of
it with the zeros in between would be made, and multiplied.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from weft.foundation.index_expr import (
    Expr,
    Guard,
    axes_of,
    axis,
    coefficient,
    constant,
    linear,
)
from weft.foundation.records import dataclass, replace
from weft.region.fitting.image_copies import Made, pays, suits, with_lines_of_channels
from weft.region.fitting.phases import Pair, Phases, find_phases
from weft.region.ir import (
    AxisIndex,
    Kernel,
    KernelAxis,
    Let,
    Read,
    Reduce,
    Roles,
    Tensor,
    operands,
    row_major,
)
from weft.target.target import Target

_MOST_MATRICES: Final = 2
"""Axes of phases and groups that the copy engine goes through beside rows and columns."""


def with_phases_at_once(
    kernel: Kernel, tensors: Mapping[str, Tensor], target: Target
) -> Made | None:
    """The convolution of all phases behind the sums of what other taps come to, perhaps behind
    copies of operands with their channels last; None where matrix units cannot multiply it."""
    roles = kernel.roles
    if roles is None or not pays(kernel, tensors, target) or find_phases(kernel) is None:
        return None
    for (*copies, made), copied in with_lines_of_channels(kernel, roles, tensors):
        known = {**tensors, **{tensor.name: tensor for tensor in copied}}
        found = _with_phases(made, known)
        if found is not None:
            return (*copies, *found[0]), (*copied, *found[1])
    return None


def _with_phases(kernel: Kernel, tensors: Mapping[str, Tensor]) -> Made | None:
    """The same of a kernel whose operands are left where they lie."""
    roles, found = kernel.roles, find_phases(kernel)
    if roles is None or found is None:
        return None
    weights, pairs = found
    read = weights.expr
    assert isinstance(read, Read)
    address = linear(read.index, row_major(tensors[read.tensor].shape))
    steps = [_pair_step(kernel, pair, address) for pair in pairs]
    known = tuple(step for step in steps if step is not None)
    if len(known) < len(steps) or roles.lhs == weights.name or _counts(kernel, roles):
        return None
    taken = Phases(kernel, weights, pairs, tensors)
    made = _together(taken, known)
    tensor = taken.idle_tensor
    if not suits(made, {**tensors, tensor.name: tensor}):
        return None
    assert made.roles is not None
    matrices = len(made.roles.batch) + sum(step.phase in made.roles.n for step in known)
    if all(step.count == 1 for step in known) and matrices > _MOST_MATRICES:
        return None
    return (taken.idle_sums(), made), (tensor,)


def _counts(kernel: Kernel, roles: Roles) -> bool:
    """Whether what follows the sums depends on which place a result has."""
    return any(
        isinstance(let.expr, AxisIndex) for let in kernel.body if not {*let.axes} & {*roles.k}
    )


@dataclass(frozen=True)
class _Step:
    """A pair, the axis of its phases, and how many taps a phase has at most. Phase f has the places
    from `first + way * f` on and the taps from `low + turn * f` on, each `pair.step` apart."""

    pair: Pair
    phase: str
    count: int
    first: int
    way: int
    low: int
    turn: int

    @property
    def places(self) -> Mapping[str, Expr]:
        """Place and tap of the whole by those of a phase."""
        place, tap, step, phase = self.pair.place, self.pair.tap, self.pair.step, axis(self.phase)
        taps = axis(tap) * step if self.count > 1 else constant(0)
        return {
            place: axis(place) * step + phase * self.way + self.first,
            tap: taps + phase * self.turn + self.low,
        }


def _pair_step(kernel: Kernel, pair: Pair, address: Expr) -> _Step | None:
    """The phases of a pair; None where places of a phase are no steps of one kind, or some phase
    has no tap. Where all phases have one, they are in the order of the weights in memory."""
    sizes, step = kernel.sizes, pair.step
    if not pair.tap or sizes[pair.place] % step:
        return None
    phase = f"{pair.place}_phase"
    met = {tap: place for place, tap in enumerate(pair.taps)}
    if phase in sizes or {*met} != {*range(step)}:
        return None
    count = -(-sizes[pair.tap] // step)
    # Weights that lie backwards are read forwards where each phase has one tap: the phases are
    # counted the other way then.
    turned = sizes[pair.tap] == step and coefficient(address, pair.tap) < 0
    low, turn = (step - 1, -1) if turned else (0, 1)
    places = [met[low + turn * number] for number in range(step)]
    first: int | None = places[0]
    # There are two phases at least, since a step of 1 has none apart.
    way = (places[1] or 0) - (places[0] or 0)
    # An axis goes in equal steps: so must the places of the phases, in the order of their taps.
    even = all(place == (first or 0) + way * number for number, place in enumerate(places))
    return _Step(pair, phase, count, first or 0, way, low, turn) if even else None


def _together(taken: Phases, steps: tuple[_Step, ...]) -> Kernel:
    """The kernel with an axis for the phases of each pair."""
    where = (
        *(axis(step.phase) * step.way + step.first for step in steps),
        *map(axis, taken.own),
    )
    kernel = taken.with_idle(Read(taken.idle, where), meets=True)
    sizes = dict(kernel.sizes)
    for step in steps:
        sizes[step.pair.place] //= step.pair.step
        sizes[step.pair.tap] = step.count
    alone = {step.pair.tap for step in steps if step.count == 1}
    phases = [KernelAxis(step.phase, step.pair.step) for step in steps]
    own = [replace(found, size=sizes[found.name]) for found in kernel.axes]
    axes = (*phases, *(found for found in own if found.name not in alone))
    made = replace(kernel, axes=axes)
    places = {name: expr for step in steps for name, expr in step.places.items()}
    whole = taken.kernel.sizes
    ends = tuple(
        Guard(places[step.pair.tap], whole[step.pair.tap])
        for step in steps
        if whole[step.pair.tap] % step.pair.step
    )
    assert kernel.roles is not None
    sides = (kernel.roles.lhs, kernel.roles.rhs)
    body = []
    for let in kernel.body:
        found = taken.placed(let, places, made.ranges)
        if ends and let.name in sides:
            assert isinstance(found.expr, Read)
            guards = (*found.expr.guards, *ends)
            found = replace(found, expr=replace(found.expr, guards=guards, fill=0.0))
        elif isinstance(found.expr, Reduce):
            summed = tuple(name for name in found.expr.axes if name not in alone)
            found = replace(found, expr=replace(found.expr, axes=summed))
        body.append(found)
    met = _used_axes(body[_let_position(body, kernel.roles.lhs)])
    # An image that does not depend on the phase is multiplied with the filters of all of them.
    batch = tuple(step.phase for step in steps if step.phase in met)
    columns = tuple(step.phase for step in steps if step.phase not in met)
    roles = replace(
        kernel.roles,
        batch=(*batch, *kernel.roles.batch),
        n=(*columns, *kernel.roles.n),
        k=tuple(name for name in kernel.roles.k if name not in alone),
    )
    lets = _with_axes(body, steps, alone)
    return replace(made, body=lets, roles=roles, outputs=taken.placed_outputs(made, places))


def _let_position(body: Sequence[Let], name: str) -> int:
    return next(number for number, let in enumerate(body) if let.name == name)


def _used_axes(let: Let) -> frozenset[str]:
    """The axes that a Let that reads depends on."""
    assert isinstance(let.expr, Read)
    exprs = (*let.expr.index, *(guard.expr for guard in let.expr.guards))
    return frozenset[str]().union(*map(axes_of, exprs))


def _with_axes(
    lets: Sequence[Let], steps: Sequence[_Step], alone: Collection[str]
) -> tuple[Let, ...]:
    """The Lets over the axes of phases that they depend on, and without taps that are alone."""
    phases = [step.phase for step in steps]
    known: dict[str, frozenset[str]] = {}
    body = []
    for let in lets:
        used = _used_axes(let) if isinstance(let.expr, Read) else frozenset[str]()
        used = used.union(*(known[name] for name in operands(let)))
        known[let.name] = used & {*phases}
        own = (name for name in phases if name in used)
        rest = (name for name in let.axes if name not in alone)
        body.append(replace(let, axes=(*own, *rest)))
    return tuple(body)
