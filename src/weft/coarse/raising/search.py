"""Helpers of the pattern matcher: the definition of a value, without casts of shape and constant
factors.

A `Search` remembers the instructions that it has taken as parts of the formula. `first` tries
alternatives and forgets what those that failed have taken. Constants are never parts: many formulas
may share one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from weft.foundation.dtypes import I1
from weft.ptir.ir import Body, Instruction, Operand, Ref
from weft.ptir.literal import TensorLiteral
from weft.ptir.op import EvalContext
from weft.ptir.ops.constant import Constant
from weft.ptir.ops.elementwise import Cast
from weft.ptir.ops.movement import BroadcastTo, Iota
from weft.ptir.ops.reduction import Reduce
from weft.ptir.types import Shape, TensorType, ValueType

Array = NDArray[Any]
Found = TypeVar("Found")
CLOSE = 1e-6
"""How far constants may be from what a formula has: as far as f32 rounds them, a few times over."""
MOST_CONSTANT = 1 << 22
"""The largest constant tensor that is computed to be recognised."""
MOST_STEPS = 24


def is_close(value: float, wanted: float) -> bool:
    """Whether a constant is the one of a formula, but for rounding."""
    return math.isclose(value, wanted, rel_tol=CLOSE)


class View:
    """A body as a graph."""

    def __init__(self, body: Body) -> None:
        self.types: dict[int, ValueType] = dict(
            zip(body.parameter_ids, body.parameters, strict=True)
        )
        self.definitions: dict[int, Instruction] = {}
        self.readers: dict[int, set[int]] = {value_id: {-1} for value_id in body.result_ids}
        for instruction in body.body:
            self.types[instruction.id] = instruction.output
            self.definitions[instruction.id] = instruction
            for value_id in instruction.uses:
                self.readers.setdefault(value_id, set()).add(instruction.id)

    def definition(self, operand: Operand) -> Instruction | None:
        return self.definitions.get(operand.id) if isinstance(operand, Ref) else None

    def tensor(self, operand: Operand) -> TensorType | None:
        """The type of an operand that is a whole tensor."""
        if isinstance(operand, TensorLiteral):
            return operand.type
        kind = self.types.get(operand.id) if isinstance(operand, Ref) else None
        return kind if isinstance(kind, TensorType) else None

    def shape(self, operand: Operand) -> Shape | None:
        kind = self.tensor(operand)
        return None if kind is None else kind.shape

    # -- constants -------------------------------------------------------------------------------

    def number(self, operand: Operand) -> float | None:
        """The one real number that all elements of an operand are, if it is known; truth is 1."""
        for _ in range(MOST_STEPS):
            if isinstance(operand, TensorLiteral):
                kind = operand.type.dtype
                real = kind.is_float or kind.is_integer or kind is I1
                return float(operand.item()) if real and operand.is_splat else None
            definition = self.definition(operand)
            if definition is None:
                return None
            if isinstance(definition.op, Constant):
                operand = definition.op.value
            elif definition.op.mnemonic in ("broadcast_to", "reshape", "cast"):
                operand = definition.operands[0]
            else:
                return None
        return None

    def array(self, operand: Operand) -> Array | None:
        """The elements of an operand that depends on no parameter, if they are not too many."""
        try:
            return self._array(operand, {}, [MOST_STEPS])
        except (ValueError, IndexError):
            return None

    def _array(self, operand: Operand, known: dict[int, Array], left: list[int]) -> Array | None:
        if isinstance(operand, TensorLiteral):
            return operand.array
        definition = self.definition(operand)
        if definition is None or not _is_computable(definition):
            return None
        if definition.id not in known:
            left[0] -= 1
            if left[0] < 0:
                return None
            parts = [self._array(part, known, left) for part in definition.operands]
            if any(part is None for part in parts):
                return None
            given = [part for part in parts if part is not None]
            context = EvalContext(definition.output, 0, lambda stream: 0)
            with np.errstate(all="ignore"):
                known[definition.id] = np.asarray(definition.op.evaluate(context, *given))
        return known[definition.id]


_PLAIN = ("constant", "iota", "compare", "select", "broadcast_to", "reshape", "cast", "transpose")
_ARITHMETIC = ("add", "sub", "mul", "neg", "maximum", "minimum", "slice")


def _is_computable(instruction: Instruction) -> bool:
    """Whether an instruction can be computed here: few elements, an op that masks are made of."""
    kind = instruction.output
    if not isinstance(kind, TensorType) or not kind.is_static or kind.size > MOST_CONSTANT:
        return False
    return isinstance(instruction.op, Iota) or instruction.op.mnemonic in (*_PLAIN, *_ARITHMETIC)


@dataclass
class Search:
    """One attempt to find a formula; `inside` are the instructions that it consists of."""

    view: View
    inside: list[int] = field(default_factory=list)

    def first(self, *attempts: Callable[[], Found]) -> Found | None:
        """What the first attempt that succeeds finds."""
        for attempt in attempts:
            mark = len(self.inside)
            found = attempt()
            if found is not None:
                return found
            del self.inside[mark:]
        return None

    def take(self, operand: Operand | None, *names: str) -> Instruction | None:
        """The definition of an operand, as a part of the formula, if it is one of these ops.
        Nothing comes of nothing, here and below: an attempt that failed need not be asked."""
        definition = None if operand is None else self.view.definition(operand)
        if definition is None or definition.op.mnemonic not in names:
            return None
        self.inside.append(definition.id)
        return definition

    # -- taking things off -----------------------------------------------------------------------

    def scaled(self, operand: Operand) -> tuple[float, Operand]:
        """A constant factor, and what is left when all of them are taken off."""
        factor = 1.0
        for _ in range(MOST_STEPS):
            found = self._constant_factor(operand)
            if found is None:
                break
            factor, operand = factor * found[0], found[1]
        return factor, operand

    def _constant_factor(self, operand: Operand) -> tuple[float, Operand] | None:
        definition = self.view.definition(operand)
        if definition is None or definition.op.mnemonic not in ("mul", "div", "neg"):
            return None
        if definition.op.mnemonic == "neg":
            self.inside.append(definition.id)
            return -1.0, definition.operands[0]
        left, right = definition.operands
        number = self.view.number(right)
        if number is not None and (definition.op.mnemonic == "mul" or number):
            self.inside.append(definition.id)
            return (number if definition.op.mnemonic == "mul" else 1.0 / number), left
        number = self.view.number(left)
        if number is not None and definition.op.mnemonic == "mul":
            self.inside.append(definition.id)
            return number, right
        return None

    def cast_of(self, operand: Operand) -> Operand:
        """The operand without casts between floats."""
        definition = self.view.definition(operand)
        while definition is not None and isinstance(definition.op, Cast):
            self.inside.append(definition.id)
            operand = definition.operands[0]
            definition = self.view.definition(operand)
        return operand

    def row(
        self, operand: Operand, shape: Shape, axes: Sequence[int]
    ) -> tuple[float, Operand] | None:
        """A value for each row, of which `operand` repeats the elements along `axes` up to `shape`:
        a constant factor, and the value, which has these axes as 1 or not at all."""
        kept = tuple(1 if axis in axes else dim for axis, dim in enumerate(shape))
        dropped = tuple(dim for axis, dim in enumerate(shape) if axis not in axes)
        # A broadcast puts missing axes in front: only there may the repeated axes be missing.
        leading = sorted(axes) == list(range(len(axes)))
        factor, spread = 1.0, self.view.shape(operand) != shape
        for _ in range(MOST_STEPS):
            more, operand = self.scaled(operand)
            factor *= more
            definition = self.view.definition(operand)
            if definition is None or definition.op.mnemonic not in ("broadcast_to", "reshape"):
                break
            source = definition.operands[0]
            inner = self.view.shape(source)
            if isinstance(definition.op, BroadcastTo) and _repeats(inner, self.view.shape(operand)):
                # The one place where elements are repeated.
                fits = inner == kept or (inner == dropped and leading)
                if spread or not fits or self.view.shape(operand) != shape:
                    return None
                spread = True
            self.inside.append(definition.id)
            operand = source
        found = self.view.shape(operand)
        return (factor, operand) if found in (kept, dropped) else None

    def plain_row(
        self, operand: Operand | None, shape: Shape, axes: Sequence[int]
    ) -> Operand | None:
        """A value for each row that is repeated as it is."""
        found = None if operand is None else self.row(operand, shape, axes)
        return found[1] if found is not None and found[0] == 1.0 else None

    def unrepeated(
        self, operand: Operand | None, shape: Shape, axes: Sequence[int]
    ) -> Operand | None:
        """A value for each row; a value that is not repeated rows is itself."""
        return self.first(lambda: self.plain_row(operand, shape, axes)) or operand

    # -- what rows are made of -------------------------------------------------------------------

    def reduction(self, operand: Operand | None, kind: str, axes: Sequence[int]) -> Operand | None:
        """The operand of a reduction over exactly these axes, in one dtype throughout."""
        definition = self.take(operand, f"reduce_{kind}")
        if definition is None or not isinstance(definition.op, Reduce):
            return None
        (source,) = definition.operands
        kind_of = self.view.tensor(source)
        if kind_of is None or sorted(definition.op.axes) != sorted(axes):
            return None
        # A sum that is added up or handed out in another dtype rounds elsewhere than the op does.
        plain = (None, kind_of.dtype)
        op = definition.op
        return source if op.accum_dtype in plain and op.out_dtype in plain else None

    def axes_of(self, operand: Operand, shape: Shape, kind: str) -> tuple[int, ...] | None:
        """The axes of the reduction that a repeated row value comes from; nothing is taken."""
        looking = Search(self.view)
        for _ in range(MOST_STEPS):
            _, operand = looking.scaled(operand)
            definition = self.view.definition(operand)
            if definition is None:
                return None
            if isinstance(definition.op, Reduce) and definition.op.mnemonic == f"reduce_{kind}":
                source = self.view.shape(definition.operands[0])
                return definition.op.axes if source == shape else None
            if definition.op.mnemonic not in ROW_STEPS:
                return None
            varying = [o for o in definition.operands if self.view.number(o) is None]
            if len(varying) != 1:
                return None
            (operand,) = varying
        return None

    def mean(self, operand: Operand | None, shape: Shape, axes: Sequence[int]) -> Operand | None:
        """What a repeated row value is the mean of, by a division or a product."""
        sizes = [shape[axis] for axis in axes]
        found = None if operand is None else self.row(operand, shape, axes)
        if found is None or not all(isinstance(size, int) and size for size in sizes):
            return None
        factor, total = found
        count = math.prod(size for size in sizes if isinstance(size, int))
        return self.reduction(total, "sum", axes) if is_close(factor * count, 1.0) else None

    def row_maximum(self, operand: Operand, shape: Shape, axis: int) -> Operand | None:
        """What a repeated row value is the maximum of; it may be kept from gradients."""
        largest = self.plain_row(operand, shape, [axis])
        stopped = self.argument(largest, "stop_gradient")
        if stopped is not None:
            largest = self.plain_row(stopped, shape, [axis])
        bounded = self.first(lambda: self._with_number(largest, "maximum"))
        if bounded is not None and bounded[0] == -math.inf:
            # As JAX writes it.
            largest = self.plain_row(bounded[1], shape, [axis])
        return self.reduction(largest, "max", [axis])

    def argument(self, operand: Operand | None, name: str) -> Operand | None:
        """What a function is taken of; a root may be written as a power."""
        power = ROOTS.get(name)
        definition = self.take(operand, name) if power is None else self.take(operand, name, "pow")
        if definition is None:
            return None
        written = definition.op.mnemonic == name
        base, *exponent = definition.operands
        return base if written or self.view.number(exponent[0]) == power else None

    def inverted(self, operand: Operand | None) -> Operand | None:
        """What an operand is one over."""
        definition = self.take(operand, "reciprocal", "div")
        if definition is None:
            return None
        if definition.op.mnemonic == "reciprocal":
            return definition.operands[0]
        return definition.operands[1] if self.view.number(definition.operands[0]) == 1.0 else None

    def plus_number(self, operand: Operand | None) -> tuple[float, Operand] | None:
        """A constant, and what it is added to."""
        return self._with_number(operand, "add")

    def at_least(self, operand: Operand | None) -> tuple[float, Operand] | None:
        """A constant from 0 on, and what it is a bound below of."""
        found = self._with_number(operand, "maximum")
        return found if found is not None and 0.0 <= found[0] < math.inf else None

    def _with_number(self, operand: Operand | None, name: str) -> tuple[float, Operand] | None:
        definition = self.take(operand, name)
        if definition is None:
            return None
        for value, other in (definition.operands, definition.operands[::-1]):
            number = self.view.number(other)
            if number is not None:
                return number, value
        return None

    def laid(self, operand: Operand, shape: Shape, axes: Sequence[int]) -> Operand | None:
        """A parameter with a value for each index of these axes, of which `operand` repeats the
        elements along the others."""
        kept = tuple(dim if axis in axes else 1 for axis, dim in enumerate(shape))
        definition = self.view.definition(operand)
        if definition is not None and isinstance(definition.op, BroadcastTo):
            self.inside.append(definition.id)
            operand = definition.operands[0]
        found = self.view.shape(operand)
        if found is None:
            return None
        aligned = (1,) * (len(shape) - len(found)) + found
        return operand if aligned == kept else None

    def square(self, operand: Operand | None) -> Operand | None:
        """What is squared, by a product or a power."""
        definition = self.take(operand, "mul", "pow")
        if definition is None:
            return None
        base, other = definition.operands
        if definition.op.mnemonic == "pow":
            return base if self.view.number(other) == 2.0 else None
        return base if base == other else None


def _repeats(inner: Shape | None, outer: Shape | None) -> bool:
    """Whether a broadcast does more than to put axes of extent 1 in front."""
    if inner is None or outer is None:
        return True
    return (1,) * (len(outer) - len(inner)) + inner != outer


ROOTS = {"sqrt": 0.5, "rsqrt": -0.5}
"""The roots, and the powers that they are."""
ROW_STEPS = (
    *("broadcast_to", "reshape", "rsqrt", "sqrt", "reciprocal", "add", "maximum", "div", "log"),
    *("pow", "stop_gradient"),
)
"""What may lie between a reduction and the values of its rows repeated."""
