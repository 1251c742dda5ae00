"""One body under construction: a method for every op, each checked where it is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from weft.foundation.calls import told_methods
from weft.foundation.dtypes import DType, as_dtype
from weft.foundation.errors import SpecViolation, UserError, brief
from weft.foundation.lines import shown, user_line
from weft.ptir import library
from weft.ptir.builder.value import Like, Value
from weft.ptir.codecs.wire import decode_call
from weft.ptir.ir import (
    ElementRef,
    Function,
    Instruction,
    Operand,
    Program,
    Ref,
    Region,
    ValueKey,
)
from weft.ptir.literal import TensorLiteral, literal, scalar_literal
from weft.ptir.op import SPELLINGS, Op
from weft.ptir.ops.constant import Constant, CustomCall
from weft.ptir.ops.control import Cond, Scan, While
from weft.ptir.ops.elementwise import Select
from weft.ptir.ops.movement import BroadcastTo
from weft.ptir.schema import Maybe, PerAxis, ScalarOf, attr_map
from weft.ptir.types import (
    UNKNOWN,
    Dim,
    Symbol,
    TensorType,
    TupleType,
    ValueType,
    agrees,
    shape_of,
    symbols_of,
)
from weft.ptir.verify import BodyScope, check_type
from weft.ptir.written import Number, pair_of_axes


@dataclass
class Shared:
    """What the builders of one program share: regions, lines, and the supply of names."""

    regions: dict[int, Region] = field(default_factory=dict)
    region_count: int = 0
    locations: dict[ValueKey, str] = field(default_factory=dict)
    symbols: set[Symbol] = field(default_factory=set)

    def fresh_symbol(self) -> Dim:
        """A name for a derived dim that nothing else uses."""
        number = len(self.symbols)
        while (symbol := Symbol(f"d{number}")) in self.symbols:
            number += 1
        self.symbols.add(symbol)
        return symbol

    def as_program(self, entry: str, functions: tuple[Function, ...]) -> Program:
        regions = tuple(self.regions[region_id] for region_id in sorted(self.regions))
        return Program(entry, functions, regions, dict(self.locations))


@told_methods
class BodyBuilder:
    """Builds one body: the instructions of a function or of a region."""

    def __init__(self, label: str, shared: Shared) -> None:
        self.label = label
        self._shared = shared
        self._types: dict[int, ValueType] = {}
        self._body: list[Instruction] = []
        self._bound: set[Symbol] = set()

    # -- instructions ----------------------------------------------------------------------------

    def emit(
        self, name: str, *operands: Like, output: ValueType | None = None, **attrs: Any
    ) -> Value:
        """Append the op called `name`. `output` names dims that cannot be inferred."""

        if not isinstance(name, str) or name not in SPELLINGS:
            raise UserError(f"there is no op called {brief(name)}")
        cls, fixed = SPELLINGS[name]
        values = self._operands(cls, operands)
        op = make_op(cls, [value.type for value in values], {**fixed, **attrs})
        return self.append(op, values, output)

    def __getattr__(self, name: str) -> Callable[..., Value]:
        """Every op is a method: the operands, then its attributes by name."""
        if name in SPELLINGS:
            return partial(self.emit, name)
        raise AttributeError(f"there is no op called {name!r}")

    def append(self, op: Op, values: Sequence[Value], output: ValueType | None = None) -> Value:
        """Append an op that is already made."""
        for value in values:
            if value.builder is not self and not isinstance(value.operand, TensorLiteral):
                raise UserError(
                    f"{value!r} belongs to {_foreign_label(value, self)}, not to {self.label}; "
                    "a region sees only its own parameters, pass the value as an argument"
                )
        scope = BodyScope(self._shared.regions, self._bound)
        if isinstance(op, CustomCall):
            if output is None:
                raise UserError(f"the custom call {op.target!r} needs its output type")
            inferred = output
        else:
            inferred = op.result_type([value.type for value in values], scope)
        declared = self._declare(inferred, output)
        check_type(declared)
        return self._define(op, tuple(value.operand for value in values), declared)

    def _declare(self, inferred: ValueType, output: ValueType | None) -> ValueType:
        if output is not None:
            if not agrees(inferred, output):
                raise SpecViolation(
                    "OutputTypeMismatch", f"the op gives {inferred}, not {output} as requested"
                )
            return output
        if isinstance(inferred, TupleType):
            return TupleType(tuple(self._declare(kind, None) for kind in inferred.elements))
        return inferred.with_shape(
            self._shared.fresh_symbol() if dim == UNKNOWN else dim for dim in inferred.shape
        )

    def _define(self, op: Op, operands: tuple[Operand, ...], output: ValueType) -> Value:
        value_id = len(self._types)
        self._types[value_id] = output
        self._body.append(Instruction(value_id, op, operands, output))
        self._bind(output)
        line = shown(user_line())
        if line:
            self._shared.locations[self.label, value_id] = line
        return Value(self, Ref(value_id), output)

    def _bind(self, kind: ValueType) -> None:
        symbols = set(symbols_of(kind))
        self._bound |= symbols
        self._shared.symbols |= symbols

    def _parameter(self, kind: ValueType) -> Value:
        check_type(kind)
        value_id = len(self._types)
        self._types[value_id] = kind
        self._bind(kind)
        return Value(self, Ref(value_id), kind)

    def _operands(self, cls: type[Op], operands: Sequence[Like]) -> list[Value]:
        choosing = cls is Select
        models = operands[1:] if choosing else operands
        model = next((o for o in models if isinstance(o, Value)), None)
        if choosing and model is None and any(isinstance(o, Number) for o in models):
            raise UserError("select between two numbers has no dtype; make one of them a value")
        made = []
        for operand in operands:
            if isinstance(operand, Value):
                made.append(operand)
            elif cls.elementwise and model is not None and isinstance(operand, Number | np.number):
                made.append(self.like(operand, model))
            else:
                made.append(self.literal(operand))
        return made

    # -- constants -------------------------------------------------------------------------------

    def literal(self, value: Any, dtype: DType | str | None = None) -> Value:
        """An inline literal: usable as an operand, not an instruction of its own."""
        made = literal(value, dtype)
        return Value(self, made, made.type)

    def constant(self, value: Any, dtype: DType | str | None = None) -> Value:
        """A constant instruction from a number, list or array."""
        return self.append(Constant(literal(value, dtype)), [])

    def full(self, dims: Iterable[int | str | Symbol], value: Number, dtype: DType | str) -> Value:
        """A tensor with the same number everywhere."""
        return self.broadcast_to(self.literal(value, dtype), dims)

    def as_value(self, value: Like) -> Value:
        """A value as it is; anything else as a literal."""
        return value if isinstance(value, Value) else self.literal(value)

    def like(self, other: Like, model: Value) -> Value:
        """`other` as a value; a Python number takes the dtype and shape of `model`."""
        if isinstance(other, Value):
            return other
        if isinstance(other, Number | np.number):
            scalar = self.literal(other, model.dtype)
            return self.broadcast_to(scalar, model.shape) if model.rank else scalar
        return self.literal(other)

    # -- ops with a friendlier form --------------------------------------------------------------

    def cast(self, x: Like, dtype: DType | str) -> Value:
        """`x` in another dtype; nothing is emitted when it has it already."""
        value = self.as_value(x)
        return value if as_dtype(dtype) is value.dtype else self.emit("cast", value, dtype=dtype)

    def compare(self, lhs: Like, rhs: Like, op: str) -> Value:
        """`op` is less, less_equal, equal, greater_equal, greater or not_equal."""
        return self.emit("compare", lhs, rhs, op=op)

    def reshape(self, x: Value, dims: Iterable[Any]) -> Value:
        """One dim may be -1: it is computed from the others."""
        return self.emit("reshape", x, new_shape=dims)

    def transpose(self, x: Value, perm: Sequence[int]) -> Value:
        return self.emit("transpose", x, perm=perm)

    def broadcast_to(self, x: Like, dims: Iterable[int | str | Symbol]) -> Value:
        return self.emit("broadcast_to", x, result_shape=shape_of(dims))

    def slice(self, x: Value, starts: Sequence[int], sizes: Sequence[int]) -> Value:
        return self.emit("slice", x, starts=starts, sizes=sizes)

    def concat(self, values: Sequence[Value], axis: int) -> Value:
        return self.emit("concat", *values, axis=axis)

    def iota(self, dtype: DType | str, dims: Iterable[int | str | Symbol], axis: int) -> Value:
        """0, 1, 2, ... along one axis."""
        return self.emit("iota", shape=shape_of(dims), dtype=dtype, axis=axis)

    def dot_general(
        self,
        lhs: Value,
        rhs: Value,
        *,
        contract: tuple[Sequence[int], Sequence[int]],
        batch: tuple[Sequence[int], Sequence[int]] = ((), ()),
        accum_dtype: DType | str | None = None,
        out_dtype: DType | str | None = None,
    ) -> Value:
        """`contract` and `batch` are (axes of lhs, axes of rhs), paired by position."""
        paired, batched = pair_of_axes("contract", contract), pair_of_axes("batch", batch)
        return self.emit(
            "dot_general", lhs, rhs, batch_lhs=batched[0], batch_rhs=batched[1],
            contract_lhs=paired[0], contract_rhs=paired[1],
            accum_dtype=accum_dtype, out_dtype=out_dtype,
        )  # fmt: skip

    def matmul(self, lhs: Value, rhs: Value) -> Value:
        """Matrix product over the last two axes; leading axes are batch axes and must match."""
        lhs, rhs = self.as_value(lhs), self.as_value(rhs)
        batch = tuple(range(lhs.rank - 2))
        return self.dot_general(lhs, rhs, contract=([-1], [-2]), batch=(batch, batch))

    def reduce_sum(self, x: Value, axes: Sequence[int], **attrs: Any) -> Value:
        return self.emit("reduce_sum", x, axes=axes, **attrs)

    def reduce_max(self, x: Value, axes: Sequence[int], **attrs: Any) -> Value:
        return self.emit("reduce_max", x, axes=axes, **attrs)

    def reduce_min(self, x: Value, axes: Sequence[int], **attrs: Any) -> Value:
        return self.emit("reduce_min", x, axes=axes, **attrs)

    def custom_call(self, target: str, *operands: Like, output: ValueType, **attrs: Any) -> Value:
        """A call of a kernel that only some backends know; a target that Weft knows becomes its
        op."""
        values = self._operands(CustomCall, operands)
        call = CustomCall(target, attr_map(attrs))
        return self.append(decode_call(call, output), values, output)

    # -- library forms: see `weft.ptir.library` --------------------------------------------------

    def softmax(self, x: Value, axis: int = -1) -> Value:
        """The stable softmax along `axis`, in f32 at least."""
        return library.softmax(self.as_value(x), axis)

    def gelu(self, x: Value) -> Value:
        """`0.5 * x * (1 + erf(x / sqrt(2)))`."""
        return library.gelu(self.as_value(x))

    def silu(self, x: Value) -> Value:
        """`x / (1 + exp(-x))`."""
        return library.silu(self.as_value(x))

    def causal_mask(self, rows: Dim, columns: Dim, dtype: DType | str = "f32") -> Value:
        """0 where row i may see the column and -Inf elsewhere; the last row sees everything."""
        return library.causal_mask(self, rows, columns, dtype)

    def attention(
        self,
        q: Value,
        k: Value,
        v: Value,
        *,
        mask: Value | None = None,
        causal: bool = False,
        scale: float | None = None,
    ) -> Value:
        """`softmax(q k^T * scale + mask) v` for q, k and v of shape [B, H, S, D]."""
        return library.attention(q, k, v, mask=mask, causal=causal, scale=scale)

    # -- control flow ----------------------------------------------------------------------------

    def region(self, kinds: Sequence[ValueType], body: RegionBody) -> int:
        """Build a region by calling `body(builder, *parameters)`; answers its id."""
        region_id = self._shared.region_count
        self._shared.region_count += 1
        inner = BodyBuilder(f"region ^{region_id}", self._shared)
        inner._bound |= self._bound
        parameters = [inner._parameter(kind) for kind in kinds]
        results = inner._results(body(inner, *parameters))
        self._shared.regions[region_id] = Region(
            region_id,
            tuple(kinds),
            tuple(inner._body),
            tuple(inner._types[value_id] for value_id in results),
            results,
        )
        return region_id

    def cond(self, pred: Value, on_true: RegionBody, on_false: RegionBody, *args: Value) -> Value:
        """`on_true(builder, *args)` if `pred` holds, else `on_false(builder, *args)`."""
        kinds = [arg.type for arg in args]
        op = Cond(self.region(kinds, on_true), self.region(kinds, on_false))
        return self.append(op, [self.as_value(pred), *args])

    def while_(self, cond: RegionBody, body: RegionBody, *carry: Value) -> Value:
        """`cond` answers (predicate, carries...), `body` the next carries."""
        kinds = [value.type for value in carry]
        op = While(self.region(kinds, cond), self.region(kinds, body))
        return self.append(op, carry)

    def scan(self, body: RegionBody, carry: Sequence[Value], inputs: Sequence[Value]) -> Value:
        """`body(builder, *carries, *slices)` answers the next carries, then the outputs to
        stack."""
        slices = [value.tensor.with_shape(value.shape[1:]) for value in inputs]
        region = self.region([*(value.type for value in carry), *slices], body)
        count = len(self._shared.regions[region].results) - len(carry)
        op = Scan(region, len(carry), max(count, 0))
        return self.append(op, [*carry, *inputs])

    def _results(self, results: Value | Sequence[Value]) -> tuple[int, ...]:
        """The ids of returned values; what is not a plain value is copied into one."""
        if not isinstance(results, Value | Sequence):
            raise UserError(f"a result must be a value of the builder, not {results!r}")
        values = [results] if isinstance(results, Value) else list(results)
        return tuple(self._result_id(value) for value in values)

    def _result_id(self, value: Value) -> int:
        if not isinstance(value, Value):
            raise UserError(f"a result must be a value of the builder, not {value!r}")
        if value.builder is not self and not isinstance(value.operand, TensorLiteral):
            raise UserError(
                f"{value!r} belongs to {_foreign_label(value, self)}, not to {self.label}"
            )
        if isinstance(value.operand, TensorLiteral):
            value = self.append(Constant(value.operand), [])
        elif isinstance(value.operand, ElementRef):
            value = self.append(BroadcastTo(value.shape), [value])
        if not isinstance(value.operand, Ref):
            raise UserError(f"{value!r} cannot be returned")
        return value.operand.id


RegionBody: TypeAlias = "Callable[..., Value | Sequence[Value]]"


def make_op(cls: type[Op], types: Sequence[ValueType], attrs: dict[str, Any]) -> Op:
    """The op with these attributes, as people write them: absent ones get their defaults, and a
    plain number becomes a scalar of the first operand's dtype where a scalar is wanted."""
    kinds = cls.all_attributes()
    for name in attrs:
        if name not in kinds:
            known = ", ".join(kinds) or "none"
            raise UserError(f"{cls.name} has no attribute {name!r}; it has {known}")
    for name, usual in cls.usual_attributes().items():
        attrs.setdefault(name, _for_types(usual, types))
    for name, kind in kinds.items():
        if isinstance(kind, Maybe):
            attrs.setdefault(name, None)
        elif isinstance(kind, ScalarOf) and types and not hasattr(attrs.get(name), "tag"):
            model = types[0]
            if isinstance(model, TensorType):
                attrs[name] = scalar_literal(attrs.get(name, 0), model.dtype)
    missing = [name for name in cls.needed_attributes() if name not in attrs]
    if missing:
        raise UserError(f"{cls.name} needs the attribute {missing[0]!r}")
    return cls.make(types, **attrs)


def _for_types(usual: Any, types: Sequence[ValueType]) -> Any:
    """What is usual for an attribute of an op on operands of these types."""
    if not isinstance(usual, PerAxis):
        return usual
    rank = types[0].rank if types and isinstance(types[0], TensorType) else 0
    return (usual.value,) * (rank - usual.besides)


def _foreign_label(value: Value, builder: BodyBuilder) -> str:
    """Where a foreign value comes from."""
    label = value.builder.label
    return label if label != builder.label else f"another builder's {label}"
