"""The gradient of attention, recognised as values mixed by a softmax, whoever wrote it.

    p = exp(x - m) / l,   w = f p,   y = w v

    rows = sum of y dy,   dp = f (dy v'),   dx = p (dp - rows),   dv = w' dy

Here m and l are a number of each row, l the sum of the powers and perhaps a power more, exp(c - m),
and f whatever a share is multiplied by on its way: casts, a selection, what dropout keeps. Op by
op, the way back would keep p and go over it for its inner products with dp, which are those of y
with dy. It makes p again instead, from x and the two numbers of each row, behind a barrier, so
that nothing of rows and columns need be kept. As a whole p does not change with m.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from weft.foundation.numeric import wide_dtype
from weft.ptir import library
from weft.ptir.autodiff.definitions import Definitions, definition, known_number
from weft.ptir.ir import Instruction, Operand, Ref
from weft.ptir.ops.contraction import DotGeneral
from weft.ptir.ops.elementwise import (
    BinaryFn,
    Cast,
    ElementwiseBinary,
    ElementwiseUnary,
    Select,
    UnaryFn,
)
from weft.ptir.ops.movement import BroadcastTo, Reshape, Transpose
from weft.ptir.ops.reduce_kind import ReduceKind
from weft.ptir.ops.reduction import Reduce
from weft.ptir.tape import Environment
from weft.ptir.term import Cotangents, Pullback, Term
from weft.ptir.types import Shape, TensorType

_SOFTMAX: Final = "byteir.softmax"
_MOST_STEPS: Final = 12
"""Between a product of scores and their softmax, and between that and the product with values."""


@dataclass(frozen=True)
class Step:
    """An instruction that makes shares of shares; `side` is their place among its operands."""

    instruction: Instruction
    side: int


@dataclass(frozen=True)
class Powers:
    """The parts of shares that are written out, and the power beside those of the row."""

    shift: Operand
    total: Operand
    beside: Operand | None
    """c, a number of each row; none where it is 0, or where nothing is beside."""
    power: Operand | None
    """exp(c - m); none where nothing is beside."""


@dataclass(frozen=True)
class Shares:
    """A product of shares, its operand number `side`, with values."""

    op: DotGeneral
    side: int
    steps: tuple[Step, ...]
    """From the shares to the product."""
    scores: Operand
    shares: Operand
    axis: int
    powers: Powers | None
    """None where the shares are a softmax as one op."""
    values: Operand

    @property
    def sources(self) -> tuple[Operand, ...]:
        """What the way back leads to."""
        beside = None if self.powers is None else self.powers.beside
        return (self.scores, self.values, *([] if beside is None else [beside]))

    def pulled_back(self, forward: Environment, at: Pullback) -> Cotangents:
        """The cotangents of `sources`; `forward` has what there was on the way forward."""
        back = _Back(self, at, forward)
        beside = back.by_beside() if len(self.sources) > 2 else ()
        return [back.by_scores(), back.by_values(), *beside]


# -- finding them --------------------------------------------------------------------------------


def shares(
    instruction: Instruction, made: Definitions, varies: Callable[[Operand], bool]
) -> Shares | None:
    """The instruction as a product of shares with values, if that is what it is and the scores come
    from a product too; `varies` says of what there are cotangents."""
    if not isinstance(instruction.op, DotGeneral):
        return None
    op = instruction.op
    for side, contract in ((0, op.contract_lhs), (1, op.contract_rhs)):
        found = _find_shares(instruction, op, side, made, varies) if len(contract) == 1 else None
        if found is not None:
            return found
    return None


def _find_shares(
    product: Instruction, op: DotGeneral, side: int, made: Definitions,
    varies: Callable[[Operand], bool],
) -> Shares | None:  # fmt: skip
    operand = product.operands[side]
    axis = (op.contract_lhs, op.contract_rhs)[side][0]
    steps: list[Step] = []
    for _ in range(_MOST_STEPS):
        found = definition(operand, made)
        if found is None or not isinstance(operand, Ref):
            return None
        parts = _written_out(found, axis, made)
        whole = found.op.mnemonic == _SOFTMAX and getattr(found.op, "axis", None) == axis
        if whole or parts is not None:
            scores = found.operands[0] if parts is None else parts[0]
            powers = None if parts is None else parts[1]
            if not varies(scores) or not _is_of_product(scores, made):
                return None
            values = product.operands[1 - side]
            way = tuple(reversed(steps))
            return Shares(op, side, way, scores, Ref(found.id), axis, powers, values)
        place = _share_among(found, made)
        before = None if place is None else _axis_before(found, axis, made)
        if place is None or before is None:
            return None
        # What shares are multiplied by gets no cotangent here: where one is asked for, the ops go
        # back one by one.
        if any(varies(other) for n, other in enumerate(found.operands) if n != place):
            return None
        steps.append(Step(found, place))
        operand, axis = found.operands[place], before
    return None


def _share_among(step: Instruction, made: Definitions) -> int | None:
    """The operand that an instruction makes a multiple of, or moves, each element by itself."""
    match step.op:
        case Cast() | Transpose() | Reshape():
            return 0
        case ElementwiseBinary(fn=BinaryFn.MUL):
            return 1 if _leads_to_shares(step.operands[1], made) else 0
        case ElementwiseBinary(fn=BinaryFn.DIV):
            return 0
        case Select():
            zeros = [known_number(operand, made) == 0 for operand in step.operands[1:]]
            return 1 + zeros.index(False) if sum(zeros) == 1 else None
    return None


def _leads_to_shares(operand: Operand, made: Definitions) -> bool:
    """Whether a factor is more likely the shares than what they are multiplied by."""
    for _ in range(_MOST_STEPS):
        found = definition(operand, made)
        if found is None:
            return False
        if found.op.mnemonic == _SOFTMAX or found.op == ElementwiseBinary(BinaryFn.DIV):
            return True
        if not isinstance(found.op, Cast | Transpose | Reshape):
            return False
        operand = found.operands[0]
    return False


def _axis_before(step: Instruction, axis: int, made: Definitions) -> int | None:
    """The axis that becomes `axis`; None where it is joined with others or cut."""
    if isinstance(step.op, Transpose):
        return step.op.perm[axis]
    if not isinstance(step.op, Reshape):
        return axis
    inner, outer = _shape_before(step, made), _shape_of(step)
    if inner is None or outer is None:
        return None
    behind = outer[axis:]
    place = len(inner) - len(behind)
    # All axes from this one on are the same before and after, so that it was neither joined nor
    # cut.
    return place if place >= 0 and inner[place:] == behind else None


def _shape_of(instruction: Instruction) -> Shape | None:
    kind = instruction.output
    return kind.shape if isinstance(kind, TensorType) else None


def _shape_before(step: Instruction, made: Definitions) -> Shape | None:
    found = definition(step.operands[0], made)
    return None if found is None else _shape_of(found)


def _written_out(
    quotient: Instruction, axis: int, made: Definitions
) -> tuple[Operand, Powers] | None:
    """The scores, and the parts of powers over their sum; None where it is something else."""
    if quotient.op != ElementwiseBinary(BinaryFn.DIV):
        return None
    power, total = definition(quotient.operands[0], made), quotient.operands[1]
    inner = _argument_of(power, UnaryFn.EXP, made)
    if power is None or inner is None or inner.op != ElementwiseBinary(BinaryFn.SUB):
        return None
    scores, shift = inner.operands
    rows, beside = _skip_broadcast(total, made), None
    summed = definition(rows, made)
    if summed is not None and summed.op == ElementwiseBinary(BinaryFn.ADD):
        sums = [_is_sum_of(o, power, axis, made) for o in summed.operands]
        if sum(sums) != 1:
            return None
        beside = summed.operands[sums.index(False)]
    elif not _is_sum_of(rows, power, axis, made):
        return None
    source = _skip_broadcast(shift, made)
    if not _is_row(source, quotient, axis, made) or not _is_row(rows, quotient, axis, made):
        return None
    if beside is None:
        return scores, Powers(source, rows, None, None)
    other = _argument_of(definition(_skip_broadcast(beside, made), made), UnaryFn.EXP, made)
    if other is None or not _is_row(beside, quotient, axis, made):
        return None
    if other.op == ElementwiseUnary(UnaryFn.NEG):
        fits, number = _skip_broadcast(other.operands[0], made) == source, None
    elif other.op == ElementwiseBinary(BinaryFn.SUB):
        fits, number = _skip_broadcast(other.operands[1], made) == source, other.operands[0]
    else:
        return None
    return (scores, Powers(source, rows, number, beside)) if fits else None


def _argument_of(found: Instruction | None, fn: UnaryFn, made: Definitions) -> Instruction | None:
    if found is None or found.op != ElementwiseUnary(fn):
        return None
    return definition(found.operands[0], made)


def _skip_broadcast(operand: Operand, made: Definitions) -> Operand:
    """What is repeated along an axis; itself where nothing is."""
    found = definition(operand, made)
    return found.operands[0] if found is not None and isinstance(found.op, BroadcastTo) else operand


def _is_sum_of(operand: Operand, power: Instruction, axis: int, made: Definitions) -> bool:
    found = definition(operand, made)
    return (
        found is not None
        and isinstance(found.op, Reduce)
        and found.op.kind is ReduceKind.SUM
        and found.op.keepdims
        and tuple(found.op.axes) == (axis,)
        and definition(found.operands[0], made) is power
    )


def _is_row(operand: Operand, quotient: Instruction, axis: int, made: Definitions) -> bool:
    """Whether an operand has one number for each row."""
    found, shape = definition(operand, made), _shape_of(quotient)
    if found is None or shape is None:
        return False
    return _shape_of(found) == (*shape[:axis], 1, *shape[axis + 1 :])


def _is_of_product(operand: Operand, made: Definitions) -> bool:
    """Whether scores are made of a product, element by element."""
    level = [operand]
    for _ in range(_MOST_STEPS):
        found = [d for o in level if (d := definition(o, made)) is not None]
        if any(isinstance(d.op, DotGeneral) for d in found):
            return True
        level = [o for d in found if isinstance(d.op, _OF_ELEMENTS) for o in d.operands]
    return False


_OF_ELEMENTS: Final = (Cast, ElementwiseUnary, ElementwiseBinary, Select, Transpose, Reshape)


# -- the way back --------------------------------------------------------------------------------


class _Back:
    """The way back through one product of shares."""

    def __init__(self, form: Shares, at: Pullback, forward: Environment) -> None:
        self.form, self.at, self.forward = form, at, forward
        self.x = forward[form.scores]
        self.wide = wide_dtype(self.x.dtype)
        self.full = forward[form.shares].shape
        self.rows = self._inner_products()
        self.shares = self._made_again()

    def _made_again(self) -> Term:
        """The shares, in the dtype that powers are computed in."""
        form, z = self.form, self.x.cast(self.wide)
        if form.powers is None:
            top, _, total = library.exponentials(z, form.axis)
        else:
            z = self.x
            top, total = self.forward[form.powers.shift], self.forward[form.powers.total]
        inverse = total.like(1.0) / total
        shift, self.inverse = (row.barrier(self.at.cotangent) for row in (top, inverse))
        return (z - shift.broadcast_to(self.full)).exp() * self.inverse.broadcast_to(self.full)

    def _inner_products(self) -> Term:
        """Those of the results with their cotangents, a number of each row of shares."""
        op, side, wide = self.form.op, self.form.side, self.wide
        g, y = self.at.cotangent.cast(wide), self.at.result.cast(wide)
        mixed = self.at.operands[side]
        batch = (op.batch_lhs, op.batch_rhs)[side]
        axis = (op.contract_lhs, op.contract_rhs)[side][0]
        free = [n for n in range(mixed.rank) if n not in (*batch, axis)]
        others = range(len(batch), g.rank - len(free))
        if side == 0:
            others = range(len(batch) + len(free), g.rank)
        # With y = w v, and p dp = w (dy v') at each place: the sum over a row of p dp is that of y
        # dy. So dx = p (dp - rows) needs no sum over rows of shares.
        found = (g * y).sum(list(others))
        # The axes that are left are those of the shares, but for the one that is summed over.
        order = [*batch, *free]
        found = found.transpose([order.index(n) for n in sorted(order)])
        shape: Shape = (*mixed.shape[:axis], 1, *mixed.shape[axis + 1 :])
        return self._to_shares(found.reshape(shape), factors=False)

    def _to_shares(self, found: Term, *, factors: bool) -> Term:
        """From something laid out as the product's operand to the layout of the shares, with or
        without what shares are multiplied by on the way."""
        axis = (self.form.op.contract_lhs, self.form.op.contract_rhs)[self.form.side][0]
        for step in reversed(self.form.steps):
            op, operands = step.instruction.op, step.instruction.operands
            before = self.forward[operands[step.side]].shape
            if isinstance(op, Transpose):
                found = found.transpose([op.perm.index(n) for n in range(len(op.perm))])
                axis = op.perm[axis]
            elif isinstance(op, Reshape):
                axis -= found.rank - len(before)
                rows: Shape = (*before[:axis], 1, *before[axis + 1 :])
                found = found.reshape(before if factors else rows)
            elif factors:
                found = self._times(step, found)
        return found

    def _times(self, step: Step, x: Term) -> Term:
        """A share, or its cotangent, after a step that multiplies it, in the dtype of `x`."""
        op, operands = step.instruction.op, step.instruction.operands
        if isinstance(op, Select):
            mask = self.forward[operands[0]]
            nothing = x.like(0)
            return x.where(mask, nothing) if step.side == 1 else nothing.where(mask, x)
        if isinstance(op, ElementwiseBinary):
            factor = self.forward[operands[1 - step.side]].cast(x.dtype)
            return x * factor if op.fn is BinaryFn.MUL else x / factor
        return x

    def by_scores(self) -> Term:
        """The cotangent of the scores."""
        by_mixed = self._to_shares(self._by_mixed(), factors=True)
        spread = self.rows.broadcast_to(self.full)
        return (self.shares * (by_mixed - spread)).cast(self.x.dtype)

    def _by_mixed(self) -> Term:
        """The cotangent of the product's operand that is made of shares, not rounded."""
        found = self.form.op.pulled_back(self.at, self.wide)[self.form.side]
        assert found is not None
        return found

    def by_values(self) -> Term | None:
        """The cotangent of the values, with shares as they were on the way forward."""
        side = self.form.side
        if not self.at.wanted[1 - side]:
            return None
        found = self.shares.cast(self.forward[self.form.shares].dtype)
        for step in self.form.steps:
            others = [self.forward[operand] for operand in step.instruction.operands]
            others[step.side] = found
            made = step.instruction
            found = self.forward.tape.append(made.op, others, made.output)
        operands = list(self.at.operands)
        operands[side] = found
        again = replace(self.at, operands=tuple(operands))
        return self.form.op.vjp(again)[1 - side]

    def by_beside(self) -> Sequence[Term | None]:
        """The cotangent of the number beside each row's scores."""
        powers = self.form.powers
        assert powers is not None
        assert powers.power is not None
        assert powers.beside is not None
        power = self.forward[powers.power]
        # l has exp(c - m) in it, and p = exp(x - m) / l: dp / dc is -p exp(c - m) / l, and summed
        # with dp over the row that is -rows exp(c - m) / l.
        return [-(self.rows * (power * self.inverse)).cast(self.forward[powers.beside].dtype)]
