"""The small tuner of document 2's section 6: for every kernel of a program that differs from the
others, measure ten to twenty plans and keep the best one.

Kernels that take most of the program's time come first, and what was found is kept after each, so
that a tuner that is stopped leaves the most useful part behind. What was tuned before is not
measured again, in whatever process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final, TypeAlias

from weft.driver.stages.algorithms import chosen_plans
from weft.driver.stages.bodies import parts_of
from weft.driver.stages.compilation import Compilation
from weft.driver.stages.generators import generator_for, pipeline
from weft.driver.tuning import tuned
from weft.driver.tuning.measure import Measurement, measure
from weft.driver.tuning.tuned import Tuned
from weft.foundation.errors import WeftError
from weft.memory.ir import BufferMap
from weft.plan import verify as plan_verify
from weft.plan.candidates import candidates
from weft.plan.ir import Plan
from weft.region.cost import kernel_seconds
from weft.region.ir import Kernel, Module
from weft.target.target import Kind, Target

MOST_POINTS: Final = {Kind.CPU: 16, Kind.GPU: 12}
"""Plans that are measured for one kernel."""


@dataclass(frozen=True)
class KernelClass:
    """Kernels of one structure: one that stands for all, and the plans to try."""

    key: str
    kernel: Kernel
    module: Module
    count: int
    plans: tuple[Plan, ...]


@dataclass(frozen=True)
class Trial:
    """One plan that was measured, and the best so far."""

    kernels: KernelClass
    number: int
    measured: Measurement
    best: float


@dataclass
class Tuning:
    """What a tuner did."""

    classes: list[KernelClass]
    found: dict[str, Tuned] = field(default_factory=dict)
    times: dict[str, dict[int, float]] = field(default_factory=dict)
    """The seconds of the plans of each class, by their places."""
    measured: list[Measurement] = field(default_factory=list)
    known: int = 0
    """Classes that were tuned before."""
    notes: list[str] = field(default_factory=list)
    """What did not go as it should, in sentences."""
    interrupted: bool = False
    is_kept: bool = True
    """Whether the next compile finds what was found: the disk may be full."""

    @property
    def points(self) -> int:
        """Plans of all classes."""
        return sum(len(found.plans) for found in self.classes)


def classes_of(compilation: Compilation) -> list[KernelClass]:
    """The kernels of a program that differ, the dearest first."""
    pipeline().run_pipeline(compilation, "plan")
    found: dict[str, KernelClass] = {}
    for part in parts_of(compilation):
        for made in _classes(part):
            known = found.get(made.key)
            count = made.count + (known.count if known else 0)
            found[made.key] = KernelClass(made.key, made.kernel, made.module, count, made.plans)
    return sorted(found.values(), key=lambda c: -c.count * _estimate(c, compilation.target))


def _estimate(kernels: KernelClass, target: Target) -> float:
    return kernel_seconds(kernels.kernel, kernels.module.tensors, target)


def _classes(part: Compilation) -> Iterator[KernelClass]:
    module, buffer_map, target = part["region"], part["memory"], part.target
    chosen = chosen_plans(part)
    for key, first in chosen.plans.items():
        alike = [k for k in module.kernels if chosen.kernels.get(k.name) == key]
        plans = candidates(alike[0], target, first)
        legal = [p for p in plans if _is_legal(alike[0], module, buffer_map, p, target)]
        if legal:
            likely = _likeliest(alike[0], module, buffer_map, legal, target)
            yield KernelClass(key, alike[0], module, len(alike), tuple(likely))


def _likeliest(
    kernel: Kernel, module: Module, buffer_map: BufferMap, plans: Sequence[Plan], target: Target
) -> list[Plan]:
    """The plans to measure: the first choice, then those of the lowest price."""
    first, *rest = plans
    estimate = generator_for(target).estimate
    # Estimates decide what is measured, and measurements what is taken: a bad estimate costs a try.
    rest.sort(key=lambda plan: estimate(kernel, module, buffer_map, plan, target).seconds)
    return [first, *rest][: MOST_POINTS[target.kind]]


def _is_legal(
    kernel: Kernel, module: Module, buffer_map: BufferMap, plan: Plan, target: Target
) -> bool:
    if next(plan_verify.findings(plan, target), None) is not None:
        return False
    return not generator_for(target).accepts(kernel, module, buffer_map, plan, target)


Taken: TypeAlias = tuple[int, Measurement | None]
"""The place of a plan among those of its class, and its measurement; None: it cannot be built."""
Races: TypeAlias = Callable[
    [Sequence[KernelClass], Target], Iterator[tuple[KernelClass, Iterable[Taken]]]
]
"""Who measures the plans of kernels, in whatever order."""


def tune(
    compilation: Compilation,
    watch: Callable[[Trial], None] = lambda trial: None,
    begin: Callable[[Tuning], None] = lambda tuning: None,
    *,
    again: Callable[[KernelClass], bool] = lambda kernels: False,
    races: Races | None = None,
) -> Tuning:
    """Tune a program that has gone through no stage yet. Stopped by Ctrl-C, it keeps what it has
    found; `again` says what is to be measured even where it was tuned before."""
    target, table = compilation.target, tuned.load_tuned(compilation.target)
    tuning = Tuning(classes_of(compilation))
    known = [c for c in tuning.classes if c.key in table and table[c.key].is_done]
    done = [c for c in known if not again(c)]
    tuning.known = len(done)
    tuning.found = {c.key: table[c.key] for c in done}
    tuning.classes = [c for c in tuning.classes if c not in done]
    begin(tuning)
    at_hand: KernelClass | None = None
    try:
        for kernels, race in (races or _race_here)(tuning.classes, target):
            at_hand = kernels
            for trial in _Race(kernels, tuning).seen(race):
                watch(trial)
            _keep(kernels, target, tuning)
    except KeyboardInterrupt:
        tuning.interrupted = True
        if at_hand is not None:
            _keep(at_hand, target, tuning)
    return tuning


def _race_here(
    classes: Sequence[KernelClass], target: Target
) -> Iterator[tuple[KernelClass, Iterable[Taken]]]:
    """This process measures, one kernel after the other."""
    return ((c, raced(c.kernel, c.module, c.plans, target)) for c in classes)


def _keep(kernels: KernelClass, target: Target, tuning: Tuning) -> None:
    """What was found for a class, in the table; another process may have tuned something else in
    the meantime."""
    if kernels.key in tuning.found:
        table = tuned.load_tuned(target) | {kernels.key: tuning.found[kernels.key]}
        tuning.is_kept = tuned.save_tuned(target, table) and tuning.is_kept


def raced(kernel: Kernel, module: Module, plans: Sequence[Plan], target: Target) -> Iterator[Taken]:
    """The plans of a kernel, measured one after the other; the winner runs once more beside the
    first choice, because what won by chance does not win twice."""
    times: dict[int, float] = {}
    for place, plan in enumerate(plans):
        line = _measure_plan(kernel, module, plan, target)
        yield place, line
        if line is not None:
            times[place] = line.actual
        # The first choice is what all others are compared with.
        elif place == 0:
            return
    best = _best(times)
    for place in (0, best) if best else ():
        yield place, _measure_plan(kernel, module, plans[place], target)


def _measure_plan(kernel: Kernel, module: Module, plan: Plan, target: Target) -> Measurement | None:
    try:
        return measure(kernel, module, plan, target)
    except WeftError:
        return None


def _best(times: Mapping[int, float]) -> int:
    return min(times, key=lambda place: (times[place], place))


@dataclass
class _Race:
    """What is known of the plans of one class; what is best so far is in `tuning` all the time."""

    kernels: KernelClass
    tuning: Tuning
    times: dict[int, float] = field(default_factory=dict)

    def seen(self, race: Iterable[Taken]) -> Iterator[Trial]:
        """A trial for each plan that was measured for the first time."""
        count, done = len(self.kernels.plans), 0
        for place, line in race:
            again, done = place < done, max(done, place + 1)
            if line is not None:
                self._take(place, line)
                self._note(done)
                if not again:
                    yield Trial(self.kernels, done, line, self.times[_best(self.times)])
        if self.times:
            self._note(count)

    def _take(self, place: int, line: Measurement) -> None:
        self.tuning.measured.append(line)
        before = self.times.get(place, 0.0)
        # The winner runs twice and counts by its worse time, the first choice by its last one,
        # which was taken beside the winner's: a plan is replaced only where that shows both times.
        self.times[place] = max(before, line.actual) if place else line.actual

    def _note(self, points: int) -> None:
        plans, best = self.kernels.plans, _best(self.times)
        race = sorted(((plans[at], taken) for at, taken in self.times.items()), key=itemgetter(1))
        self.tuning.times[self.kernels.key] = self.times
        self.tuning.found[self.kernels.key] = Tuned(
            plans[best], self.times[best], self.times[0], points, len(plans), tuple(race)
        )
