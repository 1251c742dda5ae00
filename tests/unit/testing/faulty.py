"""A backend with one fault: the reference, but for the results of some instructions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.driver.reference import ReferenceBackend, ReferenceExecutable
from weft.foundation.dtypes import as_dtype
from weft.foundation.errors import Unimplemented
from weft.ptir.ir import Body, Instruction, Program
from weft.ptir.op import EvalContext, Op, Value
from weft.ptir.streams import assign_streams

Array = NDArray[Any]
Change = Callable[[Array], Array]


def off_by_one_percent(array: Array) -> Array:
    wide = array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
    return np.asarray(wide * 1.01 + 0.01).astype(array.dtype)


def flipped(array: Array) -> Array:
    """Integers and i1 with their lowest bit flipped."""
    if array.dtype == np.bool_:
        return ~array
    return np.asarray(array.astype(np.int64) ^ 1).astype(array.dtype)


def wrong(array: Array) -> Array:
    dtype = as_dtype(array.dtype)
    return off_by_one_percent(array) if dtype.is_float or dtype.is_complex else flipped(array)


class Broken(Op):
    """An op with another meaning."""

    inner: Op
    change: Change

    def __init__(self, inner: Op, change: Change) -> None:
        object.__setattr__(self, "inner", inner)
        object.__setattr__(self, "change", change)

    @property
    def mnemonic(self) -> str:
        return self.inner.mnemonic

    def evaluate(self, ctx: EvalContext, *args: Array) -> Value:
        value = self.inner.evaluate(ctx, *args)
        if isinstance(value, tuple):
            return tuple(self.change(np.asarray(part)) for part in value)
        return self.change(value)


class FaultyBackend(ReferenceBackend):
    """The reference with a fault in the ops of one spelling."""

    def __init__(
        self, spelling: str, change: Change = wrong, *, most_results: int | None = None
    ) -> None:
        self.name = f"faulty-{spelling}"
        self.spelling = spelling
        self.change = change
        self.most_results = most_results
        self.compiled = 0

    def compile(self, program: Program) -> ReferenceExecutable:
        self.compiled += 1
        if self.most_results is not None and len(program.main.results) > self.most_results:
            raise Unimplemented("results", f"more than {self.most_results} of them")
        return super().compile(self.with_fault(assign_streams(program)))

    def with_fault(self, program: Program) -> Program:
        functions = tuple(replace(f, body=self._body(f)) for f in program.functions)
        regions = tuple(replace(r, body=self._body(r)) for r in program.regions)
        return replace(program, functions=functions, regions=regions)

    def _body(self, body: Body) -> tuple[Instruction, ...]:
        return tuple(
            replace(i, op=Broken(i.op, self.change)) if i.op.mnemonic == self.spelling else i
            for i in body.body
        )
