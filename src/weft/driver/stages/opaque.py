"""Opaque ops, which no kernel language expresses: how stages carry them, on disk and at run time.

A stage after PTIR carries such an op whole and does not look inside. Its text is the op's own PTIR
text, and the host runs it by its reference meaning.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.driver.stages.generators import factorise
from weft.foundation import numeric, whole_ops
from weft.foundation.dtypes import DType, as_dtype
from weft.foundation.errors import InternalError, Unimplemented
from weft.foundation.ranks import Begun, Exchange
from weft.ptir.op import EvalContext, Op, RegionSignature, Value
from weft.ptir.ops.collective import AllReduce, Collective
from weft.ptir.ops.linear_algebra import Cholesky, Lu, TriangularSolve
from weft.ptir.text import parse_op, print_op
from weft.ptir.types import Symbol, TensorType
from weft.runtime.artifact import HostFunction
from weft.tiny.from_ptir import why_whole

Array = NDArray[Any]
_COMPILED = (Cholesky, Lu, TriangularSolve)


def encode_op(op: object) -> str:
    """The text of an op inside another stage's text."""
    if isinstance(op, whole_ops.WholeOp):
        return whole_ops.op_text(op)
    if not isinstance(op, Op):
        raise InternalError(f"{op!r} is not a PTIR op")
    return print_op(op)


def decode_op(text: object) -> Op | whole_ops.WholeOp:
    """The op back from its text."""
    if whole_ops.is_written(str(text)):
        return whole_ops.read_op(str(text))
    return parse_op(str(text))


class _Alone:
    """The scope of an op that runs on its own: no regions, and no symbols either."""

    def region(self, region_id: int) -> RegionSignature:
        raise Unimplemented("control flow", "this backend cannot run regions yet")

    def is_bound(self, symbol: Symbol) -> bool:
        return True


def run_opaque(op: object, arrays: Sequence[Array], seed: int = 0) -> list[Array]:
    """All results of an op, flattened, by its reference meaning."""
    if isinstance(op, whole_ops.WholeOp):
        return whole_ops.results_of(op, arrays)
    if not isinstance(op, Op):
        raise InternalError(f"{op!r} is not a PTIR op")
    if op.regions:
        raise Unimplemented(op.mnemonic, "this backend cannot run regions yet")
    types = [TensorType(as_dtype(a.dtype), tuple(a.shape)) for a in arrays]
    output = op.result_type(types, _Alone())
    with np.errstate(all="ignore"):
        result = op.evaluate(EvalContext(output, seed, lambda stream: 0), *arrays)
    return _flat_arrays(result)


def host_call(op: object, shapes: Mapping[int, tuple[int, ...]], pairs: Sequence[int] = ()) -> str:
    """An op, which results are wanted in which shapes, and which operands are complex, as the text
    of a host call."""
    return json.dumps([encode_op(op), list(shapes.items()), list(pairs)])


def host_op(call: str) -> str:
    """What a host call does, as text: the op and why it stayed whole, or why a kernel is the
    host's."""
    read = json.loads(call)
    if isinstance(read, dict):
        return str(read["why"])
    why = why_whole(decode_op(read[0]))
    return f"{read[0]}: {why}" if why else str(read[0])


def called_op(call: str) -> object:
    """The op of a host call; None where it is a kernel."""
    read = json.loads(call)
    return None if isinstance(read, dict) else decode_op(read[0])


class Collecting:
    """A collective, which the host carries out, or a device that can."""

    def __init__(self, op: Collective, function: HostFunction) -> None:
        self._function = function
        self.exchange: Callable[[DType, Sequence[int]], Exchange | None] = op.exchange

    def __call__(self, arrays: Sequence[Array], seed: int) -> list[Array]:
        return list(self._function(arrays, seed))


class Reducing:
    """`all_reduce` of one tensor, or of several as one exchange."""

    def __init__(self, op: AllReduce) -> None:
        self.begin: Callable[[Sequence[Array], Sequence[Array], bool, str], Begun] = op.begin
        self.exchange: Callable[[DType, Sequence[int]], Exchange | None] = op.exchange

    def __call__(self, arrays: Sequence[Array], seed: int) -> list[Array]:
        results = [np.empty_like(array) for array in arrays]
        self.begin(arrays, results, True, "alone").wait()
        return results


def host_function(call: str) -> HostFunction:
    """What a host call does."""
    text, wanted, pairs = json.loads(call)
    op = decode_op(text)
    if isinstance(op, AllReduce) and not pairs:
        return Reducing(op)

    numbers = [number for number, _ in wanted]

    def function(arrays: Sequence[Array], seed: int) -> list[Array]:
        given = [numeric.as_complex(a) if n in pairs else a for n, a in enumerate(arrays)]
        found = _factors(op, given, numbers) or run_opaque(op, given, seed)
        return [numeric.as_pairs(found[number]).reshape(shape) for number, shape in wanted]

    return Collecting(op, function) if isinstance(op, Collective) and not pairs else function


def _factors(op: object, arrays: Sequence[Array], wanted: Sequence[int]) -> list[Array] | None:
    """The results of a factorisation that has machine code, those that are wanted; else None."""
    return factorise(op, arrays, wanted) if isinstance(op, _COMPILED) else None


def _flat_arrays(value: Value) -> list[Array]:
    if isinstance(value, tuple):
        return [array for element in value for array in _flat_arrays(element)]
    return [value]
