"""Collecting what the page shows: programs from files, and those that a script runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from weft.driver.compile import Cluster, Executable, compile_program
from weft.driver.execute import Prepared
from weft.driver.signature import Role
from weft.driver.stages.compilation import DEFAULT_LEVEL
from weft.explorer.record import Json, Measured, Options, records_of
from weft.foundation.errors import WeftError
from weft.foundation.progress import ALOUD, at, compiling
from weft.ops.graph.hooks import WATCH
from weft.ops.trace.profile import Profile, profiled, unshared
from weft.ptir.ir import Program
from weft.ptir.passes.log import PassLog
from weft.runtime.artifact import HostCall, Launch
from weft.runtime.timeline import Lap
from weft.testing.data import random_inputs

MOST_PROGRAMS: Final = 12
"""Programs of a script that the page has: those that took the most time."""
PLAIN: Final = Options()
_TURNS: Final = 3
"""Runs of a program, of which the fastest counts, kernel by kernel."""


@dataclass
class Shown:
    """A program on the page, and what it takes to compile it again."""

    name: str
    executable: Executable
    measured: Measured = field(default_factory=Measured)

    @property
    def cluster(self) -> Cluster:
        return list(self.executable.clusters.values())[-1]

    def records(self, options: Options = PLAIN) -> list[Json]:
        # A program that was kept from before goes through its stages here.
        with compiling(self.name, aloud=ALOUD):
            at("the page")
            return records_of(self.name, self.cluster, self.measured, options)

    def again(self, stage: str, text: str) -> Shown:
        """The same program with a stage as somebody wrote it, compiled and run again."""
        old = self.executable
        roles = old.signature.roles
        source = self.cluster.started.program
        overrides = {**old.overrides, stage: text}
        made = compile_program(
            source,
            old.target,
            params=[at for at, role in enumerate(roles) if role is Role.PARAM],
            state=[at for at, role in enumerate(roles) if role is Role.STATE],
            donate=old.signature.donated,
            overrides=overrides,
            opt_level=old.opt_level,
        )
        name = self.name.partition(" (")[0]
        return Shown(f"{name} (edited {', '.join(overrides)})", made, run_of(made))


def of_program(
    name: str, program: Program, target: str = "cpu", level: int = DEFAULT_LEVEL, run: bool = True
) -> Shown:
    """A program compiled, and run on made-up inputs where it is for this machine."""
    with compiling(f"{name} for {target}", aloud=ALOUD):
        made = compile_program(program, target, opt_level=level)
        at("a run for its times")
        return Shown(name, made, run_of(made) if run else Measured())


def run_of(executable: Executable) -> Measured:
    """The time of each kernel on made-up inputs; nothing where it cannot run so."""
    if not executable.target.is_here:
        return Measured()
    given = zip(random_inputs(executable.source), executable.signature.roles, strict=True)
    inputs = [array for array, role in given if role is not Role.STATE]
    try:
        with np.errstate(all="ignore"):
            runs = [executable.profile([array.copy() for array in inputs]) for _ in range(_TURNS)]
            laps = executable.timeline([array.copy() for array in inputs])
    except WeftError:
        # There may be no such GPU here, and made-up numbers may not be what it takes, such as
        # places inside a table.
        return Measured()
    least = [(label, min(run[at][1] for run in runs)) for at, (label, _) in enumerate(runs[0])]
    return _collect_measured(least, laps, executable)


def _collect_measured(
    steps: Sequence[tuple[str, float]], laps: Sequence[Lap], executable: Executable
) -> Measured:
    kinds = [isinstance(step, Launch | HostCall) for step in executable.artifact.steps]
    seconds: dict[str, float] = {}
    for (label, time), is_kernel in zip(steps, kinds, strict=True):
        if is_kernel:
            seconds[label] = seconds.get(label, 0.0) + time
    return Measured(seconds, laps)


def _steadier(one: Measured, other: Measured) -> Measured:
    """The faster of two times for each kernel: what a machine did besides only ever adds to it."""
    if one.seconds.keys() != other.seconds.keys():
        return one
    least = {name: min(time, other.seconds[name]) for name, time in one.seconds.items()}
    return Measured(least, one.laps)


class Watcher:
    """Sees every program that is compiled or run, and times its runs."""

    def __init__(self) -> None:
        self.seen: dict[int, Prepared] = {}
        self.kinds: dict[int, str] = {}
        self.steps: dict[int, list[tuple[str, float]]] = {}
        """The least time of every step of a program, of all its runs."""
        self.seconds: dict[int, float] = {}
        """The time of all its runs together."""
        self.runs: dict[int, int] = {}
        self.laps: dict[int, list[Lap]] = {}

    def compiled(
        self, kind: str, source: Program, made: Prepared, log: PassLog, seconds: float
    ) -> None:
        self.seen[id(made)] = made
        self.kinds[id(made)] = kind

    def execute(self, compiled: Prepared, inputs: Sequence[Any], seed: int) -> list[Any]:
        self.seen[id(compiled)] = compiled
        found = Profile(has_laps=False)
        self._time_lanes(compiled, inputs, seed)
        results = profiled(compiled, inputs, seed, found)
        self.runs[id(compiled)] = self.runs.get(id(compiled), 0) + 1
        steps = [(span.name, span.seconds) for span in found.spans]
        known = self.steps.get(id(compiled))
        self.steps[id(compiled)] = steps if known is None else _faster_steps(known, steps)
        self.seconds[id(compiled)] = self.seconds.get(id(compiled), 0.0) + sum(s for _, s in steps)
        return results

    def _time_lanes(self, compiled: Prepared, inputs: Sequence[Any], seed: int) -> None:
        """One more run of each of the first few: the shortest is the timeline."""
        find = getattr(compiled.executable, "timeline", None)
        if find is None or self.runs.get(id(compiled), 0) >= _TURNS:
            return
        laps = find(unshared(compiled, inputs), seed=seed)
        known = self.laps.get(id(compiled))
        if known is None or _end(laps) < _end(known):
            self.laps[id(compiled)] = laps

    def shown(self) -> list[Shown]:
        """The programs that went through the compiler, or those of `jit` where there are such: that
        which took the most time first, and of those that did not run, the largest."""
        found = [made for made in self.seen.values() if executable_of(made) is not None]
        jitted = [made for made in found if self.kinds.get(id(made)) == "jit"]
        ranked = sorted(
            jitted or found,
            key=lambda made: (-self.seconds.get(id(made), 0.0), -len(made.program.main.body)),
        )
        names: dict[str, int] = {}
        shown = []
        for made in ranked[:MOST_PROGRAMS]:
            name = made.program.entry
            names[name] = names.get(name, 0) + 1
            number = f" {names[name]}" if names[name] > 1 else ""
            shown.append(self._show_program(f"{name}{number}", made))
        return shown

    def _show_program(self, name: str, made: Prepared) -> Shown:
        executable = executable_of(made)
        assert executable is not None
        steps = self.steps.get(id(made), [])
        is_whole = len(steps) == len(executable.artifact.steps)
        laps = self.laps.get(id(made), [])
        measured = _collect_measured(steps, laps, executable) if is_whole else Measured()
        if is_whole and self.runs[id(made)] < _TURNS:
            measured = _steadier(measured, run_of(executable))
        return Shown(name, executable, measured)


def _end(laps: Sequence[Lap]) -> float:
    return max((lap.start + lap.seconds for lap in laps), default=0.0)


def _faster_steps(
    one: Sequence[tuple[str, float]], other: Sequence[tuple[str, float]]
) -> list[tuple[str, float]]:
    """The faster of two times for each step: what a machine did besides only ever adds to it."""
    if [name for name, _ in one] != [name for name, _ in other]:
        return list(one)
    pairs = zip(one, other, strict=True)
    return [(name, min(seconds, again)) for (name, seconds), (_, again) in pairs]


def executable_of(made: Prepared) -> Executable | None:
    """What a prepared program was compiled to; None on a backend without stages."""
    found = getattr(made.executable, "executable", None)
    return found if isinstance(found, Executable) and found.clusters else None


@contextmanager
def watched() -> Iterator[Watcher]:
    """What is compiled and run inside is seen."""
    before, watcher = WATCH.tracer, Watcher()
    WATCH.tracer = watcher
    try:
        yield watcher
    finally:
        WATCH.tracer = before


def records(shown: Sequence[Shown], options: Options = PLAIN) -> tuple[list[Json], dict[int, int]]:
    """The records of programs, and which record is which program: bodies have none of their own."""
    found: list[Json] = []
    owners: dict[int, int] = {}
    for number, each in enumerate(shown):
        owners[len(found)] = number
        found += each.records(options)
    return found, owners
