"""What the conformance kit makes of an answer."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import weft
from tests.unit.testing.conformance.running import Answering, outcomes, run_all
from weft.driver.reference import BACKEND, ReferenceBackend
from weft.foundation.errors import Unimplemented
from weft.ptir.ir import Program
from weft.ptir.op import Op
from weft.testing.conformance import Outcome, run_case, select
from weft.testing.conformance.judge import listing
from weft.testing.conformance.matrix import Matrix, State
from weft.testing.conformance.run import prepare_case

(CASE,) = select("neg/f32/odd")


ANSWERS: list[tuple[Any, str, str]] = [
    (Unimplemented("neg", "too hard"), "unimplemented", "Unimplemented neg: too hard"),
    (IndexError("far out"), "fail", "the backend failed in execute with IndexError: far out"),
    (weft.ExecutionError("no"), "fail", "ExecutionError was raised: no"),
    (
        weft.SpecViolation("ShapeMismatch", "so"),
        "fail",
        "SpecViolation was raised: ShapeMismatch: so",
    ),
    (
        lambda xs: [(-xs[0]).astype(np.float64)],
        "fail",
        "the backend gives an array of float64[3, 5, 7] for f32[3, 5, 7]",
    ),
    (
        lambda xs: [-xs[0][0]],
        "fail",
        "the backend gives an array of float32[5, 7] for f32[3, 5, 7]",
    ),
    (
        lambda xs: [(-xs[0]).tolist()],
        "fail",
        "the backend read an object of class list instead of an array",
    ),
    (lambda xs: [-xs[0]], "pass", ""),
    (
        lambda xs: [np.negative(xs[0], out=xs[0])],
        "fail",
        "the backend failed in execute with ValueError: output array is read-only; "
        "inputs are read, never written",
    ),
]


@pytest.mark.parametrize(("answer", "outcome", "reason"), ANSWERS, ids=lambda v: str(v)[:9])
def test_what_an_answer_counts_as(answer: Any, outcome: str, reason: str) -> None:
    result = run_case(CASE, Answering(answer))
    told = re.sub(r" \((?:running|test_outcomes)\.py:\d+\)", "", result.reason)
    assert (result.outcome.value, told) == (outcome, reason)


def test_a_failure_is_told_in_full() -> None:
    result = run_case(CASE, Answering(lambda xs: [np.abs(xs[0])]))
    trial = CASE.trial()
    assert result.outcome is Outcome.FAIL
    assert result.failure is not None
    assert "%1 = neg(%0) : f32[3, 5, 7]" in result.failure.program
    assert result.failure.inputs == (listing(trial.inputs[0]),)
    assert result.failure.expected == (f"{listing(-trial.inputs[0])} (exact)",)
    assert result.failure.got == (listing(np.abs(trial.inputs[0])),)
    first = int(np.argmax(trial.inputs[0].reshape(-1) > 0))
    index = [int(i) for i in np.unravel_index(first, (3, 5, 7))]
    element = result.failure.elements[0]
    assert element.index == str(index)
    assert (element.expected, element.operands) == (f"-{element.operands}", element.got)
    assert re.match(r"\d+ of 105 elements are wrong \(exact\); at ", result.reason)


def test_what_the_driver_decomposes_passes_with_a_mark() -> None:
    class NoClamp(ReferenceBackend):
        name = "no-clamp"
        ops = ReferenceBackend.ops - {"Clamp"}

    results = run_all(select("clamp/si8/*"), NoClamp())
    assert outcomes(results) == {"pass": len(results)}
    assert {result.decomposed for result in results} == {("clamp",)}
    assert Matrix.of(results).state("elementwise", "clamp", "si8") is State.DECOMPOSED


def test_what_the_driver_cannot_decompose_is_unimplemented() -> None:
    class NoScan(ReferenceBackend):
        name = "no-scan"
        ops = ReferenceBackend.ops - {"Scan"}

    results = run_all(select("scan/si8/*"), NoScan())
    assert outcomes(results) == {"unimplemented": len(results)}
    assert Matrix.of(results).state("control", "scan", "si8") is State.UNIMPLEMENTED


def test_custom_calls_that_nobody_knows_must_be_refused() -> None:
    (case,) = select("custom_call/f32/unknown")

    class Guessing(Answering):
        def supports(self, op: Op) -> bool:
            return True

    result = run_case(case, Guessing(lambda xs: xs))
    assert result.reason == "Unimplemented was expected, but the program ran"
    assert run_case(case, BACKEND).outcome is Outcome.PASS


@pytest.mark.parametrize(
    ("error", "outcome", "reason"),
    [
        (None, "pass", ""),
        (Unimplemented("neg", "too hard"), "pass", ""),
        (weft.SpecViolation("ShapeMismatch", "so"), "pass", ""),
        (weft.ResourceExceeded("no room"), "fail", "ResourceExceeded was raised: no room"),
        (weft.UserError("what?"), "fail", "UserError was raised: what?"),
    ],
    ids=str,
)
def test_only_a_refusal_has_nothing_to_prepare(
    error: Exception | None, outcome: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiled(program: Program, target: str) -> None:
        assert (program.main.body[0].op.mnemonic, target) == ("neg", "cpu")
        if error is not None:
            raise error

    monkeypatch.setattr("weft.testing.conformance.run.compile_program", compiled)
    result = prepare_case(CASE, BACKEND, "cpu")
    assert (result.outcome.value, result.reason) == (outcome, reason)
