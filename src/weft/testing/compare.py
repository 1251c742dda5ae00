"""Comparing a backend with the reference, down to the first instruction that goes wrong.

`compare` runs a program on both. To find where they part, every intermediate value of the entry
function is made a result, and the values are compared in program order by the rule of
`weft.testing.tolerance`. Where the first deviation is a control-flow op, its regions are compared
too, each on its own with the arguments that the reference gives it.

A backend that cannot return everything at once, or whose fault disappears when it does, is asked
for one value at a time: for the prefixes of the program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.driver.backends import Backend
from weft.driver.execute import check_choice, run
from weft.foundation.errors import BackendUnavailable, PluginFault, Unimplemented, WeftError
from weft.ptir.ir import Instruction, Program
from weft.ptir.op import Op
from weft.ptir.ops.linear_algebra import Eigh, Qr, Svd
from weft.ptir.types import TupleType, leaves
from weft.ptir.verify import verify
from weft.testing.instrument import (
    Case,
    all_values,
    instrumented,
    prefix,
    region_calls,
    settle,
)
from weft.testing.sensitivity import disturbed_run, spreads
from weft.testing.tolerance import Comparison, compare_results
from weft.testing.widen import widen_arrays, widen_program

Array = NDArray[Any]

ROUNDS: Final = 5
"""How often the reference is run with its roundings disturbed."""
_LINEAR: Final = 64
"""Up to so many prefixes are tried one by one; more are searched by halving."""
_CALLS: Final = 64
"""How many calls of regions are looked into before the search gives up."""
_FACTOR_ULPS: Final = 64.0
"""Factorisations are promised to a small multiple of n ulp, n being the size of the matrix."""

_UNSTABLE: Final = "a rounding error upstream changes it on the reference as well"

_Judged: TypeAlias = list[list[Comparison]]


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

    @property
    def position(self) -> str:
        """The place and the instructions around it, a line each."""
        part = f", element {self.element}" if self.element is not None else ""
        path = "".join(f"\n  inside {place}" for place in reversed(self.around))
        return f"{self.place}{part}{path}"

    def __str__(self) -> str:
        return f"{self.position}\n  {self.comparison.reason}"


@dataclass(frozen=True)
class Report:
    """What a comparison found."""

    backend: str
    results: tuple[Comparison, ...]
    """One for each (flattened) result of the program; none when the backend failed."""
    failure: str = ""
    """The error that the backend raised, if it did."""
    unimplemented: bool = False
    """Whether that error is `Unimplemented`: then the backend differs in nothing."""
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
            verb = "refuses the program" if self.unimplemented else "fails"
            lines = [f"{self.backend} {verb}: {self.failure}"]
        for index, result in enumerate(self.results):
            if not result.passed:
                lines.append(f"result {index}: {result.reason}")
        if self.deviation is not None:
            said = self.failure and self.deviation.comparison.reason.endswith(self.failure)
            lines.append(f"first at {self.deviation.position if said else self.deviation}")
        return "\n".join(lines)


def compare(
    program: Program, inputs: Sequence[Any], backend: str | Backend, *, seed: int = 0
) -> Report:
    """Run a program on a backend and on the reference and report the first instruction whose value
    leaves its bounds."""
    verify(program)
    check_choice(backend)
    return _compare(settle(program, inputs), backend, seed)


def disagrees(
    program: Program, inputs: Sequence[Any], backend: str | Backend, *, seed: int = 0
) -> bool:
    """Whether a backend fails on a program or gives results out of bounds; one that refuses it as
    `Unimplemented` does neither. No place is looked for."""
    verify(program)
    check_choice(backend)
    report = _report_results(settle(program, inputs), backend, seed)
    return not report.agrees and not report.unimplemented


def _compare(case: Case, backend: str | Backend, seed: int) -> Report:
    report = _report_results(case, backend, seed)
    if report.agrees:
        return report
    return replace(report, deviation=_locate(case, backend, seed))


def _report_results(case: Case, backend: str | Backend, seed: int) -> Report:
    """The results alone; no place is looked for."""
    name = _backend_name(backend)
    outcome = _outcome(case, backend, seed)
    if isinstance(outcome, Exception):
        return Report(name, (), _tell_error(outcome), isinstance(outcome, Unimplemented))
    judged = _judge(case, outcome, _targets(case, seed))
    return Report(name, tuple(found for value in judged for found in value))


def _backend_name(backend: str | Backend) -> str:
    return backend if isinstance(backend, str) else backend.name


def _outcome(case: Case, backend: str | Backend, seed: int) -> list[Array] | Exception:
    """The backend's results, or the error it raised. Any error: backends are being tested here,
    but for one that cannot work on this machine."""
    given = [array.copy() for array in case.inputs]
    try:
        results = run(case.program, given, backend=backend, seed=seed)
    except BackendUnavailable:
        raise
    except Exception as error:
        return error
    for index, (before, after) in enumerate(zip(case.inputs, given, strict=True)):
        if before.tobytes() != after.tobytes():
            return PluginFault(
                f"the backend {_backend_name(backend)!r}", f"overwrites input {index}"
            )
    return results


def _tell_error(error: Exception) -> str:
    if isinstance(error, PluginFault):
        return f"it {error.what}"
    return str(error) if isinstance(error, WeftError) else f"{type(error).__name__}: {error}"


# -- judging results -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Target:
    """What one tensor should be."""

    reference: Array
    exact: Array
    spread: float

    def judge(self, out: Array, ulps: float | None = None) -> Comparison:
        stable = bool(np.isfinite(self.spread))
        spread = self.spread if stable else 0.0
        found = compare_results(out, self.reference, self.exact, spread=spread, ulps=ulps)
        if found.passed or stable:
            return found
        return replace(found, reason=f"{found.reason} ({_UNSTABLE})")


def _targets(case: Case, seed: int) -> list[list[_Target]]:
    """For each result the tensors it is made of."""
    reference = run(case.program, case.inputs, backend="reference", seed=seed)
    wide = widen_program(case.program)
    exact = run(wide, widen_arrays(case.inputs), backend="reference", seed=seed)
    spread = [0.0] * len(reference)
    for attempt in range(ROUNDS):
        again = disturbed_run(case.program, case.inputs, seed=seed, round=attempt)
        spread = [max(pair) for pair in zip(spread, spreads(again, exact), strict=True)]
    flat = iter(map(_Target, reference, exact, spread))
    return [[next(flat) for _ in leaves(kind)] for kind in case.main.results]


def _judge(case: Case, outcome: Sequence[Array], targets: Sequence[list[_Target]]) -> _Judged:
    """One comparison for each tensor of each result."""
    definitions = {i.id: i for i in case.main.body}
    flat = iter(outcome)
    judged = []
    for value_id, parts in zip(case.main.result_ids, targets, strict=True):
        arrays = [next(flat) for _ in parts]
        judged.append(_judge_value(definitions.get(value_id), arrays, parts))
    return judged


def _judge_value(
    made_by: Instruction | None, arrays: Sequence[Array], targets: Sequence[_Target]
) -> list[Comparison]:
    op = made_by.op if made_by is not None else None
    if op is None or op.family != "linear_algebra":
        return [target.judge(array) for array, target in zip(arrays, targets, strict=True)]
    found = [t.judge(a, _FACTOR_ULPS) for a, t in zip(arrays, targets, strict=True)]
    if type(op) not in _PRODUCTS or len(arrays) == 1:
        return found
    whole = _judge_factors(type(op), arrays, targets)
    return [whole if index in _PRODUCTS[type(op)][1] else f for index, f in enumerate(found)]


def _judge_factors(
    cls: type[Op], arrays: Sequence[Array], targets: Sequence[_Target]
) -> Comparison:
    """The factors by what they make: their signs are open."""
    multiply = _PRODUCTS[cls][0]
    ours = [target.reference for target in targets]
    if any(a.shape != b.shape or a.dtype != b.dtype for a, b in zip(arrays, ours, strict=True)):
        return Comparison(False, "the factors have other types than on the reference")
    with np.errstate(all="ignore"):
        out, ref, exact = (
            multiply(*parts) for parts in (arrays, ours, [target.exact for target in targets])
        )
    found = compare_results(out, ref, exact, ulps=_FACTOR_ULPS)
    return found if found.passed else replace(found, reason=f"their product: {found.reason}")


def _qr(q: Array, r: Array) -> Array:
    return np.asarray(q @ r)


def _eigh(values: Array, vectors: Array) -> Array:
    columns = vectors * values[..., None, :].astype(vectors.dtype)
    return np.asarray(columns @ np.conjugate(np.swapaxes(vectors, -2, -1)))


def _svd(u: Array, s: Array, vh: Array) -> Array:
    k = s.shape[-1]
    return np.asarray((u[..., :k] * s[..., None, :].astype(u.dtype)) @ vh[..., :k, :])


_PRODUCTS: Final[dict[type[Op], tuple[Callable[..., Array], frozenset[int]]]] = {
    Qr: (_qr, frozenset({0, 1})),
    Eigh: (_eigh, frozenset({1})),
    Svd: (_svd, frozenset({0, 2})),
}
"""How factors make the matrix again, and which of them are judged by that alone."""


# -- finding the place ---------------------------------------------------------------------------


def _locate(case: Case, backend: str | Backend, seed: int) -> Deviation | None:
    """The first instruction that goes wrong; None when none does by itself."""
    whole = replace(case, program=instrumented(case.program))
    targets = _targets(whole, seed)
    found = _among_all(whole, targets, backend, seed)
    if found is None:
        found = _among_prefixes(case, targets, backend, seed)
    if found is None or not found.instruction.op.regions:
        return found
    return _deviation_in_regions(case, found, backend, seed) or found


def _among_all(
    whole: Case, targets: Sequence[list[_Target]], backend: str | Backend, seed: int
) -> Deviation | None:
    """The first deviation when every value is a result."""
    outcome = _outcome(whole, backend, seed)
    if isinstance(outcome, Exception):
        return None
    judged = _judge(whole, outcome, targets)
    for instruction, comparisons in zip(whole.main.body, judged, strict=True):
        found = _deviation(whole, instruction, comparisons)
        if found is not None:
            return found
    return None


def _deviation(
    case: Case, instruction: Instruction, comparisons: Sequence[Comparison]
) -> Deviation | None:
    """The first of the tensors of a value that is out of bounds."""
    for element, comparison in enumerate(comparisons):
        if not comparison.passed:
            which = element if isinstance(instruction.output, TupleType) else None
            place = case.program.place(case.main, instruction)
            return Deviation(instruction, place, comparison, which)
    return None


def _among_prefixes(
    case: Case, targets: Sequence[list[_Target]], backend: str | Backend, seed: int
) -> Deviation | None:
    """The first prefix whose last value is wrong, or on which the backend fails."""

    def deviation(count: int) -> Deviation | None:
        instruction = case.main.body[count - 1]
        outcome = _outcome(replace(case, program=prefix(case.program, count)), backend, seed)
        if isinstance(outcome, Exception):
            failed = Comparison(False, f"the backend fails: {_tell_error(outcome)}")
            return _deviation(case, instruction, [failed])
        return _deviation(case, instruction, _judge_value(instruction, outcome, targets[count - 1]))

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


def _deviation_in_regions(
    case: Case, outer: Deviation, backend: str | Backend, seed: int
) -> Deviation | None:
    """The deviation inside one of the regions that a control-flow instruction runs; None when each
    of them is right on its own, so that the fault is in the control flow itself."""
    values = all_values(case, seed=seed)
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
