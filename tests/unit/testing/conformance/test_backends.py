"""The conformance kit passes the reference and catches wrong backends."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.support.cases import one_in
from tests.unit.testing.conformance.running import Lenient, outcomes, run_all
from tests.unit.testing.mutants import (
    MUTANTS,
    MutantBackend,
    SeedlessBackend,
    Twisted,
    after,
    nudged,
)
from weft.driver.backends import get_backend
from weft.driver.reference import BACKEND, ReferenceBackend, ReferenceExecutable
from weft.ptir.interp import Observer
from weft.ptir.ir import Program
from weft.ptir.op import Op, all_ops
from weft.testing.conformance import Outcome, all_cases, select
from weft.testing.conformance.table import one_of_each

Array = np.ndarray[Any, Any]


@pytest.mark.parametrize("share", range(16))
def test_the_reference_passes_the_table(share: int) -> None:
    results = run_all(all_cases()[share::16], BACKEND)
    assert len(results) > 1500
    wrong = [r for r in results if r.outcome is not Outcome.PASS or r.decomposed]
    assert [(r.id, r.reason, r.decomposed) for r in wrong] == []


def test_the_cpu_passes_a_part_of_the_table() -> None:
    """Where the reference takes a millisecond for a case, compiling one takes thirty and more."""
    results = run_all(all_cases()[::240], get_backend("cpu"))
    assert len(results) > 100
    assert [(r.id, r.reason) for r in results if r.outcome is not Outcome.PASS] == []


@pytest.mark.slow
@pytest.mark.parametrize("share", range(16))
def test_the_cpu_passes_the_table(share: int) -> None:
    results = run_all(all_cases()[share::16], get_backend("cpu"))
    assert [(r.id, r.reason) for r in results if r.outcome is not Outcome.PASS] == []


@pytest.mark.parametrize("fault", MUTANTS)
def test_a_subtle_fault_is_found(fault: str) -> None:
    pattern, rewrite = MUTANTS[fault]
    cases = select(pattern)
    assert cases
    assert outcomes(run_all(cases, MutantBackend("mutant", rewrite)))["fail"] > 0


def test_a_seed_that_is_ignored_is_found() -> None:
    failed = [r for r in run_all(select("rng_uniform/f32/*"), SeedlessBackend()) if r.reason]
    assert {"rng_uniform/f32/seed=1", "rng_uniform/f32/streams"} <= {r.id for r in failed}


FAMILIES = sorted({cls.family for cls in all_ops()} - {"control"})


NOTHING = {"rank0", "empty", "no", "none", "nothing", "special", "scalar"}
"""Words in the ids of cases that have too few elements to get wrong, or too unusual ones."""


@pytest.mark.parametrize("family", one_in(2, FAMILIES))
def test_a_wrong_family_fails_in_each_of_its_ops(family: str) -> None:
    def rewrite(op: Op) -> Op:
        return Twisted(op, after(nudged)) if op.family == family else op

    own = [c for c in all_cases() if c.family == family and c.row != "custom_call"]
    plain = [case for case in own if not NOTHING & set(re.split(r"[/-]", case.id))]
    cases = list(one_of_each(plain))
    assert {(c.row, c.dtype) for c in cases} == {(c.row, c.dtype) for c in own}
    results = run_all(cases, MutantBackend("broken", rewrite))
    assert [r.id for r in results if r.outcome is not Outcome.FAIL] == []


def test_wrong_loops_are_found() -> None:
    class Impatient(ReferenceBackend):
        """Never enters a loop, and takes the branch that is not asked for."""

        name = "impatient"

        def compile(self, program: Program) -> ReferenceExecutable:
            class Odd(ReferenceExecutable):
                def execute(
                    self,
                    inputs: Sequence[Array],
                    *,
                    seed: int = 0,
                    observer: Observer | None = None,
                ) -> list[Array]:
                    return super().execute(
                        [
                            ~x if x.dtype == np.bool_ else x * 0 if x.shape == () else x
                            for x in inputs
                        ],
                        seed=seed,
                        observer=observer,
                    )

            return Odd(program)

    cases = [*select("cond/f32/*/odd"), *select("while/f32/steps=1"), *select("while/si32/collatz")]
    assert outcomes(run_all(cases, Impatient())) == {"fail": len(cases)}


def test_rejections_that_are_not_raised_are_found() -> None:
    codes = [
        "GatherIndexOutOfBounds", "ScatterIndexOutOfBounds", "IntegerDivideByZero", "InvalidShift",
        "InvalidExponent", "NotPositiveDefinite",
    ]  # fmt: skip
    for code in codes:
        results = run_all(select(f"reject/{code}/*")[:6], Lenient())
        assert outcomes(results) == {"fail": len(results)}
        assert results[0].reason == f"SpecViolation {code} was expected, but the program ran"
