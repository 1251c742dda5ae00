"""Control flow. The bodies are regions: separate, closed, and typed.

The reference meaning of these ops is a generator: it yields the region calls it wants made and is
sent their results, so that the interpreter needs no recursion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from weft.foundation.dtypes import I1
from weft.foundation.errors import SpecViolation
from weft.ptir.op import (
    Array,
    EvalContext,
    Op,
    RegionCall,
    RegionRun,
    RegionSignature,
    Scope,
    Value,
    core_op,
)
from weft.ptir.rules import violation
from weft.ptir.schema import RegionId, Usize, attr
from weft.ptir.types import Dim, TensorType, TupleType, ValueType, leaves, listed

PREDICATE = TensorType(I1, ())


def packed(types: Sequence[ValueType]) -> ValueType:
    """The type of several results: one is bare, several are a tuple."""
    return types[0] if len(types) == 1 else TupleType(tuple(types))


def pack(values: Sequence[Value]) -> Value:
    """Several results as one value, as `packed` types them."""
    return values[0] if len(values) == 1 else tuple(values)


def _types_text(types: Sequence[ValueType]) -> str:
    return f"({listed(types)})"


def _match(found: Sequence[ValueType], wanted: Sequence[ValueType], what: str) -> None:
    if tuple(found) != tuple(wanted):
        raise violation(
            "RegionSignatureMismatch", f"{what} {_types_text(found)}, not {_types_text(wanted)}"
        )


@core_op(tag=24)
class Cond(Op):
    """Runs `true_region` on the arguments if `pred` is true, else `false_region`. Both regions have
    the same signature; several results form a tuple."""

    operands = ("pred", "*args?")
    dtypes = {"pred": frozenset({I1})}

    true_region: int = attr(RegionId())
    false_region: int = attr(RegionId())

    @property
    def regions(self) -> tuple[int, ...]:
        return (self.true_region, self.false_region)

    def with_regions(self, rename: Mapping[int, int]) -> Cond:
        return Cond(rename[self.true_region], rename[self.false_region])

    def result_type(self, types: Sequence[ValueType], scope: Scope) -> ValueType:
        if not types:
            raise violation("ArityMismatch", "cond takes a predicate and the region arguments")
        if types[0] != PREDICATE:
            raise violation("RegionSignatureMismatch", f"the predicate is {types[0]}, not i1[]")
        on_true, on_false = scope.region(self.true_region), scope.region(self.false_region)
        for region, name in ((on_true, "true_region"), (on_false, "false_region")):
            _match(region.parameters, types[1:], f"{name} takes")
        _match(on_false.results, on_true.results, "false_region returns")
        return packed(on_true.results)

    def run_regions(self, ctx: EvalContext, *args: Value) -> RegionRun:
        chosen = self.true_region if args[0] else self.false_region
        return pack((yield RegionCall(chosen, args[1:])))


@core_op(tag=25)
class While(Op):
    """Runs `cond_region(carry...) -> (i1[], carry...)`; while the predicate is true, `body_region`
    receives the carries that `cond_region` returned and computes the next ones. The result is the
    last carries of `cond_region`."""

    operands = ("*carry?",)

    cond_region: int = attr(RegionId())
    body_region: int = attr(RegionId())

    @property
    def regions(self) -> tuple[int, ...]:
        return (self.cond_region, self.body_region)

    def with_regions(self, rename: Mapping[int, int]) -> While:
        return While(rename[self.cond_region], rename[self.body_region])

    def result_type(self, types: Sequence[ValueType], scope: Scope) -> ValueType:
        cond, body = scope.region(self.cond_region), scope.region(self.body_region)
        _match(cond.parameters, types, "cond_region takes")
        _match(cond.results, [PREDICATE, *types], "cond_region returns")
        _match(body.parameters, types, "body_region takes")
        _match(body.results, types, "body_region returns")
        return packed(types)

    def run_regions(self, ctx: EvalContext, *args: Value) -> RegionRun:
        carries = args
        while True:
            predicate, *rest = yield RegionCall(self.cond_region, carries)
            carries = tuple(rest)
            if not predicate:
                return pack(carries)
            carries = yield RegionCall(self.body_region, carries)


@core_op(tag=26)
class Scan(Op):
    """A loop over the leading axis of the scanned inputs: `body_region(carry..., slice...) ->
    (carry..., output...)`. The result is the last carries, then each output stacked along a new
    leading axis. All scanned inputs have the same length."""

    operands = ("*carry_and_inputs",)

    body_region: int = attr(RegionId())
    carry_count: int = attr(Usize())
    scan_output_count: int = attr(Usize())

    @property
    def regions(self) -> tuple[int, ...]:
        return (self.body_region,)

    def with_regions(self, rename: Mapping[int, int]) -> Scan:
        return replace(self, body_region=rename[self.body_region])

    def result_type(self, types: Sequence[ValueType], scope: Scope) -> ValueType:
        if self.carry_count >= len(types):
            raise violation(
                "ArityMismatch",
                f"scan with {self.carry_count} carries needs at least one scanned input, "
                f"but has {len(types)} operands",
            )
        carries, inputs = types[: self.carry_count], types[self.carry_count :]
        length = self._length(inputs)
        body = scope.region(self.body_region)
        slices = [TensorType(x.dtype, x.shape[1:]) for x in inputs if isinstance(x, TensorType)]
        _match(body.parameters, [*carries, *slices], "body_region takes")
        outputs = self._outputs(body)
        _match(body.results[: self.carry_count], carries, "body_region returns carries")
        return packed([*carries, *(TensorType(y.dtype, (length, *y.shape)) for y in outputs)])

    def _length(self, inputs: Sequence[ValueType]) -> Dim:
        lengths: list[Dim] = []
        for index, kind in enumerate(inputs):
            if not isinstance(kind, TensorType) or not kind.rank:
                raise violation(
                    "RankMismatch", f"scanned input {index} is {kind}; it needs a leading axis"
                )
            lengths.append(kind.shape[0])
        if len(set(lengths)) > 1:
            raise violation("ShapeMismatch", f"scanned inputs have lengths {listed(lengths)}")
        return lengths[0]

    def _outputs(self, body: RegionSignature) -> list[TensorType]:
        wanted = self.carry_count + self.scan_output_count
        if len(body.results) != wanted:
            raise violation(
                "RegionSignatureMismatch",
                f"body_region returns {len(body.results)} values, not {wanted} "
                f"({self.carry_count} carries and {self.scan_output_count} outputs)",
            )
        if not wanted:
            raise violation("RegionSignatureMismatch", "scan has neither carries nor outputs")
        outputs = body.results[self.carry_count :]
        found = [y for y in outputs if isinstance(y, TensorType)]
        if len(found) != len(outputs):
            raise violation("TensorExpected", "a scan output is a tuple; stack tensors only")
        return found

    def run_regions(self, ctx: EvalContext, *args: Value) -> RegionRun:
        carries = args[: self.carry_count]
        inputs = [_array(value) for value in args[self.carry_count :]]
        outputs = [_empty_array(kind) for kind in self._stacked_types(ctx.output)]
        for step in range(len(inputs[0])):
            slices = tuple(np.asarray(x[step]) for x in inputs)
            results = yield RegionCall(self.body_region, (*carries, *slices))
            carries = results[: self.carry_count]
            for stack, value in zip(outputs, results[self.carry_count :], strict=True):
                stack[step] = _array(value)
        return pack([*carries, *outputs])

    def _stacked_types(self, output: ValueType) -> list[TensorType]:
        count = self.carry_count + self.scan_output_count
        elements = (output,) if count == 1 else getattr(output, "elements", ())
        return [leaf for kind in elements[self.carry_count :] for leaf in leaves(kind)]


def _array(value: Value) -> Array:
    if isinstance(value, tuple):
        raise SpecViolation("TensorExpected", "a tuple cannot be scanned or stacked")
    return value


def _empty_array(kind: TensorType) -> Array:
    return np.empty(kind.static_shape, kind.dtype.numpy)
