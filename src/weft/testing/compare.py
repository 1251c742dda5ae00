"""Comparing a backend with the reference, down to the first instruction that goes wrong.

`compare` runs a program on both. To find where they part, every intermediate value of the entry
function is made a result, and the values are compared in program order by the rule of
`weft.testing.tolerance`. Where the first deviation is a control-flow op, its regions are compared
too, each on its own with the arguments that the reference gives it.

A backend that cannot return everything at once, or whose fault disappears when it does, is asked
for one value at a time: for the prefixes of the program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from weft.driver.backends import Backend
from weft.driver.execute import run
from weft.foundation.errors import WeftError
from weft.ptir.ir import Instruction, Program
from weft.ptir.op import Op
from weft.ptir.ops.linear_algebra import Eigh, Qr, Svd
from weft.ptir.types import leaves
from weft.ptir.verify import verify
from weft.testing.instrument import (
    Case,
    all_values,
    instrumented,
    prefix,
    region_calls,
    returning,
    settle,
)
from weft.testing.sensitivity import disturbed_run, spreads
from weft.testing.tolerance import Comparison, compare_results
from weft.testing.widen import widen_arrays, widen_program

Array = NDArray[Any]

ROUNDS: Final = 3
"""How often the reference is run with its roundings disturbed."""
_LINEAR: Final = 64
"""Up to so many prefixes are tried one by one; more are searched by halving."""
_CALLS: Final = 64
"""How many calls of regions are looked into before the search gives up."""
_FACTORISATION_ULPS: Final = 64.0

_UNSTABLE: Final = "an error of one ulp upstream changes it on the reference as well"
_UNPROMISED: Final[dict[type[Op], frozenset[int]]] = {
    Qr: frozenset({0, 1}),
    Eigh: frozenset({1}),
    Svd: frozenset({0, 2}),
}
"""Factors whose signs are open: they are judged by what is computed from them."""


@dataclass(frozen=True)
class Deviation:
    """The first value that leaves its bounds."""

    instruction: Instruction
    place: str
    """The instruction as text, the body it stands in, and the user's line where it is known."""
    comparison: Comparison
    element: int | None = None
    """Which element of a tuple it is."""
    around: tuple[str, ...] = ()
    """The control-flow instructions around it, the outermost first."""

    def __str__(self) -> str:
        part = f", element {self.element}" if self.element is not None else ""
        path = "".join(f"\n  inside {place}" for place in reversed(self.around))
        return f"{self.place}{part}{path}\n  {self.comparison.reason}"


@dataclass(frozen=True)
class Report:
    """What a comparison found."""

    backend: str
    results: tuple[Comparison, ...]
    """One for each (flattened) result of the program; none when the backend failed."""
    failure: str = ""
    """The error that the backend raised, if it did."""
    deviation: Deviation | None = None

    @property
    def agrees(self) -> bool:
        return not self.failure and all(result.passed for result in self.results)

    def __str__(self) -> str:
        if self.agrees:
            count = len(self.results)
            noun = "result" if count == 1 else "results"
            return f"{self.backend} agrees with reference on {count} {noun}"
        lines = [f"{self.backend} differs from reference"]
        if self.failure:
            lines = [f"{self.backend} fails: {self.failure}"]
        for index, result in enumerate(self.results):
            if not result.passed:
                lines.append(f"result {index}: {result.reason}")
        if self.deviation is not None:
            lines.append(f"first at {self.deviation}")
        return "\n".join(lines)


def compare(
    program: Program, inputs: Sequence[Any], backend: str | Backend, *, seed: int = 0
) -> Report:
    """Run a program on a backend and on the reference and report the first instruction whose value
    leaves its bounds."""
    verify(program)
    return _compare(settle(program, inputs), backend, seed)


def disagrees(
    program: Program, inputs: Sequence[Any], backend: str | Backend, *, seed: int = 0
) -> bool:
    """Whether a backend fails on a program or gives results out of bounds. No place is looked
    for."""
    verify(program)
    case = settle(program, inputs)
    outcome = _outcome(case, backend, seed)
    return isinstance(outcome, str) or not all(
        found.passed for found in _judge(case, outcome, seed)
    )


def _compare(case: Case, backend: str | Backend, seed: int) -> Report:
    name = backend if isinstance(backend, str) else backend.name
    outcome = _outcome(case, backend, seed)
    if isinstance(outcome, str):
        report = Report(name, (), outcome)
    else:
        report = Report(name, tuple(_judge(case, outcome, seed)))
    if report.agrees:
        return report
    return replace(report, deviation=_locate(case, backend, seed))


def _outcome(case: Case, backend: str | Backend, seed: int) -> list[Array] | str:
    """The backend's results, or the error it raised. Any error: backends are being tested here."""
    try:
        return run(case.program, case.inputs, backend=backend, seed=seed)
    except WeftError as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


# -- judging results -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Oracle:
    """What is known about the results of a program."""

    reference: list[Array]
    exact: list[Array]
    spread: list[float]


def _oracle(case: Case, seed: int) -> _Oracle:
    reference = run(case.program, case.inputs, seed=seed)
    exact = run(widen_program(case.program), widen_arrays(case.inputs), seed=seed)
    spread = [0.0] * len(reference)
    for attempt in range(ROUNDS):
        again = disturbed_run(case.program, case.inputs, seed=seed, round=attempt)
        spread = [max(pair) for pair in zip(spread, spreads(again, exact), strict=True)]
    return _Oracle(reference, exact, spread)


def _judge(case: Case, outcome: Sequence[Array], seed: int) -> Iterator[Comparison]:
    """One comparison for each flattened result."""
    oracle = _oracle(case, seed)
    definitions = {i.id: i for i in case.main.body}
    index = 0
    for value_id, kind in zip(case.main.result_ids, case.main.results, strict=True):
        made_by = definitions.get(value_id)
        for element, _ in enumerate(leaves(kind)):
            yield _judged(oracle, outcome, index, made_by, element)
            index += 1


def _judged(
    oracle: _Oracle, outcome: Sequence[Array], index: int, made_by: Instruction | None, element: int
) -> Comparison:
    op = made_by.op if made_by is not None else None
    if op is not None and element in _UNPROMISED.get(type(op), ()):
        return Comparison(True, "")
    spread = oracle.spread[index]
    stable = bool(np.isfinite(spread))
    found = compare_results(
        outcome[index],
        oracle.reference[index],
        oracle.exact[index],
        spread=spread if stable else 0.0,
        ulps=_FACTORISATION_ULPS if op is not None and op.family == "linear_algebra" else None,
    )
    if found.passed or stable:
        return found
    return replace(found, reason=f"{found.reason} ({_UNSTABLE})")


# -- finding the place ---------------------------------------------------------------------------


def _locate(case: Case, backend: str | Backend, seed: int) -> Deviation | None:
    """The first instruction that goes wrong; None when none does by itself."""
    found = _among_all(case, backend, seed) or _among_prefixes(case, backend, seed)
    if found is None or not found.instruction.op.regions:
        return found
    return _inside(case, found, backend, seed) or found


def _among_all(case: Case, backend: str | Backend, seed: int) -> Deviation | None:
    """The first deviation when every value is a result."""
    whole = replace(case, program=instrumented(case.program))
    outcome = _outcome(whole, backend, seed)
    if isinstance(outcome, str):
        return None
    return _first_deviation(whole, outcome, seed)


def _first_deviation(case: Case, outcome: Sequence[Array], seed: int) -> Deviation | None:
    """The first result out of bounds; every result is an instruction."""
    definitions = {i.id: i for i in case.main.body}
    judged = _judge(case, outcome, seed)
    for value_id, kind in zip(case.main.result_ids, case.main.results, strict=True):
        for element, _ in enumerate(leaves(kind)):
            comparison = next(judged)
            if not comparison.passed:
                instruction = definitions[value_id]
                which = element if instruction.output is kind and _is_tuple(instruction) else None
                place = case.program.place(case.main, instruction)
                return Deviation(instruction, place, comparison, which)
    return None


def _is_tuple(instruction: Instruction) -> bool:
    return hasattr(instruction.output, "elements")


def _among_prefixes(case: Case, backend: str | Backend, seed: int) -> Deviation | None:
    """The first prefix whose last value is wrong, or on which the backend fails."""

    def deviation(count: int) -> Deviation | None:
        part = replace(case, program=prefix(case.program, count))
        outcome = _outcome(part, backend, seed)
        if not isinstance(outcome, str):
            return _first_deviation(part, outcome, seed)
        instruction = case.main.body[count - 1]
        place = case.program.place(case.main, instruction)
        return Deviation(instruction, place, Comparison(False, f"the backend fails: {outcome}"))

    length = len(case.main.body)
    if length <= _LINEAR:
        return next((found for n in range(1, length + 1) if (found := deviation(n))), None)
    return _bisect(length, deviation)


def _bisect(length: int, deviation: Callable[[int], Deviation | None]) -> Deviation | None:
    """The end of the shortest prefix that deviates, if deviations stay once they are there."""
    low, high = 0, length
    found = deviation(high)
    while found is not None and high - low > 1:
        middle = (low + high) // 2
        earlier = deviation(middle)
        if earlier is None:
            low = middle
        else:
            high, found = middle, earlier
    return found


def _inside(case: Case, outer: Deviation, backend: str | Backend, seed: int) -> Deviation | None:
    """The deviation inside one of the regions that a control-flow instruction runs; None when each
    of them is right on its own, so that the fault is in the control flow itself."""
    values = all_values(replace(case, program=returning(case.program, case.main.body)), seed=seed)
    calls = region_calls(case, outer.instruction, values, seed=seed)
    for count, (region_id, inner) in enumerate(calls):
        if count >= _CALLS:
            return None
        report = _compare(inner, backend, seed)
        if report.agrees:
            continue
        found = report.deviation
        if found is None:
            return None
        place = found.place.replace(inner.main.label, f"region ^{region_id}")
        return replace(found, place=place, around=(outer.place, *found.around))
    return None
