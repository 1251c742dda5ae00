"""A look at every tensor of a program: its range, its mean, its NaN, and where the first NaN is
made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from weft.driver.execute import Prepared, prepare
from weft.ptir.ir import Instruction, Program
from weft.ptir.ops.callback import repeating
from weft.ptir.types import TensorType, leaves


@dataclass(frozen=True)
class TensorFacts:
    """What is worth knowing about one tensor. Range and mean leave NaN out."""

    name: str
    type: TensorType
    low: float
    high: float
    mean: float
    nan: int
    line: str

    def __str__(self) -> str:
        bad = f", {self.nan} NaN" if self.nan else ""
        place = f" ({self.line})" if self.line else ""
        return (
            f"{self.name} : {self.type} in [{self.low:.6g}, {self.high:.6g}], "
            f"mean {self.mean:.6g}{bad}{place}"
        )


@dataclass(frozen=True)
class TensorReport:
    """The tensors of one run of a program, in order."""

    program: int
    tensors: tuple[TensorFacts, ...]
    first_nan: TensorFacts | None
    """The first instruction whose result has NaN though none of its operands has."""

    def __str__(self) -> str:
        lines = [f"program {self.program}:", *(f"  {facts}" for facts in self.tensors)]
        if self.first_nan is not None:
            lines.append(f"  the first NaN comes from {self.first_nan}")
        return "\n".join(lines)


def inspect(compiled: Prepared, inputs: Sequence[Any], seed: int, number: int) -> TensorReport:
    """Run the program once more with every tensor of its main body as a result."""
    program = compiled.program
    body = program.main.body
    exposed = _expose_values(program)
    with repeating():
        results = iter(prepare(exposed, compiled.backend).execute(inputs, seed=seed))
    kept = iter(leaves_of(exposed))
    facts: list[TensorFacts] = []
    poisoned: set[int] = _poisoned_inputs(compiled, inputs)
    first: TensorFacts | None = None
    for instruction in body:
        line = program.locations.get((program.main.label, instruction.id), "")
        found = [
            _tensor_facts(instruction, next(kept), compiled.backend, next(results), line)
            for _ in leaves(instruction.output)
        ]
        facts += found
        bad = [item for item in found if item.nan]
        if bad:
            if first is None and not poisoned.intersection(instruction.uses):
                first = bad[0]
            poisoned.add(instruction.id)
    return TensorReport(number, tuple(facts), first)


def leaves_of(program: Program) -> list[TensorType]:
    """The tensors among the results of a program."""
    return [leaf for kind in program.main.results for leaf in leaves(kind)]


def _expose_values(program: Program) -> Program:
    main = program.main
    return program.with_main(
        replace(
            main,
            results=tuple(i.output for i in main.body),
            result_ids=tuple(i.id for i in main.body),
            hints=(),
        )
    )


def _poisoned_inputs(compiled: Prepared, inputs: Sequence[Any]) -> set[int]:
    main = compiled.program.main
    kinds = [leaf for kind in main.parameters for leaf in leaves(kind)]
    if len(kinds) != len(main.parameters):
        return set()
    bad = set()
    for value_id, kind, storage in zip(main.parameter_ids, kinds, inputs, strict=True):
        if _nan_count(compiled.backend.read_storage(storage, kind)):
            bad.add(value_id)
    return bad


def _nan_count(array: Any) -> int:
    wide = _as_double(array)
    return int(np.isnan(wide).sum())


def _as_double(array: Any) -> Any:
    """Elements as 64-bit numbers that NumPy can average; complex ones by their absolute value."""
    if array.dtype.kind == "c":
        return np.abs(array)
    return np.asarray(array).astype(np.float64)


def _tensor_facts(
    instruction: Instruction, kind: TensorType, backend: Any, storage: Any, line: str
) -> TensorFacts:
    with np.errstate(all="ignore"):
        wide = _as_double(backend.read_storage(storage, kind)).reshape(-1)
        nan = int(np.isnan(wide).sum())
        known = wide[~np.isnan(wide)]
        low, high, mean = (
            (float(known.min()), float(known.max()), float(known.mean()))
            if known.size
            else (float("nan"),) * 3
        )
    return TensorFacts(instruction.summary, kind, low, high, mean, nan, line)
