"""The small tuner of document 2's section 6: for every kernel of a program that differs from the
others, measure ten to twenty plans and keep the best one.

Kernels that take most of the program's time come first, and what was found is kept after each, so
that a tuner that is stopped leaves the most useful part behind. What was tuned before is not
measured again, in whatever process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

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
            most = MOST_POINTS[target.kind]
            yield KernelClass(key, alike[0], module, len(alike), tuple(legal[:most]))


def _is_legal(
    kernel: Kernel, module: Module, buffer_map: BufferMap, plan: Plan, target: Target
) -> bool:
    if next(plan_verify.findings(plan, target), None) is not None:
        return False
    return not generator_for(target).accepts(kernel, module, buffer_map, plan, target)


def tune(
    compilation: Compilation,
    watch: Callable[[Trial], None] = lambda trial: None,
    begin: Callable[[Tuning], None] = lambda tuning: None,
    *,
    again: Callable[[KernelClass], bool] = lambda kernels: False,
) -> Tuning:
    """Tune a program that has gone through no stage yet. Stopped by Ctrl-C, it keeps what it has
    found; `again` says what is to be measured even where it was tuned before."""
    target, table = compilation.target, tuned.load(compilation.target)
    tuning = Tuning(classes_of(compilation))
    known = [c for c in tuning.classes if c.key in table and table[c.key].is_done]
    done = [c for c in known if not again(c)]
    tuning.known = len(done)
    tuning.found = {c.key: table[c.key] for c in done}
    tuning.classes = [c for c in tuning.classes if c not in done]
    begin(tuning)
    for kernels in tuning.classes:
        try:
            for trial in _Race(kernels, target, tuning).run():
                watch(trial)
        except KeyboardInterrupt:
            tuning.interrupted = True
        if kernels.key in tuning.found:
            # Another process may have tuned something else in the meantime.
            table = tuned.load(target) | {kernels.key: tuning.found[kernels.key]}
            tuning.is_kept = tuned.save(target, table) and tuning.is_kept
        if tuning.interrupted:
            break
    return tuning


@dataclass
class _Race:
    """The plans of one class, measured one after the other; what is best so far is in `tuning` all
    the time."""

    kernels: KernelClass
    target: Target
    tuning: Tuning
    times: dict[int, float] = field(default_factory=dict)

    def run(self) -> Iterator[Trial]:
        count = len(self.kernels.plans)
        for place in range(count):
            line = self._take(place)
            if line is not None:
                self._note(place + 1)
                yield Trial(self.kernels, place + 1, line, self.times[self.best])
            elif place == 0:
                return
        if self.best:
            # What won by chance does not win twice.
            for place in (0, self.best):
                self._take(place)
        self._note(count)

    @property
    def best(self) -> int:
        return min(self.times, key=lambda place: (self.times[place], place))

    def _take(self, place: int) -> Measurement | None:
        kernels = self.kernels
        try:
            line = measure(kernels.kernel, kernels.module, kernels.plans[place], self.target)
        except WeftError:
            return None
        self.tuning.measured.append(line)
        before = self.times.get(place, 0.0)
        self.times[place] = max(before, line.actual) if place else line.actual
        return line

    def _note(self, points: int) -> None:
        plans, best = self.kernels.plans, self.best
        self.tuning.times[self.kernels.key] = self.times
        self.tuning.found[self.kernels.key] = Tuned(
            plans[best], self.times[best], self.times[0], points, len(plans)
        )
