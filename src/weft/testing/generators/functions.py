"""Functions of one or two operands, each inside a domain where it is finite and well behaved."""

from __future__ import annotations

from collections.abc import Callable

from weft.foundation.dtypes import COMPLEX, F32, F64, FLOATS, NUMBERS, REALS
from weft.foundation.scalar import FUNCTIONS, QUADRANT, Domain, Range
from weft.ptir.op import Op
from weft.ptir.ops import functions as fns
from weft.ptir.ops.complex_parts import Complex, Conj, Imag, Real
from weft.ptir.ops.elementwise import SCALARS, ElementwiseUnary, UnaryFn
from weft.testing.draft import Item
from weft.testing.facts import (
    BITS,
    EXACT,
    Facts,
    Number,
    Want,
    anywhere,
    join,
    settle,
    within,
)
from weft.testing.generator import Generator
from weft.testing.generators.elementwise import divisor, operand_bound
from weft.testing.generators.registry import generates


def apply_in(g: Generator, op: Op, domain: Domain) -> Item:
    """Emit a function of one operand inside its domain."""
    dtypes = FLOATS if domain.parts is None else FLOATS | COMPLEX
    dtype = g.dtype(dtypes)
    if dtype.is_complex and domain.parts is not None:
        x = g.pick({dtype}, Want(*domain.parts))
        return g.emit(op, x, facts=Facts(-domain.parts_bound, domain.parts_bound, None))
    x = g.pick({dtype}, Want(*domain.real, special=True))
    low, high = domain.result
    if x.facts.special:
        # At an infinity a function is infinite, NaN, in the range of its other results, or 0.
        low, high = min(low, 0), max(high, 0)
    return g.emit(op, x, facts=Facts(low, high, None, x.facts.special))


def _generate_function(cls: type[Op], domain: Domain) -> Callable[[Generator], None]:
    def generate(g: Generator) -> None:
        apply_in(g, cls(), domain)

    return generate


for _cls in fns.UnaryFunction.__subclasses__():
    if hasattr(_cls, "scalar") and (_domain := FUNCTIONS[_cls.scalar].domain) is not None:
        generates(_cls)(_generate_function(_cls, _domain))


@generates(ElementwiseUnary, weight=8)
def unary(g: Generator) -> None:
    """neg, abs, exp, log, tanh, erf, rsqrt, reciprocal."""
    fn = g.choices.choose([fn for fn in UnaryFn if g.allows(str(fn))])
    op = ElementwiseUnary(fn)
    domain = FUNCTIONS[SCALARS[fn]].domain
    if domain is not None:
        apply_in(g, op, domain)
        return
    x = g.pick(NUMBERS)
    facts = _negate_item(x) if fn is UnaryFn.NEG else _absolute(x)
    g.emit(op, x, facts=facts)


def _negate_item(x: Item) -> Facts:
    return settle(x.dtype, -x.facts.high, -x.facts.low, x.facts.step, special=x.facts.special)


def _absolute(x: Item) -> Facts:
    facts = x.facts
    if x.dtype.is_complex:
        return settle(x.dtype, 0, 2 * facts.bound, None, special=facts.special)
    low = 0 if facts.low <= 0 <= facts.high else min(abs(facts.low), abs(facts.high))
    if x.dtype.is_signed and facts.low == x.dtype.lowest:
        return anywhere(x.dtype)
    return Facts(low, facts.bound, facts.step, facts.special)


# -- rounding and sign ---------------------------------------------------------------------------


@generates(fns.Floor, fns.Ceil, fns.Trunc, fns.Round, weight=1)
def rounding(g: Generator) -> None:
    ops = [fns.Floor(), fns.Ceil(), fns.Trunc(), fns.Round()]
    op = g.choices.choose([op for op in ops if g.allows(op.mnemonic)])
    x = g.pick(FLOATS, EXACT)
    facts = x.facts
    step = max(facts.step or 1.0, 1.0)
    g.emit(op, x, facts=settle(x.dtype, facts.low - 1, facts.high + 1, step, special=facts.special))


@generates(fns.Sign)
def sign(g: Generator) -> None:
    dtype = g.dtype(NUMBERS)
    if dtype.is_complex:
        x = g.pick({dtype}, Want(*QUADRANT))
        g.emit(fns.Sign(), x, facts=Facts(-1, 1, None))
        return
    x = g.pick({dtype}, EXACT)
    low = -1 if x.facts.low < 0 else 0
    g.emit(fns.Sign(), x, facts=Facts(low, 1, 1.0, x.facts.special))


@generates(fns.Signbit)
def signbit(g: Generator) -> None:
    x = g.pick(FLOATS, Want(exact=True, zeros=True))
    g.emit(fns.Signbit(), x, facts=BITS)


@generates(fns.IsNan, fns.IsInf, fns.IsFinite, weight=1)
def classify(g: Generator) -> None:
    ops = [fns.IsNan(), fns.IsInf(), fns.IsFinite()]
    op = g.choices.choose([op for op in ops if g.allows(op.mnemonic)])
    g.emit(op, g.pick(FLOATS | COMPLEX), facts=BITS)


# -- two operands --------------------------------------------------------------------------------


def _generate_of_two(g: Generator, op: Op, first: Want, second: Want, result: Range) -> None:
    lhs = g.pick(FLOATS, first)
    rhs = g.like(lhs, second)
    special = lhs.facts.special or rhs.facts.special
    g.emit(op, lhs, rhs, facts=Facts(*result, None, special))


@generates(fns.Atan2)
def atan2(g: Generator) -> None:
    _generate_of_two(g, fns.Atan2(), within(8, special=True), Want(0.25, 8), (-1.75, 1.75))


@generates(fns.Hypot)
def hypot(g: Generator) -> None:
    _generate_of_two(g, fns.Hypot(), within(16, special=True), within(16, special=True), (0, 24))


@generates(fns.Logaddexp)
def logaddexp(g: Generator) -> None:
    _generate_of_two(g, fns.Logaddexp(), within(8), within(8), (-8, 10))


@generates(fns.Pow)
def power(g: Generator) -> None:
    dtype = g.dtype(NUMBERS)
    if dtype.is_integer:
        lhs = g.pick({dtype})
        g.emit(fns.Pow(), lhs, g.like(lhs, Want(0, 6)), facts=anywhere(dtype))
        return
    base = Want(0.25, 2.0) if dtype.is_complex else Want(0.25, 4.0)
    lhs = g.pick({dtype}, base)
    rhs = g.like(lhs, within(1 if dtype.is_complex else 2))
    result: Range = (-16, 16) if dtype.is_complex else (0.0625, 16)
    g.emit(fns.Pow(), lhs, rhs, facts=Facts(*result, None))


@generates(fns.Fmod)
def fmod(g: Generator) -> None:
    dtype = g.dtype(REALS)
    if dtype.is_integer:
        lhs = g.pick({dtype})
        rhs = divisor(g, lhs)
    else:
        lhs = g.pick({dtype}, Want(exact=True))
        rhs = g.like(lhs, Want(0.25, 64, exact=True))
    low: Number = min(0, lhs.facts.low)
    facts = settle(dtype, low, max(0, lhs.facts.high), join(lhs.facts, rhs.facts).step)
    g.emit(fns.Fmod(), lhs, rhs, facts=facts)


@generates(fns.Copysign)
def copysign(g: Generator) -> None:
    lhs = g.pick(FLOATS)
    rhs = g.like(lhs, Want(exact=True, zeros=True))
    bound = lhs.facts.bound
    facts = Facts(-bound, bound, lhs.facts.step, lhs.facts.special)
    g.emit(fns.Copysign(), lhs, rhs, facts=facts)


@generates(fns.Nextafter)
def nextafter(g: Generator) -> None:
    dtype = g.dtype(FLOATS)
    want = within(operand_bound(dtype, 2), exact=True)
    lhs = g.pick({dtype}, want)
    rhs = g.like(lhs, want)
    both = join(lhs.facts, rhs.facts)
    g.emit(fns.Nextafter(), lhs, rhs, facts=settle(dtype, both.low, both.high, None))


# -- complex parts -------------------------------------------------------------------------------


@generates(Real, Imag, weight=1)
def parts(g: Generator) -> None:
    op = g.choices.choose([op for op in (Real(), Imag()) if g.allows(op.mnemonic)])
    x = g.pick(COMPLEX)
    g.emit(op, x, facts=x.facts)


@generates(Conj)
def conj(g: Generator) -> None:
    x = g.pick(COMPLEX)
    bound = x.facts.bound
    facts = Facts(min(x.facts.low, -bound), bound, x.facts.step, x.facts.special)
    g.emit(Conj(), x, facts=facts)


@generates(Complex)
def complex_(g: Generator) -> None:
    real = g.pick({F32, F64}, Want())
    imag = g.like(real, Want())
    g.emit(Complex(), real, imag, facts=join(real.facts, imag.facts))
