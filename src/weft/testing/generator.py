"""The state of a random program under construction, and how operands are found for an op.

An op generator (`weft.testing.generators`) asks for operands by dtype, by shape and by what it
`Want`s of their elements. It gets an existing value, one adapted by a few further instructions
(clamped, scaled, broadcast), or a new input. It then emits its op together with the facts of the
result. Where that is impossible it raises `Skip`, and what it did so far is undone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from weft.foundation.dtypes import DType, in_order
from weft.ptir.ir import ElementRef, Ref
from weft.ptir.literal import from_array
from weft.ptir.op import Op
from weft.ptir.ops.complex_parts import Complex, Imag, Real
from weft.ptir.ops.constant import Constant
from weft.ptir.ops.elementwise import BinaryFn, Clamp, ElementwiseBinary, Select
from weft.ptir.ops.functions import IsFinite
from weft.ptir.ops.movement import BroadcastTo
from weft.ptir.types import Dim, Shape, Symbol, TensorType, leaves
from weft.testing.choices import Choices
from weft.testing.data import Array, DataSource
from weft.testing.draft import Bundle, Draft, Item
from weft.testing.facts import ANYTHING, BITS, Facts, Number, Want, join, limit, settle
from weft.testing.invent import invent

MAX_ELEMENTS = 4096
MAX_INPUT = 512
MAX_RANK = 6
_LITERAL = 64
"""Literals of more elements are rare: they make programs long to read."""


class Skip(Exception):
    """This op does not fit here; another one is tried."""


@dataclass(frozen=True)
class Rules:
    """What the program may contain."""

    spellings: frozenset[str]
    dtypes: frozenset[DType]
    control_flow: bool = True
    dynamic: bool = True


@dataclass(frozen=True)
class Setting:
    """What the ops of one program have in common, so that their values meet."""

    rules: Rules
    dims: Sequence[Dim]
    """Sizes that come up again and again."""
    dtypes: frozenset[DType]
    """The dtypes that are preferred."""
    focus: frozenset[str] | None = None
    """The ops, by name, that are added on purpose; None: all. Others occur where they help."""


Shaper = Callable[[], Shape]
Test = Callable[[Item], bool]


class Generator:
    """Random choices, the draft they build, and the rules they keep."""

    def __init__(
        self, choices: Choices, data: DataSource, setting: Setting, draft: Draft,
        depth: int = 0, outer_bound: set[Symbol] | None = None,
    ) -> None:  # fmt: skip
        self.choices = choices
        self.data = data
        self.setting = setting
        self.rules = setting.rules
        self.draft = draft
        self.depth = depth
        """How many regions are around this body."""
        self._outer_bound = outer_bound

    @property
    def outer_bound(self) -> set[Symbol]:
        """The symbols that the entry function has bound so far; regions may use them."""
        return self.draft.bound if self._outer_bound is None else self._outer_bound

    # -- emitting --------------------------------------------------------------------------------

    def allows(self, *spellings: str) -> bool:
        return all(spelling in self.rules.spellings for spelling in spellings)

    def dtypes(self, dtypes: Iterable[DType]) -> list[DType]:
        """Those that the program may contain, in wire order; `Skip` when there is none."""
        found = in_order(set(dtypes) & self.rules.dtypes)
        if not found:
            raise Skip
        return found

    def dtype(self, dtypes: Iterable[DType]) -> DType:
        """One of the dtypes, mostly one that the program prefers."""
        return self.choices.choose(self._prefer_common(self.dtypes(dtypes)))

    def _prefer_common(self, dtypes: list[DType]) -> list[DType]:
        common = [dtype for dtype in dtypes if dtype in self.setting.dtypes]
        return common if common and self.choices.chance(0.85) else dtypes

    def emit(self, op: Op, *operands: Item, facts: Facts) -> Item:
        """Append an op with a tensor result."""
        made = self._append(op, operands, (facts,), hidden=False)
        if isinstance(made, Bundle):
            raise TypeError(f"{op.mnemonic} makes a tuple")
        return made

    def emit_tuple(
        self, op: Op, *operands: Item, facts: Sequence[Facts], hidden: bool = False
    ) -> tuple[Item, ...]:
        """Append an op with a tuple result; the elements."""
        made = self._append(op, operands, facts, hidden=hidden)
        if isinstance(made, Item):
            raise TypeError(f"{op.mnemonic} makes no tuple")
        return made.elements

    def _append(
        self, op: Op, operands: Sequence[Item], facts: Sequence[Facts], *, hidden: bool
    ) -> Item | Bundle:
        if not self.allows(op.mnemonic):
            raise Skip
        output = self.draft.output_of(op, operands)
        for kind in leaves(output):
            self.check_size(kind)
        return self.draft.append(lambda _: op, operands, output, facts, hidden=hidden)

    def check_size(self, kind: TensorType) -> None:
        """`Skip` what is too large or of a dtype that is not allowed."""
        if kind.dtype not in self.rules.dtypes or kind.rank > MAX_RANK:
            raise Skip
        if math.prod(self.draft.sizes(kind.shape)) > MAX_ELEMENTS:
            raise Skip

    def may_return(self, item: Item) -> bool:
        """Whether a body can return an item: the builder copies what is not a value of its own."""
        if isinstance(item.operand, ElementRef):
            return self.allows("broadcast_to")
        return isinstance(item.operand, Ref) or self.allows("constant")

    # -- shapes ----------------------------------------------------------------------------------

    def dim(self) -> Dim:
        """A size: often one of the program's own, now and then 1, rarely 0."""
        choices = self.choices
        if choices.chance(0.7):
            return choices.choose(self.setting.dims)
        if choices.chance(0.04):
            return 0
        return choices.choose((1, 2, 3, 4, 5, 8))

    def shape(self, least: int = 0, most: int = 4, *, empty: bool = True) -> Shape:
        """A shape of `least` to `most` axes that an input may have."""
        rank = self.choices.weighted(
            range(least, most + 1), [1 + (rank in (1, 2, 3)) for rank in range(least, most + 1)]
        )
        shape = tuple(self.dim() for _ in range(rank))
        sizes = self.draft.sizes(shape)
        if math.prod(sizes) > MAX_INPUT or (0 in sizes and not empty):
            return tuple(self.choices.choose((1, 2, 3)) for _ in range(rank))
        return shape

    # -- finding operands ------------------------------------------------------------------------

    def pick(
        self, dtypes: Iterable[DType], want: Want = ANYTHING,
        ok: Test | None = None, shape: Shaper | None = None,
    ) -> Item:  # fmt: skip
        """A value of one of the dtypes that passes `ok`; a new one has a shape from `shape`."""
        allowed = self._prefer_common(self.dtypes(dtypes))
        found = [i for i in self.draft.candidates if i.dtype in allowed and (ok is None or ok(i))]
        if found and self.choices.chance(0.85):
            good = [item for item in found if want.accepts(item.facts)]
            source = good if good and self.choices.chance(0.7) else found
            fitted = self.fit(self._one_of(source), want)
            if fitted is not None:
                return fitted
            if good:
                return self._one_of(good)
        dtype = self.choices.choose(allowed)
        return self.new(dtype, (shape or self.shape)(), want)

    def _one_of(self, items: Sequence[Item]) -> Item:
        """An item of a random dtype among theirs; often one that nothing uses yet."""
        dtype = self.choices.choose(in_order({item.dtype for item in items}))
        same = [item for item in items if item.dtype is dtype]
        unused = [i for i in same if getattr(i.operand, "id", -1) not in self.draft.uses]
        return self.choices.choose(unused if unused and self.choices.chance(0.6) else same)

    def like(self, model: Item, want: Want = ANYTHING, dtype: DType | None = None) -> Item:
        """A value of exactly the shape of `model`, and of its dtype unless another one is given."""
        return self.of_type(model.type.with_dtype(dtype or model.dtype), want, model)

    def of_type(self, kind: TensorType, want: Want = ANYTHING, besides: Item | None = None) -> Item:
        """A value of exactly this type, rarely the one given as `besides`."""
        if kind.dtype not in self.rules.dtypes:
            raise Skip
        again = self.choices.chance(0.1)
        found = [i for i in self.draft.candidates if i.type == kind and (again or i is not besides)]
        good = [item for item in found if want.accepts(item.facts)]
        if good and self.choices.chance(0.75):
            return self.choices.choose(good)
        if found and self.choices.chance(0.5):
            fitted = self.fit(self.choices.choose(found), want)
            if fitted is not None:
                return fitted
        narrow = [
            i for i in self.draft.candidates if self._widens(i, kind) and want.accepts(i.facts)
        ]
        if narrow and self.choices.chance(0.7):
            return self.broadcast(self.choices.choose(narrow), kind.shape)
        return self.new(kind.dtype, kind.shape, want)

    def _widens(self, item: Item, kind: TensorType) -> bool:
        """Whether an item becomes this type by broadcasting."""
        if item.dtype is not kind.dtype or item.rank > kind.rank or item.type == kind:
            return False
        aligned = kind.shape[kind.rank - item.rank :]
        fits = all(d in (1, wanted) for d, wanted in zip(item.shape, aligned, strict=True))
        return fits and self.allows("broadcast_to")

    def broadcast(self, item: Item, shape: Shape) -> Item:
        return self.emit(BroadcastTo(shape), item, facts=item.facts)

    # -- making values ---------------------------------------------------------------------------

    def new(self, dtype: DType, shape: Shape, want: Want = ANYTHING) -> Item:
        """A value with fresh contents."""
        facts = self.invent(dtype, want)
        return self.given(dtype, shape, lambda sizes: self.data.array(dtype, sizes, facts), facts)

    def given(
        self, dtype: DType, shape: Shape, fill: Callable[[tuple[int, ...]], Array], facts: Facts
    ) -> Item:
        """A value with the contents that `fill` makes for its sizes: an input of the program, or
        (always in a region, which has no inputs) a constant."""
        if dtype not in self.rules.dtypes:
            raise Skip
        sizes = self.draft.sizes(shape)
        static = all(isinstance(dim, int) for dim in shape)
        small = math.prod(sizes) <= _LITERAL
        if self.depth or (static and small and self.choices.chance(0.12)):
            if static:
                return self._constant(fill(sizes), facts)
            made = fill(())
            return self.broadcast(self._constant(made, facts), shape)
        made = fill(sizes)
        item = self.draft.input(TensorType(dtype, shape), [made], [facts])
        if isinstance(item, Bundle):
            raise TypeError("a tensor was asked for")
        return item

    def _constant(self, array: Array, facts: Facts) -> Item:
        literal = from_array(array)
        if self.allows("constant") and self.choices.chance(0.5):
            return self.emit(Constant(literal), facts=facts)
        return self.draft.literal(literal, facts)

    def full(self, value: Number, dtype: DType, shape: Shape) -> Item:
        """The same number everywhere."""
        if dtype not in self.rules.dtypes:
            raise Skip
        facts = Facts(value, value, grid(value), zeros=True)
        if dtype.is_complex:
            facts = join(facts, Facts(0, 0, grid(value), zeros=True))
        scalar = np.asarray(value).astype(dtype.numpy)
        sizes = self.draft.sizes(shape)
        static = all(isinstance(dim, int) for dim in shape)
        spread = bool(shape) and self.allows("broadcast_to")
        if spread and not (static and math.prod(sizes) <= 8 and self.choices.chance(0.2)):
            return self.broadcast(self.draft.literal(from_array(scalar), facts), shape)
        if static:
            return self.draft.literal(from_array(np.full(sizes, scalar)), facts)
        raise Skip

    def invent(self, dtype: DType, want: Want = ANYTHING) -> Facts:
        """Facts for fresh contents that a want accepts."""
        found = invent(self.choices, dtype, want)
        if found is None:
            raise Skip
        return found

    # -- adapting values -------------------------------------------------------------------------

    def fit(self, item: Item, want: Want) -> Item | None:
        """The item, or one made from it that the want accepts; None where that is impossible."""
        mark = self.draft.mark()
        try:
            return self._fit(item, want)
        except Skip:
            self.draft.back_to(mark)
            return None

    def _fit(self, item: Item, want: Want) -> Item:
        if want.accepts(item.facts):
            return item
        if (want.exact and not item.facts.exact) or (want.zeros and not item.facts.zeros):
            raise Skip
        if item.facts.special and not want.special:
            item = self._without_special(item)
        if not (want.low <= item.facts.low and item.facts.high <= want.high):
            item = self._into_range(item, want)
        if not want.accepts(item.facts):
            raise Skip
        return item

    def _without_special(self, item: Item) -> Item:
        finite = self.emit(IsFinite(), item, facts=BITS)
        zero = self.full(0, item.dtype, item.shape)
        facts = join(replace(item.facts, special=False), zero.facts)
        return self.emit(Select(), finite, item, zero, facts=facts)

    def _into_range(self, item: Item, want: Want) -> Item:
        shrinks = want.low < 0 < want.high and not item.dtype.is_integer and item.facts.bound
        if shrinks and self.choices.chance(0.4):
            return self.scaled(item, min(-want.low, want.high))
        if item.dtype.is_complex:
            return self._parts_into_range(item, want)
        return self.clamped(item, want.low, want.high)

    def _parts_into_range(self, item: Item, want: Want) -> Item:
        facts = item.facts
        parts = [
            self.clamped(self.emit(take, item, facts=facts), want.low, want.high)
            for take in (Real(), Imag())
        ]
        return self.emit(Complex(), *parts, facts=join(*(p.facts for p in parts)))

    def scaled(self, item: Item, bound: Number) -> Item:
        """The item times the power of two that brings its magnitude down to `bound`."""
        factor = 2.0 ** -max(0, math.ceil(math.log2(float(item.facts.bound) / float(bound))))
        factors = self.full(factor, item.dtype, item.shape)
        facts = item.facts
        step = None if facts.step is None else facts.step * factor
        made = settle(
            item.dtype, facts.low * factor, facts.high * factor, step, special=facts.special
        )
        return self.emit(ElementwiseBinary(BinaryFn.MUL), item, factors, facts=made)

    def clamped(self, item: Item, low: Number, high: Number) -> Item:
        """The item cut to a range, by one op or by two."""
        facts = item.facts
        if low <= facts.low and facts.high <= high:
            return item
        ends = [self.full(v, item.dtype, item.shape) for v in self._ends(item.dtype, low, high)]
        inside = self.cut(item, ends[0], ends[1])
        if self.allows("clamp") and self.choices.chance(0.6):
            return self.emit(Clamp(), item, *ends, facts=inside)
        top = replace(join(facts, ends[0].facts), low=ends[0].facts.low, zeros=False)
        raised = self.emit(ElementwiseBinary(BinaryFn.MAXIMUM), item, ends[0], facts=top)
        return self.emit(ElementwiseBinary(BinaryFn.MINIMUM), raised, ends[1], facts=inside)

    def _ends(self, dtype: DType, low: Number, high: Number) -> tuple[Number, Number]:
        """Both ends as numbers of the dtype, inside [low, high]."""
        if dtype.is_integer:
            return math.ceil(max(low, dtype.lowest)), math.floor(min(high, dtype.highest))
        most = float(limit(dtype))
        return -_round_down(-max(low, -most)), _round_down(min(high, most))

    def cut(self, item: Item, low: Item, high: Item) -> Facts:
        """The facts of `min(max(item, low), high)`."""
        every = replace(join(item.facts, low.facts, high.facts), zeros=False)
        if low.facts.special or high.facts.special:
            return every
        reach = math.inf if item.facts.special else 0
        least = min(max(item.facts.low - reach, low.facts.low), high.facts.low)
        most = min(max(item.facts.high + reach, low.facts.high), high.facts.high)
        return replace(every, low=least, high=most)


def grid(value: Number) -> float:
    """The largest power of two of which a number is a multiple; 1 for zero and for integers."""
    if isinstance(value, int) or value == 0:
        return 1.0
    numerator, denominator = float(value).as_integer_ratio()
    # A float is a whole number over a power of two: the lowest bit of the one over the other.
    return float(numerator & -numerator) / denominator


def _round_down(value: float) -> float:
    """The number of two significant bits next to `value` on the side of zero or below."""
    mantissa, exponent = math.frexp(value)
    # The mantissa is from a half on: times 4 two of its bits are whole.
    return math.ldexp(math.floor(mantissa * 4), exponent - 2)
