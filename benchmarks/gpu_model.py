"""How well the model of matrix kernels' time chooses, on recorded timings.

    python -m benchmarks.gpu_model              as it is: its choices against the best forms
    python -m benchmarks.gpu_model --cross 4    fitted to half of the products, judged on the others
    python -m benchmarks.gpu_model --fit        the numbers that suit all products best

The timings are those that come with Weft (`weft.target.measured_forms`), without a GPU. A product's
loss is the time of the form that the model has first over that of the best one, of those that were
timed: a form that nobody timed is neither praised nor blamed.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import astuple, fields
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from weft.target.known import target_named
from weft.target.matrix_tiles import Form
from weft.target.matrix_time import H200, Contraction, Pace, cycles
from weft.target.measured_forms import form_name, shipped

TARGET: Final = target_named("sm90")
LEAST_FORMS: Final = 2
_GOOD: Final = 0.25
"""How fast the weight of a form falls with its distance from the best one."""
_BETWEEN: Final = 0.15
"""The weight of times of different products, which have different clocks, beside those of forms."""
_NEAR: Final = 0.02
"""The weight of staying near the numbers at hand."""
_FORGIVEN: Final = 0.05
"""Errors beyond this count less than their squares."""

GUESS: Final = Pace(
    start=4000.0, shared=1.0, alone=30.0, late=0.1, unit=128.0, cache=64.0, memory=2400.0,
    off_sector=1.0, beyond=32.0, panel=200.0, row=1.0, turn=200.0, beside=0.5, following=200.0,
    pair=500.0, delivered=1.0,
)  # fmt: skip
"""Numbers that no product was looked at for, from which those of a part of them are found."""

Timings = Mapping[Contraction, Mapping[Form, float]]


def timings() -> Timings:
    """The products with several timed forms, of those that the planner looks at."""
    table = shipped(TARGET)
    assert table is not None
    known = {
        found: {form: time for form, time in times.items() if found.suits(form)}
        for found, times in table.products.items()
    }
    return {found: times for found, times in known.items() if len(times) >= LEAST_FORMS}


# -- judging -------------------------------------------------------------------------------------


def loss(found: Contraction, times: Mapping[Form, float], pace: Pace = H200) -> float:
    """How much longer the model's choice of these forms takes than the best: 0.03 for 3 percent."""
    first = min(times, key=lambda form: cycles(form, found, TARGET, pace=pace))
    return times[first] / min(times.values()) - 1


def summary(losses: Sequence[float]) -> str:
    within = sum(found <= 0.05 for found in losses)
    return (
        f"{len(losses)} choices, loss median {statistics.median(losses):.1%}, mean "
        f"{statistics.mean(losses):.1%}, worst {max(losses):.1%}, {within} within 5 %"
    )


def table(known: Timings) -> str:
    """The products that lose most."""
    rows = sorted(
        ((loss(found, times), found) for found, times in known.items()), key=lambda r: -r[0]
    )
    lines = []
    for lost, found in rows[:12]:
        times = known[found]
        first = min(times, key=lambda form: cycles(form, found, TARGET))
        best = min(times, key=lambda form: times[form])
        names = f"{form_name(first)} | {times[first]:.2f} | {form_name(best)} | {times[best]:.2f}"
        lines.append(f"| {found} | {names} | {lost:.1%} |")
    return "\n".join(lines)


# -- fitting -------------------------------------------------------------------------------------


def fitted(known: Timings, start: Pace = H200) -> Pace:
    """The numbers with which forms of the same product compare best; good forms count most."""
    logs = np.log(np.array(astuple(start)))

    def errors(at: NDArray[Any]) -> NDArray[Any]:
        pace = Pace(*np.exp(at).tolist())
        parts = [_errors(found, times, pace) for found, times in known.items()]
        means = np.array([mean for _, mean in parts])
        between = _BETWEEN * (means - means.mean())
        return np.concatenate([*(part for part, _ in parts), between, _NEAR * (at - logs)])

    found = least_squares(errors, logs, loss="soft_l1", f_scale=_FORGIVEN, max_nfev=40)
    return Pace(*np.exp(found.x).tolist())


def _errors(
    found: Contraction, times: Mapping[Form, float], pace: Pace
) -> tuple[NDArray[Any], float]:
    """Weighted errors of the forms of a product, in parts, and the product's own."""
    best = min(times.values())
    weights = np.array([math.exp((1 - time / best) / _GOOD) for time in times.values()])
    ratios = np.array(
        [math.log(time / cycles(form, found, TARGET, pace=pace)) for form, time in times.items()]
    )
    mean = float(np.average(ratios, weights=weights))
    return np.sqrt(weights) * (ratios - mean), mean


def crossed(known: Timings, rounds: int) -> list[float]:
    """Losses of products that the numbers were not fitted to: in each round one half is fitted to
    and the other judged, and the other way round."""
    source, losses = random.Random(0), []
    for turn in range(rounds):
        order = list(known)
        source.shuffle(order)
        half = len(order) // 2
        for learned, judged in ((order[:half], order[half:]), (order[half:], order[:half])):
            pace = fitted({found: known[found] for found in learned}, GUESS)
            losses += [loss(found, known[found], pace) for found in judged]
        print(f"{turn + 1} rounds: {summary(losses)}", flush=True)
    return losses


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--cross", type=int, default=0, metavar="ROUNDS")
    options = parser.parse_args()
    known = timings()
    if options.cross:
        crossed(known, options.cross)
        return 0
    if options.fit:
        pace = fitted(known)
        for field in fields(Pace):
            old, new = (getattr(numbers, field.name) for numbers in (H200, pace))
            print(f"{field.name:12} {old:10.2f} -> {new:.3f}")
        print(summary([loss(found, times, pace) for found, times in known.items()]))
        return 0
    print(table(known))
    print(summary([loss(found, times) for found, times in known.items()]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
