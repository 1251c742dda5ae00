"""Running cases of the kit, and backends that it must not be content with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

import weft
from weft.driver.reference import ReferenceBackend, ReferenceExecutable
from weft.ptir.interp import Observer
from weft.ptir.ir import Program
from weft.ptir.types import leaves
from weft.testing.conformance import Case, Result, run_case

Array = np.ndarray[Any, Any]


def run_all(cases: Sequence[Case], backend: Any) -> list[Result]:
    return [run_case(case, backend) for case in cases]


def outcomes(results: Sequence[Result]) -> Counter[str]:
    return Counter(result.outcome.value for result in results)


class Lenient(ReferenceBackend):
    """Runs whatever it is given, and never says that data is wrong."""

    name = "lenient"

    def compile(self, program: Program) -> ReferenceExecutable:
        class Quiet(ReferenceExecutable):
            def execute(
                self, inputs: Sequence[Array], *, seed: int = 0, observer: Observer | None = None
            ) -> list[Array]:
                try:
                    return super().execute(inputs, seed=seed, observer=observer)
                except weft.SpecViolation:
                    kinds = [leaf for kind in program.main.results for leaf in leaves(kind)]
                    return [np.zeros(k.static_shape, k.dtype.numpy) for k in kinds]

        return Quiet(program)


class Answering(ReferenceBackend):
    """Gives the same answer to every program, or raises the same exception."""

    name = "answering"

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def compile(self, program: Program) -> ReferenceExecutable:
        answer = self.answer

        class Fixed(ReferenceExecutable):
            def execute(
                self, inputs: Sequence[Array], *, seed: int = 0, observer: Observer | None = None
            ) -> list[Array]:
                if isinstance(answer, Exception):
                    raise answer
                return list(answer(inputs))

        return Fixed(program)

    def read_storage(self, storage: Any, kind: Any) -> Any:
        return storage
