"""Running cases on a backend.

A case that the backend answers with `Unimplemented` is unimplemented; everything else that is not
what was expected is a failure, an exception of any other type included. An op that the driver
decomposed because the backend lacks it passes by what comes out, and the result says so. Of a
backend that cannot work on this machine no case says anything: `BackendUnavailable` is raised.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np

from weft.driver.backends import Backend
from weft.driver.compile import compile_program
from weft.driver.execute import run
from weft.driver.legalise import legalise
from weft.foundation.errors import (
    BackendUnavailable,
    PluginFault,
    SpecViolation,
    Unimplemented,
    WeftError,
)
from weft.ptir.files import dumps
from weft.ptir.ir import Program
from weft.ptir.passes.log import PassLog
from weft.ptir.specialise import bind_shapes, specialise
from weft.ptir.verify import verify
from weft.testing.conformance.case import Case, Holds, Refused, Rejected, Trial, Values
from weft.testing.conformance.judge import Problem, WrongElement, expected_array, judge, listing


class Outcome(StrEnum):
    """What became of a case."""

    PASS = "pass"  # noqa: S105
    FAIL = "fail"
    UNIMPLEMENTED = "unimplemented"


@dataclass(frozen=True)
class Failure:
    """A failed case in full, all in text."""

    program: str
    inputs: tuple[str, ...]
    expected: tuple[str, ...]
    got: tuple[str, ...]
    elements: tuple[WrongElement, ...] = ()


@dataclass(frozen=True)
class Result:
    """One case on one backend."""

    id: str
    family: str
    row: str
    dtype: str | None
    outcome: Outcome
    seconds: float
    reason: str = ""
    """Why it did not pass, in a sentence."""
    decomposed: tuple[str, ...] = ()
    """The ops that the driver decomposed for the backend."""
    computed: bool = False
    """Whether it passed by what the backend computed, and not by being refused."""
    failure: Failure | None = None


def run_cases(cases: Iterable[Case], backend: Backend) -> Iterator[Result]:
    """The results of the cases, one after the other."""
    return (run_case(case, backend) for case in cases)


def run_case(case: Case, backend: Backend) -> Result:
    """One case on a backend."""
    started = time.perf_counter()
    try:
        with np.errstate(all="ignore"):
            trial = case.trial()
    except LookupError as error:
        reason = f"the kit does not know what to expect: {error!r}"
        return replace(blank_result(case), outcome=Outcome.FAIL, reason=reason)
    attempt = _attempt(trial, backend)
    outcome = _outcome(blank_result(case), trial, attempt)
    result = replace(outcome, decomposed=attempt.decomposed)
    return replace(result, seconds=round(time.perf_counter() - started, 6))


def prepare_case(case: Case, backend: Backend, target: str) -> Result:
    """Only compile a case for a target, so that its kernels are on disk. A case that is to be
    refused, or that the backend lacks something for, has nothing to compile."""
    started = time.perf_counter()
    result = blank_result(case)
    try:
        with suppress(SpecViolation, Unimplemented):
            _compile(case, backend, target)
    except (WeftError, OSError) as error:
        result = replace(result, outcome=Outcome.FAIL, reason=_tell_outcome(error))
    return replace(result, seconds=round(time.perf_counter() - started, 6))


def _compile(case: Case, backend: Backend, target: str) -> None:
    with np.errstate(all="ignore"):
        trial = case.trial()
        program = replace(trial.program(), locations={})
    verify(program)
    shapes = [array.shape for array in trial.inputs]
    static = specialise(program, bind_shapes(program.main.parameters, shapes))
    compile_program(legalise(static, backend), target)


def blank_result(case: Case) -> Result:
    """The result of a case of which nothing is known yet."""
    dtype = None if case.dtype is None else case.dtype.name
    return Result(case.id, case.family, case.row, dtype, Outcome.PASS, 0.0)


@dataclass(frozen=True)
class _Attempt:
    """What happened: results, or an exception."""

    program: Program | None
    results: tuple[Any, ...]
    error: Exception | None
    decomposed: tuple[str, ...]
    wrote: bool
    """Whether the inputs are not what they were."""


def _attempt(trial: Trial, backend: Backend) -> _Attempt:
    log = PassLog()
    program, results, error = None, [], None
    before = [array.tobytes() for array in trial.inputs]
    try:
        with np.errstate(all="ignore"):
            # Where the kit builds it is nobody's line.
            program = replace(trial.program(), locations={})
        results = run(program, trial.inputs, backend=backend, seed=trial.seed, log=log)
    except BackendUnavailable:
        raise
    except Exception as found:
        # Whatever a backend raises is an answer: the wrong one, unless the case expects it.
        error = found
    wrote = before != [array.tobytes() for array in trial.inputs]
    names = tuple(dict.fromkeys(fired.rule.removeprefix("decompose-") for fired in log.fired))
    return _Attempt(program, tuple(results), error, names, wrote)


def _outcome(blank: Result, trial: Trial, attempt: _Attempt) -> Result:
    expected, error = trial.expected, attempt.error
    if isinstance(error, Unimplemented):
        if isinstance(expected, Refused) or getattr(expected, "or_refused", False):
            return blank
        return replace(blank, outcome=Outcome.UNIMPLEMENTED, reason=str(error))
    problem = _trial_problem(trial, attempt)
    if problem is None:
        return replace(blank, computed=isinstance(expected, Values | Holds))
    failure = _failure(trial, attempt, problem)
    return replace(blank, outcome=Outcome.FAIL, reason=problem.reason, failure=failure)


def _trial_problem(trial: Trial, attempt: _Attempt) -> Problem | None:
    expected, error = trial.expected, attempt.error
    if attempt.wrote:
        return Problem("the backend wrote to its inputs")
    if isinstance(expected, Rejected):
        if isinstance(error, SpecViolation) and error.code == expected.code:
            return None
        wanted = f"SpecViolation {expected.code}"
        return Problem(f"{wanted} was expected, but {_tell_outcome(error)}")
    if isinstance(expected, Refused):
        return Problem(f"Unimplemented was expected, but {_tell_outcome(error)}")
    if error is not None:
        return Problem(_tell_outcome(error))
    return judge(expected, attempt.results, trial.inputs)


def _tell_outcome(error: Exception | None) -> str:
    if error is None:
        return "the program ran"
    if isinstance(error, PluginFault):
        return f"the backend {error.what}"
    return f"{type(error).__name__} was raised: {error}"


def _failure(trial: Trial, attempt: _Attempt, problem: Problem) -> Failure:
    text = "" if attempt.program is None else str(dumps(attempt.program, "text"))
    got = (
        tuple(map(_show_result, attempt.results))
        if attempt.error is None
        else (_tell_outcome(attempt.error),)
    )
    inputs = tuple(map(listing, trial.inputs))
    return Failure(text, inputs, _show_expected(trial), got, problem.elements)


def _show_result(result: Any) -> str:
    return listing(result) if isinstance(result, np.ndarray) else repr(result)


def _show_expected(trial: Trial) -> tuple[str, ...]:
    expected = trial.expected
    if isinstance(expected, Values):
        return tuple(f"{listing(expected_array(w))} ({w.rule})" for w in expected.wanted)
    if isinstance(expected, Holds):
        return (expected.property,)
    if isinstance(expected, Rejected):
        return (f"SpecViolation {expected.code}",)
    return ("Unimplemented",)


def failures(results: Sequence[Result]) -> list[Result]:
    """The results that failed."""
    return [result for result in results if result.outcome is Outcome.FAIL]
