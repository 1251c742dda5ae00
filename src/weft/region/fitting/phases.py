"""Strided convolution gradients by phases: each output position multiplies only the taps that meet
an element, not the zeros between them.

    y[p] = sum over k < 3 of w[k] x[(p + k - 1) / 2]            where p + k - 1 is even
        -->  d[r] = sum over k of 0 w[k]                        where r + k - 1 is odd
             y[2 q]     = w[1] x[q] + d[0]
             y[2 q + 1] = w[0] x[q] + w[2] x[q + 1] + d[1]

The places that meet the same taps are a phase, and each phase is a convolution at unit steps, which
writes its places of the result. What the other taps come to is 0, or NaN where a weight is infinite
or none, and is summed up once for each phase. A phase that meets no tap is that sum alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Final

from weft.foundation.dtypes import I1, SI32
from weft.foundation.index_expr import (
    Axis,
    Expr,
    FloorDiv,
    Guard,
    always,
    axes_of,
    axis,
    bounds,
    constant,
    simplify,
    substitute,
)
from weft.foundation.records import dataclass, replace
from weft.region.fitting.cutting import needed, placed, renamed
from weft.region.fitting.image_copies import Made
from weft.region.forms.multiplied import multiplies_reads
from weft.region.ir import (
    AxisIndex,
    Binary,
    Cast,
    Const,
    Fold,
    Kernel,
    KernelAxis,
    Let,
    Materialize,
    Output,
    Pattern,
    Read,
    Reduce,
    Roles,
    Select,
    Tensor,
    Unary,
    operands,
)

_WORTH: Final = 1 << 20
"""Products from which leaving some out pays for more kernels, ..."""
_WORTH_OF_ROWS: Final = 1 << 17
"""... and of windows of single channels, of which zeros take as long as other products: the image's
gradient of 3 x 3 with stride 2 over 96 channels of 14 x 14 took 292 us, and 53 by phases."""
_FEW: Final = 9
"""Phases that need no more products than that. Each has code of its own, ..."""
_MOST: Final = 27
"""... so more phases, up to these, are worth it from as many products each."""


@dataclass(frozen=True)
class Pair:
    """A place and a tap that meet an element in one of `step` cases: `taps` has, for each remainder
    of the place, that of the taps, or None where none meets any. Windows of one tap have no axis of
    taps, and no name for it."""

    place: str
    tap: str
    step: int
    taps: tuple[int | None, ...]
    meeting: Expr
    """0 for a remainder of the place, called like the place, and a tap that meet."""


def with_phases(kernel: Kernel, tensors: Mapping[str, Tensor]) -> Made:
    """The kernels of all phases behind that of what other taps come to, and the tensors between
    them; the kernel as it is where its windows have no zeros in them."""
    marked = kernel if kernel.roles else _as_contraction(kernel)
    found = find_phases(marked)
    if found is None:
        return (kernel,), ()
    weights, pairs = found
    kernels, between = Phases(marked, weights, pairs, tensors).made()
    if kernel.roles is None:
        kernels = tuple(replace(each, roles=None) for each in kernels)
    return kernels, between


def _as_contraction(kernel: Kernel) -> Kernel:
    """A row with the roles that it has as a contraction: convolutions to a single channel have no
    rows, or no columns, and their windows have zeros like those of others."""
    sums = [let for let in kernel.body if isinstance(let.expr, Reduce | Fold)]
    if kernel.pattern is not Pattern.ROW or len(sums) != 1:
        return kernel
    total, of = sums[0], sums[0].expr
    if not isinstance(of, Reduce) or of.fn != "sum":
        return kernel
    factors = kernel.let(of.value).expr
    if not isinstance(factors, Binary) or factors.fn != "mul":
        return kernel
    lhs, rhs = (_read_of(kernel, name) for name in (factors.lhs, factors.rhs))
    return replace(kernel, roles=Roles((), total.axes, (), of.axes, total.name, lhs, rhs))


def _read_of(kernel: Kernel, name: str) -> str:
    expr = kernel.let(name).expr
    return expr.x if isinstance(expr, Cast) else name


def find_phases(kernel: Kernel) -> tuple[Let, tuple[Pair, ...]] | None:
    """The weights of such a kernel, and its pairs of places and taps."""
    roles = kernel.roles
    if roles is None or kernel.params or kernel.stages or roles.lhs == roles.rhs:
        return None
    products = math.prod(kernel.sizes.values())
    worth = _WORTH_OF_ROWS if kernel.pattern is Pattern.ROW else _WORTH
    if products < worth or not multiplies_reads(kernel):
        return None
    most = max(_FEW, min(_MOST, products // worth))
    # What is replaced by a sum that was added up before is a float, and is read in each element.
    after = [let.expr for let in kernel.body if roles.contraction in operands(let)]
    plain = all(isinstance(expr, Unary | Cast | Binary | Select) for expr in after)
    if not kernel.let(roles.contraction).dtype.is_float or not plain:
        return None
    # Of a row either operand may be the image: `with_phases` gives all its places to one of them.
    places = (roles.m, roles.n) if kernel.pattern is not Pattern.ROW else (roles.m, roles.m)
    for own, other, outer in zip(
        (roles.lhs, roles.rhs), (roles.rhs, roles.lhs), places, strict=True
    ):
        read, weights = kernel.let(own).expr, kernel.let(other)
        if not isinstance(read, Read) or read.places or read.fill != 0:
            continue
        if not isinstance(weights.expr, Read) or weights.expr.places or weights.expr.guards:
            continue
        pairs = tuple(_find_pairs(kernel, read, outer))
        written = all(
            {p.place for p in pairs} <= {*kernel.let(o.value).axes} for o in kernel.outputs
        )
        if pairs and written and math.prod(pair.step for pair in pairs) <= most:
            return weights, pairs
    return None


def _find_pairs(kernel: Kernel, read: Read, outer: Sequence[str]) -> Iterator[Pair]:
    """The pairs of a read, in the order of places; each axis is in one at most."""
    assert kernel.roles is not None
    seen: set[str] = set()
    exprs = (*read.index, *(guard.expr for guard in read.guards))
    terms = [term for expr in exprs for term, _ in expr.terms if isinstance(term, FloorDiv)]
    for place in outer:
        for term in terms:
            names = [inner.name for inner, _ in term.value.terms if isinstance(inner, Axis)]
            taps = [name for name in names if name in kernel.roles.k]
            if place not in names or len(taps) > 1 or {place, *taps} & seen:
                continue
            pair = _find_pair(kernel, read, place, next(iter(taps), ""), term.divisor)
            if pair is not None:
                seen |= {place, *taps}
                yield pair


def _find_pair(kernel: Kernel, read: Read, place: str, tap: str, step: int) -> Pair | None:
    """The pair, if the taps that a remainder of the place meets have one remainder at most."""
    # Some phase would have no place.
    if kernel.sizes[place] < step:
        return None
    meets = {
        (first, second): not _is_dead(kernel, read, {place: first, tap: second}, step)
        for first in range(step)
        for second in range(min(step, kernel.sizes.get(tap, 1)))
    }
    met = [[k for (p, k), live in meets.items() if live and p == first] for first in range(step)]
    # Taps of one remainder are a step apart: they are the taps of the phase, and meet neighbours.
    if any(len(taps) > 1 for taps in met) or all(meets.values()):
        return None
    # Which pairs meet is known. What is sought is a line that says so, for the kernel of those that
    # do not meet asks it of every place and tap.
    for a, b, c in product(range(1, step), range(1, step), range(step)):
        if all(((a * p + b * k + c) % step == 0) is live for (p, k), live in meets.items()):
            meeting = axis(place) * a + (axis(tap) * b if tap else 0) + c
            return Pair(place, tap, step, tuple(t[0] if t else None for t in met), meeting % step)
    return None


def _is_dead(kernel: Kernel, read: Read, remainders: Mapping[str, int], step: int) -> bool:
    """Whether a guard fails for all of some remainders of axes."""
    places = {name: axis(name) * step + first for name, first in remainders.items() if name}
    ranges = dict(kernel.ranges)
    for name in places:
        ranges[name] = (0, (kernel.sizes[name] - 1 - remainders[name]) // step)
    for guard in read.guards:
        low, high = bounds(simplify(substitute(guard.expr, places), ranges), ranges)
        if high < 0 or low >= guard.size:
            return True
    return False


class Phases:
    """One kernel, taken apart."""

    def __init__(
        self, kernel: Kernel, weights: Let, pairs: tuple[Pair, ...], tensors: Mapping[str, Tensor]
    ) -> None:
        assert kernel.roles is not None
        self.kernel, self.weights, self.pairs, self.tensors = kernel, weights, pairs, tensors
        self.roles = kernel.roles
        self.total = kernel.let(self.roles.contraction)
        self.own = tuple(name for name in weights.axes if name not in self.roles.k)
        self.idle = f"{kernel.name}_idle"

    @property
    def idle_tensor(self) -> Tensor:
        """For each phase, what the taps that it does not meet come to."""
        steps = tuple(pair.step for pair in self.pairs)
        sizes = (*steps, *(self.kernel.sizes[name] for name in self.own))
        return Tensor(self.idle, self.total.dtype, sizes)

    def made(self) -> Made:
        steps = tuple(pair.step for pair in self.pairs)
        tensors = [self.idle_tensor]
        kernels = [self.idle_sums()]
        before: dict[str, str] = {}
        for output in self.kernel.outputs:
            whole = self.tensors[output.tensor]
            first = replace(whole, name=f"{whole.name}_phases", role="internal")
            before[whole.name] = first.name
            tensors.append(first)
            # Each phase updates what those before it have written; the first one needs something to
            # update. All places are written by some phase, so that the zeros are never seen.
            kernels.append(self._clearing_kernel(first))
        cases = list(product(*(range(step) for step in steps)))
        for number, case in enumerate(cases):
            phase = self._phase(case, f"{self.kernel.name}_phase{number}")
            outputs = []
            for output in phase.outputs:
                name = output.tensor
                if number + 1 < len(cases):
                    name = f"{output.tensor}_phase{number}"
                    whole = self.tensors[output.tensor]
                    tensors.append(replace(whole, name=name, role="internal"))
                outputs.append(replace(output, tensor=name, base=before[output.tensor]))
                before[output.tensor] = name
            kernels.append(replace(phase, outputs=tuple(outputs)))
        return tuple(kernels), tuple(tensors)

    def _clearing_kernel(self, tensor: Tensor) -> Kernel:
        """The kernel that fills what all phases together write."""
        axes = tuple(KernelAxis(f"i{n}", size) for n, size in enumerate(tensor.shape))
        names = tuple(found.name for found in axes)
        body = (
            Let("zero", tensor.dtype, (), Const(0)),
            Let("all", tensor.dtype, names, Cast("zero")),
        )
        outputs = (Output(tensor.name, "all", tuple(map(axis, names))),)
        return Kernel(f"{tensor.name}_cleared", Pattern.MAP, axes, body, outputs)

    def idle_sums(self) -> Kernel:
        """For each phase, the sum of zero times the weights of the taps that it does not meet."""
        dtype, read = self.total.dtype, self.weights.expr
        assert isinstance(read, Read)
        places = tuple(pair.place for pair in self.pairs)
        every = (*places, *self.own, *self.roles.k)
        axes = [KernelAxis(pair.place, pair.step) for pair in self.pairs]
        axes += [KernelAxis(name, self.kernel.sizes[name]) for name in self.own]
        axes += [KernelAxis(name, self.kernel.sizes[name], reduce=True) for name in self.roles.k]
        some = (*self.own, *self.roles.k)
        body = [
            Let("w", self.weights.dtype, some, read),
            Let("wide", dtype, some, Cast("w")),
            Let("zero", dtype, (), Const(0.0)),
            Let("none", dtype, some, Binary("mul", "zero", "wide")),
            Let("first", SI32, (), Const(0)),
        ]
        value = "zero"
        for number, pair in enumerate(self.pairs):
            both = (pair.place, pair.tap) if pair.tap else (pair.place,)
            body.append(Let(f"at{number}", SI32, both, AxisIndex(pair.meeting)))
            body.append(Let(f"meets{number}", I1, both, Binary("eq", f"at{number}", "first")))
            body.append(
                Let(f"value{number}", dtype, every, Select(f"meets{number}", value, "none"))
            )
            value = f"value{number}"
        body.append(
            Let("sum", dtype, every[: -len(self.roles.k)], Reduce("sum", self.roles.k, value))
        )
        output = Output(self.idle, "sum", tuple(map(axis, every[: -len(self.roles.k)])))
        return Kernel(f"{self.idle}_sum", Pattern.ROW, tuple(axes), tuple(body), (output,))

    def _phase(self, case: Sequence[int], name: str) -> Kernel:
        """The kernel of the places with these remainders."""
        remainders = list(zip(self.pairs, case, strict=True))
        taps = [pair.taps[first] for pair, first in remainders]
        sizes = dict(self.kernel.sizes)
        places: dict[str, Expr] = {}
        for (pair, first), tap in zip(remainders, taps, strict=True):
            moved = {pair.place: first} | ({pair.tap: tap or 0} if pair.tap else {})
            for axis_name, rest in moved.items():
                sizes[axis_name] = -(-(sizes[axis_name] - rest) // pair.step)
                places[axis_name] = axis(axis_name) * pair.step + rest
        where = (*(constant(first) for first in case), *map(axis, self.own))
        kernel = self.with_idle(Read(self.idle, where), meets=None not in taps)
        kept = {name for let in kernel.body for name in let.axes}
        axes = tuple(
            replace(each, size=sizes[each.name]) for each in kernel.axes if each.name in kept
        )
        kernel = replace(kernel, name=name, axes=axes)
        body = tuple(self.placed(let, places, kernel.ranges) for let in kernel.body)
        return replace(kernel, body=body, outputs=self.placed_outputs(kernel, places))

    def placed_outputs(self, kernel: Kernel, places: Mapping[str, Expr]) -> tuple[Output, ...]:
        """The results of a kernel, at these places."""
        return tuple(
            replace(o, index=tuple(substitute(e, places) for e in o.index)) for o in kernel.outputs
        )

    def with_idle(self, idle: Read, *, meets: bool) -> Kernel:
        """The kernel with what other taps come to added to its sums, or in their place."""
        kernel, total = self.kernel, self.total
        own = tuple(found.name for found in kernel.axes if found.name in self.own)
        read = Let(self.idle, total.dtype, own, idle)
        if not meets:
            alone = (read, replace(total, expr=Cast(self.idle)))
            body = [part for let in kernel.body for part in (alone if let is total else (let,))]
            outputs = tuple(replace(o, materialize=Materialize.GMEM) for o in kernel.outputs)
            bare = replace(
                kernel, pattern=Pattern.MAP, roles=None, body=tuple(body), outputs=outputs
            )
            wanted = needed([output.value for output in outputs], bare)
            return replace(bare, body=tuple(let for let in body if let.name in wanted))
        whole = f"{total.name}_whole"
        new = {total.name: whole}
        body = []
        for let in kernel.body:
            body.append(replace(let, expr=renamed(let.expr, new)))
            if let.name == total.name:
                both = Binary("add", total.name, self.idle)
                body += [read, Let(whole, total.dtype, total.axes, both)]
        row = kernel.pattern is Pattern.ROW
        outputs = tuple(
            replace(
                o,
                value=new.get(o.value, o.value),
                materialize=o.materialize if row else Materialize.DEFERRED,
            )
            for o in kernel.outputs
        )
        return replace(kernel, body=tuple(body), outputs=outputs)

    def placed(
        self, let: Let, places: Mapping[str, Expr], ranges: Mapping[str, tuple[int, int]]
    ) -> Let:
        expr = let.expr
        if isinstance(expr, Read) and expr.tensor == self.idle:
            return let
        expr = placed(expr, places)
        if isinstance(expr, Read):
            index = tuple(simplify(each, ranges) for each in expr.index)
            guards = [_whole_steps(g, ranges) for g in expr.guards]
            left = tuple(guard for guard in guards if not always(guard, ranges))
            expr = replace(expr, index=index, guards=left, fill=expr.fill if left else None)
        return replace(let, expr=expr)


def _whole_steps(guard: Guard, ranges: Mapping[str, tuple[int, int]]) -> Guard:
    """The same guard of an expression whose factors have nothing in common."""
    expr = simplify(guard.expr, ranges)
    # 0 <= g e + c < n holds where -c / g <= e < (n - c) / g, both rounded up: a guard of e alone,
    # which others may be equal to.
    common = math.gcd(*(factor for _, factor in expr.terms)) if axes_of(expr) else 1
    if common == 1:
        return Guard(expr, guard.size)
    low = -(expr.constant // common)
    high = (guard.size - 1 - expr.constant) // common
    moving = (expr - expr.constant) // common
    return Guard(moving - low, high - low + 1)
