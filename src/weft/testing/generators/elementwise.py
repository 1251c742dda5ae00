"""Arithmetic, comparison, selection, casts and bits."""

from __future__ import annotations

import math
from dataclasses import replace

from weft.foundation.dtypes import ANY, BOOL, I1, INTEGERS, NUMBERS, ORDERED, REALS, DType
from weft.ptir.ops.bits import (
    Bitcast,
    BitwiseAnd,
    BitwiseNot,
    BitwiseOr,
    BitwiseXor,
    ShiftLeft,
    ShiftRight,
)
from weft.ptir.ops.elementwise import (
    BinaryFn,
    Cast,
    Clamp,
    Compare,
    CompareFn,
    ElementwiseBinary,
    Select,
    StopGradient,
)
from weft.testing.draft import Item
from weft.testing.facts import (
    BITS,
    EXACT,
    Facts,
    Number,
    Want,
    anywhere,
    join,
    limit,
    part_dtype,
    product_facts,
    saturated,
    settle,
    within,
)
from weft.testing.generator import Generator, Skip
from weft.testing.generators.registry import generates


def operand_bound(dtype: DType, share: float) -> Number:
    """The magnitude of operands when a result is `share` times as large; integers may wrap."""
    return math.inf if dtype.is_integer else 2.0 ** math.floor(math.log2(limit(dtype) / share))


@generates(ElementwiseBinary, weight=8)
def binary(g: Generator) -> None:
    """add, sub, mul, div, maximum, minimum."""
    fn = g.choices.choose([fn for fn in BinaryFn if g.allows(str(fn))])
    if fn in (BinaryFn.MAXIMUM, BinaryFn.MINIMUM):
        extreme(g, fn)
    elif fn is BinaryFn.DIV:
        divide(g)
    elif fn is BinaryFn.MUL:
        multiply(g)
    else:
        add(g, fn)


def extreme(g: Generator, fn: BinaryFn) -> Item:
    lhs = g.pick(ORDERED)
    rhs = g.like(lhs)
    a, b = lhs.facts, rhs.facts
    choose = max if fn is BinaryFn.MAXIMUM else min
    both = join(a, b)
    facts = replace(both, zeros=False)
    if not both.special:
        facts = Facts(choose(a.low, b.low), choose(a.high, b.high), both.step)
    return g.emit(ElementwiseBinary(fn), lhs, rhs, facts=facts)


def add(g: Generator, fn: BinaryFn) -> Item:
    dtype = g.dtype(NUMBERS)
    want = within(operand_bound(dtype, 2))
    lhs = g.pick({dtype}, want)
    rhs = g.like(lhs, want)
    return sum_of(g, lhs, rhs, fn)


def sum_of(g: Generator, lhs: Item, rhs: Item, fn: BinaryFn = BinaryFn.ADD) -> Item:
    """`lhs + rhs` or `lhs - rhs` with its facts."""
    a, b = lhs.facts, rhs.facts
    low, high = (b.low, b.high) if fn is BinaryFn.ADD else (-b.high, -b.low)
    facts = settle(lhs.dtype, a.low + low, a.high + high, join(a, b).step)
    return g.emit(ElementwiseBinary(fn), lhs, rhs, facts=facts)


def multiply(g: Generator) -> Item:
    dtype = g.dtype(NUMBERS)
    bound = math.inf if dtype.is_integer else 2.0 ** (math.log2(limit(dtype)) // 2 - 1)
    lhs = g.pick({dtype}, within(bound))
    return product_of(g, lhs, g.like(lhs, within(bound)))


def product_of(g: Generator, lhs: Item, rhs: Item) -> Item:
    """`lhs * rhs` with its facts."""
    low, high, step = product_facts(lhs.facts, rhs.facts)
    if lhs.dtype.is_complex:
        # Each part is a sum of two products.
        high = 2 * max(abs(low), abs(high))
        low = -high
    facts = settle(lhs.dtype, low, high, step)
    return g.emit(ElementwiseBinary(BinaryFn.MUL), lhs, rhs, facts=facts)


def divide(g: Generator) -> Item:
    dtype = g.dtype(NUMBERS)
    if dtype.is_integer:
        lhs = g.pick({dtype})
        rhs = divisor(g, lhs)
        bound = max(lhs.facts.bound, 1)
        facts = settle(dtype, -bound if dtype.is_signed else 0, bound, 1.0)
        return g.emit(ElementwiseBinary(BinaryFn.DIV), lhs, rhs, facts=facts)
    lhs = g.pick({dtype}, within(operand_bound(dtype, 8)))
    rhs = g.like(lhs, Want(0.25, 8.0))
    bound = lhs.facts.bound * 8
    facts = settle(dtype, -bound, bound, None)
    return g.emit(ElementwiseBinary(BinaryFn.DIV), lhs, rhs, facts=facts)


def divisor(g: Generator, lhs: Item) -> Item:
    """Integers without a zero, of the type of `lhs`."""
    if lhs.dtype.is_signed and g.choices.chance(0.3):
        return g.like(lhs, Want(-math.inf, -1))
    return g.like(lhs, Want(1, math.inf))


@generates(Compare, weight=3)
def compare(g: Generator) -> None:
    op = Compare(g.choices.choose(list(CompareFn)))
    lhs = g.pick(op.dtype_table["lhs"], EXACT)
    g.emit(op, lhs, g.like(lhs, EXACT), facts=BITS)


@generates(Select, weight=3)
def select(g: Generator) -> None:
    on_true = g.pick(ANY)
    on_false = g.like(on_true)
    pred = g.like(on_true, dtype=I1)
    g.emit(Select(), pred, on_true, on_false, facts=join(on_true.facts, on_false.facts))


@generates(Clamp)
def clamp(g: Generator) -> None:
    x = g.pick(ORDERED)
    low, high = g.like(x), g.like(x)
    g.emit(Clamp(), x, low, high, facts=g.cut(x, low, high))


@generates(StopGradient, weight=1)
def stop_gradient(g: Generator) -> None:
    x = g.pick(ANY)
    g.emit(StopGradient(), x, facts=x.facts)


@generates(Cast, weight=6)
def cast(g: Generator) -> None:
    target = g.dtype(ANY)
    x = g.pick(ANY, ok=lambda item: item.dtype is not target)
    cast_to(g, x, target)


def cast_to(g: Generator, x: Item, target: DType) -> Item:
    """The item in another dtype, brought into its range first."""
    to_float = target.is_float or target.is_complex
    fitted = g.fit(x, within(limit(target), special=True) if to_float else EXACT)
    if fitted is None:
        raise Skip
    return g.emit(Cast(target), fitted, facts=cast_facts(fitted.dtype, fitted.facts, target))


def cast_facts(source: DType, facts: Facts, target: DType) -> Facts:
    """The facts of elements cast from one dtype to another."""
    if not (target.is_float or target.is_complex):
        return saturated(target, facts)
    if part_dtype(source) is part_dtype(target):
        zero = Facts(0, 0, facts.step, zeros=True)
        return join(facts, zero) if target.is_complex and not source.is_complex else facts
    low, high = min(facts.low, 0), max(facts.high, 0)
    return settle(target, low, high, facts.step, special=facts.special)


# -- bits ----------------------------------------------------------------------------------------


@generates(BitwiseAnd)
def bitwise_and(g: Generator) -> None:
    x = g.pick(INTEGERS | BOOL)
    other = g.like(x)
    a, b = x.facts, other.facts
    facts = anywhere(x.dtype)
    if a.low >= 0 and b.low >= 0:
        facts = Facts(0, min(a.high, b.high))
    g.emit(BitwiseAnd(), x, other, facts=facts)


@generates(BitwiseOr)
def bitwise_or(g: Generator) -> None:
    x = g.pick(INTEGERS | BOOL)
    g.emit(BitwiseOr(), x, g.like(x), facts=anywhere(x.dtype))


@generates(BitwiseXor)
def bitwise_xor(g: Generator) -> None:
    x = g.pick(INTEGERS | BOOL)
    g.emit(BitwiseXor(), x, g.like(x), facts=anywhere(x.dtype))


@generates(BitwiseNot)
def bitwise_not(g: Generator) -> None:
    x = g.pick(INTEGERS | BOOL)
    g.emit(BitwiseNot(), x, facts=anywhere(x.dtype))


def _draw_shift(g: Generator, x: Item) -> Item:
    """Shift amounts, now and then one of the dtype's width or more."""
    return g.like(x, Want(0, min(x.dtype.bits + 2, x.dtype.highest)))


@generates(ShiftLeft)
def shift_left(g: Generator) -> None:
    x = g.pick(INTEGERS)
    g.emit(ShiftLeft(), x, _draw_shift(g, x), facts=anywhere(x.dtype))


@generates(ShiftRight)
def shift_right(g: Generator) -> None:
    x = g.pick(INTEGERS)
    facts = Facts(min(x.facts.low, 0), max(x.facts.high, 0))
    g.emit(ShiftRight(), x, _draw_shift(g, x), facts=facts)


@generates(Bitcast)
def bitcast(g: Generator) -> None:
    """Numbers as integers, on whose bits all implementations agree; integers as floats would give
    NaN and numbers beyond every bound."""
    source = g.dtype(frozenset(dtype for dtype in REALS if dtype.bits >= 8))
    same = frozenset(dtype for dtype in INTEGERS if dtype.bits == source.bits)
    target = g.dtype(same - {source})
    x = g.pick([source], Want(exact=True, zeros=source.is_float))
    g.emit(Bitcast(target), x, facts=anywhere(target))
