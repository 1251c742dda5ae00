"""Control flow: regions with random bodies of their own.

The facts of a loop's carries must hold however often the body runs: they are chosen first, and what
the body returns is brought back to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.foundation.dtypes import ANY, I1, SI32, SI64
from weft.ptir.builder import BodyBuilder
from weft.ptir.op import Op
from weft.ptir.ops.control import Cond, Scan, While, packed
from weft.ptir.ops.elementwise import BinaryFn, Compare, CompareFn, ElementwiseBinary
from weft.ptir.types import TensorType, ValueType, symbols_of
from weft.testing.draft import Bundle, Draft, Item
from weft.testing.facts import BITS, Facts, Want, anywhere, join, outward
from weft.testing.generator import Generator, Skip
from weft.testing.generators.growth import grow
from weft.testing.generators.registry import generates

_STEPS = 5


def _region_generator(
    g: Generator, kinds: Sequence[ValueType], facts: Sequence[Sequence[Facts]]
) -> Generator:
    """A generator for a region with these parameters."""
    draft = Draft(g.draft.symbols, set(g.outer_bound))
    inner = Generator(g.choices, g.data, g.setting, draft, g.depth + 1, g.outer_bound)
    for kind, known in zip(kinds, facts, strict=True):
        draft.parameter(kind, known)
    return inner


def _returnable(g: Generator, inner: Generator) -> list[Item]:
    """Values of a region whose type has a meaning outside."""
    return [
        item
        for item in inner.draft.items
        if inner.may_return(item) and set(symbols_of(item.type)) <= g.draft.bound
    ]


class OpFactory:
    """Makes the regions of an op, then the op, when the draft is played back."""

    def __init__(
        self, cls: type[Op], kinds: Sequence[ValueType],
        bodies: Sequence[tuple[Draft, Sequence[Item | Bundle]]], *more: int,
    ) -> None:  # fmt: skip
        self._cls = cls
        self._kinds = tuple(kinds)
        self._bodies = tuple(bodies)
        self._more = more

    def __call__(self, builder: BodyBuilder) -> Op:
        regions = [
            builder.region(self._kinds, draft.region_body(results))
            for draft, results in self._bodies
        ]
        return self._cls(*regions, *self._more)


def _finish(
    g: Generator, make: OpFactory, operands: Sequence[Item | Bundle],
    kinds: Sequence[ValueType], facts: Sequence[Facts],
) -> None:  # fmt: skip
    """Append a control-flow op with results of these kinds."""
    for kind in kinds:
        if isinstance(kind, TensorType):
            g.check_size(kind)
    g.draft.append(make, operands, packed(kinds), facts)


# -- cond ----------------------------------------------------------------------------------------


@generates(Cond, weight=5, control_flow=True)
def cond(g: Generator) -> None:
    if not g.allows("cond"):
        raise Skip
    pred = g.of_type(TensorType(I1, ()))
    args = _arguments(g)
    kinds = [arg.type for arg in args]
    known = [_facts_of(arg) for arg in args]
    branches = [_region_generator(g, kinds, known) for _ in range(2)]
    for inner in branches:
        grow(inner, g.choices.integer(1, _STEPS))
    candidates = _returnable(g, branches[0])
    if not candidates:
        raise Skip
    first = [g.choices.choose(candidates) for _ in range(g.choices.integer(1, 3))]
    second = [branches[1].of_type(item.type) for item in first]
    if not all(map(branches[1].may_return, second)):
        raise Skip
    bodies = [(branches[0].draft, first), (branches[1].draft, second)]
    facts = [join(a.facts, b.facts) for a, b in zip(first, second, strict=True)]
    factory = OpFactory(Cond, kinds, bodies)
    _finish(g, factory, [pred, *args], [item.type for item in first], facts)


def _arguments(g: Generator) -> list[Item | Bundle]:
    args: list[Item | Bundle] = []
    for _ in range(g.choices.integer(0, 3)):
        if g.draft.bundles and g.choices.chance(0.15):
            args.append(g.choices.choose(g.draft.bundles))
        else:
            args.append(g.pick(ANY))
    return args


def _facts_of(arg: Item | Bundle) -> list[Facts]:
    if isinstance(arg, Item):
        return [arg.facts]
    return [element.facts for element in arg.elements]


# -- loops ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Carry:
    """A value that a loop hands on, and what holds of it in every round."""

    start: Item
    facts: Facts

    @property
    def type(self) -> TensorType:
        return self.start.type


def _carry(g: Generator) -> Carry:
    item = g.pick(ANY, Want())
    if not (item.dtype.is_float or item.dtype.is_complex):
        return Carry(item, anywhere(item.dtype) if item.dtype.is_integer else BITS)
    if item.facts.exact and g.choices.chance(0.5):
        facts = item.facts
        return Carry(item, Facts(facts.low, facts.high, facts.step))
    bound = max(outward(0, item.facts.bound)[1], 1.0)
    return Carry(item, Facts(-bound, bound, None))


def _next_carry(inner: Generator, carry: Carry, parameter: Item) -> Item:
    """A value of the region that may be the carry of the next round."""
    facts = carry.facts
    want = Want(facts.low, facts.high, exact=facts.exact)
    found = [item for item in inner.draft.items if item.type == carry.type]
    for _ in range(3):
        fitted = inner.fit(inner.choices.choose(found), want)
        if fitted is not None and _on_grid(fitted.facts, facts) and inner.may_return(fitted):
            return fitted
    return parameter


def _on_grid(found: Facts, wanted: Facts) -> bool:
    return wanted.step is None or (found.step is not None and found.step >= wanted.step)


@generates(Scan, weight=5, control_flow=True)
def scan(g: Generator) -> None:
    if not g.allows("scan"):
        raise Skip
    first = g.pick(
        ANY, ok=lambda i: i.rank > 0 and i.sizes[0] <= _STEPS, shape=lambda: (3, *g.shape(0, 2))
    )
    scanned = [first] + [_pick_scanned(g, first) for _ in range(g.choices.integer(0, 1))]
    carries = [_carry(g) for _ in range(g.choices.integer(0, 2))]
    slices = [x.type.with_shape(x.shape[1:]) for x in scanned]
    kinds: list[ValueType] = [*(c.type for c in carries), *slices]
    inner = _region_generator(g, kinds, [[c.facts] for c in carries] + [[x.facts] for x in scanned])
    parameters = inner.draft.items[: len(carries)]
    grow(inner, g.choices.integer(1, _STEPS))
    following = [_next_carry(inner, c, p) for c, p in zip(carries, parameters, strict=True)]
    candidates = _returnable(g, inner)
    if not candidates:
        raise Skip
    count = g.choices.integer(0 if carries else 1, 2)
    outputs = [g.choices.choose(candidates) for _ in range(count)]
    stacked = [y.type.with_shape((first.shape[0], *y.shape)) for y in outputs]
    factory = OpFactory(
        Scan, kinds, [(inner.draft, [*following, *outputs])], len(carries), len(outputs)
    )
    results: list[ValueType] = [*(c.type for c in carries), *stacked]
    facts = [c.facts for c in carries] + [y.facts for y in outputs]
    _finish(g, factory, [*(c.start for c in carries), *scanned], results, facts)


def _pick_scanned(g: Generator, first: Item) -> Item:
    """Another input to scan, as long as the first."""
    length = first.shape[0]
    return g.pick(
        ANY,
        ok=lambda i: i.rank > 0 and i.shape[0] == length,
        shape=lambda: (length, *g.shape(0, 2)),
    )


@generates(While, weight=5, control_flow=True)
def while_(g: Generator) -> None:
    if not g.allows("while"):
        raise Skip
    if g.allows("add", "compare"):
        _counted_loop(g)
    else:
        _flagged_loop(g)


def _flagged_loop(g: Generator) -> None:
    """A loop that needs no other op: it goes on while the first flag is set, and every round moves
    the flags on by one. The last flag is not set."""
    rounds = g.choices.integer(0, _STEPS - 1)
    flags = [Carry(g.full(index < rounds, I1, ()), BITS) for index in range(rounds + 1)]
    carries = flags + [_carry(g) for _ in range(g.choices.integer(0, 2))]
    kinds = [c.type for c in carries]
    known = [[c.facts] for c in carries]
    test, body = _region_generator(g, kinds, known), _region_generator(g, kinds, known)
    kept, inputs = list(test.draft.items), list(body.draft.items)
    grow(body, g.choices.integer(1, _STEPS))
    rest = zip(carries[len(flags) :], inputs[len(flags) :], strict=True)
    following = [
        *inputs[1 : len(flags)],
        inputs[rounds],
        *(_next_carry(body, c, p) for c, p in rest),
    ]
    bodies = [(test.draft, [kept[0], *kept]), (body.draft, following)]
    factory = OpFactory(While, kinds, bodies)
    _finish(g, factory, [c.start for c in carries], kinds, [c.facts for c in carries])


def _counted_loop(g: Generator) -> None:
    counter = Carry(_counter(g), Facts(0, 2 * _STEPS))
    carries = [counter] + [_carry(g) for _ in range(g.choices.integer(0, 2))]
    kinds = [c.type for c in carries]
    known = [[c.facts] for c in carries]
    test, body = _region_generator(g, kinds, known), _region_generator(g, kinds, known)
    parameters = list(test.draft.items)
    limit = test.full(g.choices.integer(0, _STEPS - 1), counter.start.dtype, ())
    pred = test.emit(Compare(CompareFn.LESS), parameters[0], limit, facts=BITS)
    kept = [_change_carry(test, c, p) for c, p in zip(carries[1:], parameters[1:], strict=True)]
    returned = [pred, parameters[0], *kept]
    one = body.full(1, counter.start.dtype, ())
    inputs = list(body.draft.items[: len(carries)])
    more = body.emit(ElementwiseBinary(BinaryFn.ADD), inputs[0], one, facts=counter.facts)
    grow(body, g.choices.integer(1, _STEPS))
    following = [_next_carry(body, c, p) for c, p in zip(carries[1:], inputs[1:], strict=True)]
    bodies = [(test.draft, returned), (body.draft, [more, *following])]
    factory = OpFactory(While, kinds, bodies)
    _finish(g, factory, [c.start for c in carries], kinds, [c.facts for c in carries])


def _counter(g: Generator) -> Item:
    dtype = g.dtype({SI32, SI64})
    return g.of_type(TensorType(dtype, ()), Want(0, 3))


def _change_carry(test: Generator, carry: Carry, parameter: Item) -> Item:
    """The test of a loop may change the carries as well: now and then it does."""
    if test.choices.chance(0.7):
        return parameter
    grow(test, 2)
    return _next_carry(test, carry, parameter)
