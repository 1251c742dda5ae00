"""Measuring kernels one at a time: estimated and real times side by side (document 2's log).

The log is a CSV file that grows: kernel, pattern, FLOPs, Bytes, occ, estimate, actual, plan; times
in seconds. How well estimates order the plans of a kernel is their rank correlation with the times
that were measured; kernels are not mixed, for a large one takes longer than a small one by any
estimate.
"""

from __future__ import annotations

import csv
import json
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from typing import Final

from weft.driver.stages.bodies import parts_of
from weft.driver.stages.compilation import Compilation
from weft.driver.stages.generators import generator_for
from weft.driver.tuning.single_kernel import build_alone, module_of, some_data
from weft.foundation.errors import SpecViolation, UserError
from weft.memory.from_region import assign_buffers
from weft.plan.ir import Plan
from weft.plan.text import plan_to_json
from weft.region.ir import Kernel, Module
from weft.target.target import Target


@dataclass(frozen=True)
class Measurement:
    """One line of the log."""

    kernel: str
    pattern: str
    FLOPs: int
    Bytes: int
    occ: float
    estimate: float
    actual: float
    plan: str


_LEAST_PLANS: Final = 3
"""Of a kernel, to put into an order."""
COLUMNS: Final = tuple(found.name for found in fields(Measurement))


def measure(kernel: Kernel, module: Module, plan: Plan, target: Target) -> Measurement:
    """Build a kernel by a plan and take its time."""
    built, generator = build_alone(kernel, module, plan, target), generator_for(target)
    inputs = [some_data(spec, number) for number, spec in enumerate(built.artifact.inputs)]
    try:
        seconds = generator.clock(built, inputs)
    except SpecViolation:
        raise UserError(f"{kernel.name} cannot be measured on numbers made up for it") from None
    alone = module_of(kernel, module)
    guess = generator.estimate(kernel, alone, assign_buffers(alone), plan, target)
    work = guess.work
    return Measurement(
        kernel.name,
        kernel.pattern.value,
        work.operations,
        work.bytes,
        round(guess.usage.occupancy, 3),
        guess.seconds,
        seconds,
        json.dumps(plan_to_json(plan)),
    )


def measure_program(compilation: Compilation) -> Iterator[Measurement]:
    """Every distinct kernel of a program that has gone through all stages, by the plan it has."""
    done: set[str] = set()
    for part in parts_of(compilation):
        plans, module = part["plan"], part["region"]
        for kernel in module.kernels:
            key = plans.kernels.get(kernel.name)
            if key is not None and key not in done:
                done.add(key)
                yield measure(kernel, module, plans.plans[key], compilation.target)


# -- the log -------------------------------------------------------------------------------------


def append(path: Path, lines: Iterable[Measurement]) -> None:
    """Add lines to a log, which begins with the names of its columns."""
    try:
        fresh = not path.exists() or path.stat().st_size == 0
        with path.open("a", newline="") as file:
            writer = csv.writer(file)
            if fresh:
                writer.writerow(COLUMNS)
            writer.writerows(astuple(line) for line in lines)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from None


def read_log(path: Path) -> list[Measurement]:
    """The lines of a log."""
    try:
        with path.open(newline="") as file:
            reader = csv.DictReader(file)
            columns, rows = reader.fieldnames or (), list(reader)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} is not a log of measurements, nor a CSV file: {error}") from None
    if not set(COLUMNS) <= set(columns):
        raise UserError(
            f"{path} is not a log of measurements: a log begins with the line {','.join(COLUMNS)}; "
            "weft compile --measure and weft tune --log write one"
        )
    return [_line(path, number, row) for number, row in enumerate(rows, 2)]


def _line(path: Path, number: int, row: dict[str, str | None]) -> Measurement:
    try:
        texts = [row[name] or "" for name in COLUMNS]
        name, pattern, flops, moved, occ, guess, actual, plan = texts
        times = float(occ), float(guess), float(actual)
        if not all(0 <= time < math.inf for time in times):
            raise ValueError("these are not times")
        return Measurement(name, pattern, int(flops), int(moved), *times, plan)
    except (KeyError, ValueError):
        wanted = ", ".join(COLUMNS)
        raise UserError(f"{path}, line {number} is not a measurement: it has {wanted}") from None


def rank_correlation(lines: Sequence[Measurement]) -> float:
    """Spearman's: how far estimates put kernels in the order of their times, from -1 to 1."""
    guessed, taken = _ranks([m.estimate for m in lines]), _ranks([m.actual for m in lines])
    if len(set(guessed)) < 2 or len(set(taken)) < 2:
        raise UserError(
            "a rank correlation needs measurements that differ, in estimate and in time"
        )
    return statistics.correlation(guessed, taken)


@dataclass(frozen=True)
class Ranking:
    """How well estimates order the plans of one kernel."""

    kernel: str
    plans: int
    spread: float
    """The longest time over the shortest."""
    correlation: float


def rankings(lines: Sequence[Measurement]) -> list[Ranking]:
    """The kernels of a log that were measured by three plans at least."""
    kernels: dict[tuple[str, str], dict[str, list[Measurement]]] = {}
    for line in lines:
        plans = kernels.setdefault((line.kernel, _structure(line)), {})
        plans.setdefault(line.plan, []).append(line)
    return [
        _ranking(name, [_typical(taken) for taken in plans.values()])
        for (name, _), plans in kernels.items()
        if len(plans) >= _LEAST_PLANS
    ]


def _structure(line: Measurement) -> str:
    """The key of the kernel that a plan is for: names come again in other programs."""
    try:
        return str(json.loads(line.plan)["kernel"])
    except (ValueError, KeyError, TypeError):
        return ""


def _typical(taken: Sequence[Measurement]) -> Measurement:
    """Of a plan that was measured several times, the time in the middle."""
    return replace(taken[0], actual=statistics.median(line.actual for line in taken))


def _ranking(kernel: str, plans: Sequence[Measurement]) -> Ranking:
    times = [line.actual for line in plans]
    spread = max(times) / max(min(times), 1e-12)
    try:
        found = rank_correlation(plans)
    except UserError:
        found = 0.0
    return Ranking(kernel, len(plans), spread, found)


def first_plans(lines: Sequence[Measurement]) -> list[Measurement]:
    """Of every kernel the plan that was measured first."""
    found: dict[tuple[str, str], Measurement] = {}
    for line in lines:
        found.setdefault((line.kernel, _structure(line)), line)
    return list(found.values())


def _ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 1, equal values sharing the mean of theirs."""
    order = sorted(values)
    # Written front to back the last place of equal values stays, back to front their first one.
    first = {value: place for place, value in reversed(list(enumerate(order, 1)))}
    last = {value: place for place, value in enumerate(order, 1)}
    return [(first[value] + last[value]) / 2 for value in values]
