"""Constant folding: what depends on constants alone is computed once, by the reference meaning.

Left as they are: random ops and control flow, custom calls and callbacks, `stop_gradient`, what
would violate the contract when it runs (the violation belongs to the run), and results with too
many elements. So are `iota` and `broadcast_to`, which are cheaper to compute than to store and
which say more than their elements do; but what is computed from broadcast constants is folded.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.foundation.errors import WeftError
from weft.ptir.ir import Operand, Program
from weft.ptir.literal import from_array
from weft.ptir.op import EvalContext, Op
from weft.ptir.ops.collective import OfRanks
from weft.ptir.ops.constant import CustomCall
from weft.ptir.ops.elementwise import StopGradient
from weft.ptir.ops.movement import BroadcastTo
from weft.ptir.passes.log import PassLog
from weft.ptir.passes.rewrite import Match, New, Replacement, Rule, constant, rewrite
from weft.ptir.types import TensorType, ValueType

MAX_ELEMENTS = 65_536


def fold(
    program: Program, log: PassLog | None = None, *, max_elements: int = MAX_ELEMENTS
) -> Program:
    """Fold every constant expression whose result has at most `max_elements` elements."""
    return rewrite(program, fold_rules(max_elements), log)


@cache
def fold_rules(max_elements: int = MAX_ELEMENTS) -> tuple[Rule, ...]:
    """The two rules of folding; the one that keeps a repeated value small comes first."""

    def dense(match: Match) -> Replacement | None:
        return _fold_constants(match, max_elements)

    return (
        Rule(
            "fold-splat", "f(splat(a), splat(b)), f elementwise", "splat(f(a, b))", (), _fold_splat
        ),
        Rule("fold-constants", "op(constant, constant)", "constant", (), dense),
    )


def _foldable(op: Op) -> bool:
    held = op.random or op.regions or op.foreign
    return not (held or isinstance(op, CustomCall | StopGradient | BroadcastTo | OfRanks))


def _fold_splat(match: Match) -> Replacement | None:
    op, output = match.op, match.output
    if not (op.elementwise and _foldable(op)) or not isinstance(output, TensorType):
        return None
    if output.rank == 0 or not match.operands:
        return None
    known = []
    for operand in match.operands:
        value = match.splat(operand)
        if value is None:
            return None
        known.append(value)
    # Elementwise, so one element says what all of them are; the result stays a repeated number.
    result = _evaluate_op(op, output.with_shape(()), known)
    return None if result is None else New(BroadcastTo(output.shape), (from_array(result),))


def _fold_constants(match: Match, max_elements: int) -> Replacement | None:
    op, output = match.op, match.output
    if not (match.operands and _foldable(op) and isinstance(output, TensorType)):
        return None
    # Most instructions have an operand that is no constant: that is seen before sizes are.
    known = []
    for operand in match.operands:
        array = _constant_elements(match, operand, max_elements)
        if array is None:
            return None
        known.append(array)
    if not output.is_static or output.size > max_elements:
        return None
    result = _evaluate_op(op, output, known)
    return None if result is None else constant(result)


def _constant_elements(match: Match, operand: Operand, max_elements: int) -> NDArray[Any] | None:
    """The elements of a constant operand; of a broadcast one a view, where it is not too large."""
    found = match.literal(operand)
    if found is not None:
        return found.array
    definition = match.definition(operand)
    if definition is None or not isinstance(definition.op, BroadcastTo):
        return None
    found = match.literal(definition.operands[0])
    kind = match.tensor(operand)
    if found is None or not kind.is_static or kind.size > max_elements:
        return None
    return np.broadcast_to(found.array, kind.static_shape)


def _evaluate_op(op: Op, output: ValueType, args: list[NDArray[Any]]) -> NDArray[Any] | None:
    try:
        with np.errstate(all="ignore"):
            result = op.evaluate(EvalContext(output, 0, lambda stream: 0), *args)
    # A violation is the run's to report, and a result without room is the run's to refuse.
    except (WeftError, MemoryError):
        return None
    return result if isinstance(result, np.ndarray) else None
