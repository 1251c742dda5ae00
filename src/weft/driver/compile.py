"""`weft.compile`: a program through the whole pipeline, as something that runs.

A program without dynamic dims is compiled at once. One with dynamic dims is compiled again for
every set of sizes it meets (a shape cluster); `explain` says which, when and why. What was compiled
before, in whatever process, is linked; the pipeline then runs only if somebody asks what a stage
made.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol, overload

from numpy.typing import NDArray

from weft.driver.agreement import agreement_on
from weft.driver.inputs import (
    ReadyInputs,
    Shapes,
    check_array,
    check_inputs,
    check_seed,
    check_threads,
    in_one_piece,
)
from weft.driver.programs import program_cache
from weft.driver.programs.shape_sets import ShapeSet
from weft.driver.programs.shaped import Compiled, ShapedExecutable
from weft.driver.signature import Role, Signature, make_signature
from weft.driver.stages.compilation import DEFAULT_LEVEL, Compilation, check_level, naming_lines
from weft.driver.stages.generators import Built, generator_for, linker_for, pipeline
from weft.driver.stages.opaque import host_op
from weft.driver.stages.origins import Origin, step_origins
from weft.foundation import limits
from weft.foundation.calls import options_told, told_outside
from weft.foundation.errors import ResourceExceeded, UserError, WeftWarning
from weft.foundation.forks import new_reentrant_lock, no_fork
from weft.foundation.garbage_collector import collector_paused
from weft.foundation.lines import shown, user_line
from weft.foundation.progress import at, compiling
from weft.foundation.tally import counted
from weft.ptir.exchanges import exchanges
from weft.ptir.ir import Program
from weft.ptir.specialise import bind_shapes, check_memory, check_results, is_static, specialise
from weft.ptir.types import TensorType, leaves
from weft.ptir.verify import check_program, verify
from weft.runtime.artifact import Artifact, HostCall, Launch
from weft.runtime.timeline import Lap
from weft.target.known import target_named
from weft.target.target import Target

Array = NDArray[Any]
MOST_CLUSTERS = 64
"""For how many sets of sizes an executable keeps its compiled programs: those it met last."""
_GOING_ON: Final = new_reentrant_lock()
"""Held while a program from disk goes through its stages after all: whoever asks waits for it."""


@dataclass(repr=False)
class Cluster:
    """One compiled version of a program: the sizes it is for, and everything made on the way."""

    sizes: dict[str, int]
    started: Compilation
    """The compilation, which has gone through no stage yet where the program came from disk."""
    built: Built
    times: dict[str, float]
    """What took how many seconds."""
    reason: str

    def __repr__(self) -> str:
        return f"<Cluster: {self.describe()}>"

    @property
    def seconds(self) -> float:
        return sum(self.times.values())

    @property
    def compilation(self) -> Compilation:
        """What every stage made, of the bodies of branches and loops too."""
        with no_fork, _GOING_ON:
            if not self.started.values:
                with collector_paused:
                    pipeline().run_whole(self.started)
        return self.started

    def describe(self) -> str:
        """A line for `explain`."""
        named = ", ".join(f"{name}={size}" for name, size in sorted(self.sizes.items()))
        what = f"for {named}" if named else "as it is"
        built = counted(self.built.compiled, "kernel")
        return (
            f"compiled {what} in {self.seconds:.2f} s ({built} built, "
            f"{self.built.reused} from the cache): {self.reason}"
        )

    def report(self) -> list[str]:
        """Kernels, what was worked out for them, buffers and copies, in sentences."""
        built = self.built
        alike: dict[str, list[str]] = {}
        for name, symbol in built.symbols.items():
            alike.setdefault(symbol, []).append(name)
        kernels = counted(len(built.symbols), "kernel")
        distinct = f", {len(alike)} of them distinct" if len(built.symbols) > 1 else ""
        lines = [f"{kernels}{distinct}; {built.compiled} compiled, {built.reused} from the cache"]
        lines += str(self.compilation.tally).splitlines()
        lines += [_name_kernels(names) for names in alike.values()]
        hosts = (step for step in built.artifact.steps if isinstance(step, HostCall))
        lines += [f"{step.label} runs on the host: {host_op(step.call)}" for step in hosts]
        lines += exchanges(self.compilation.program)
        return [*lines, *pipeline().report(self.compilation), *built.notes]


def _name_kernels(names: Sequence[str]) -> str:
    """A kernel and those like it."""
    pattern = names[0].rstrip("0123456789")
    others = f", and {len(names) - 1} like it" if len(names) > 1 else ""
    return f"{names[0]}: {pattern}{others}"


@dataclass(repr=False)
class Executable(Compiled):
    """A program ready to run on a target."""

    source: Program
    target: Target
    signature: Signature
    overrides: Mapping[str, str] = field(default_factory=dict)
    opt_level: int = DEFAULT_LEVEL
    clusters: dict[tuple[tuple[str, int], ...], Cluster] = field(default_factory=dict)
    state: list[Array] = field(default_factory=list)
    """The state inputs, in order; write into them to set them."""

    def __post_init__(self) -> None:
        self._given = ReadyInputs(self.inputs)
        self._known: dict[Shapes, Cluster] = {}
        """The version for inputs of given shapes that need no conversion."""
        self._agreement = agreement_on(self.source)

    def __repr__(self) -> str:
        versions = counted(len(self.clusters), "version")
        return f"<Executable of @{self.source.entry} for {self.target.name}, {versions} compiled>"

    @property
    def inputs(self) -> list[TensorType]:
        """The types of everything a run is given: all inputs but the state."""
        return [
            kind
            for kind, role in zip(self._leaves, self.signature.roles, strict=True)
            if role is not Role.STATE
        ]

    @property
    def _leaves(self) -> list[TensorType]:
        return [leaf for kind in self.source.main.parameters for leaf in leaves(kind)]

    @property
    def stages(self) -> dict[str, str]:
        """The dump of every stage, of the version compiled last."""
        compilation = self._latest.compilation
        return {name: compilation.text(name) for name in compilation.values}

    @property
    def artifact(self) -> Artifact:
        """Kernels, steps and buffers of the version compiled last."""
        return self._latest.built.artifact

    @property
    def _latest(self) -> Cluster:
        if not self.clusters:
            raise UserError("nothing is compiled yet: the program has dynamic dims, run it first")
        return list(self.clusters.values())[-1]

    @told_outside
    def __call__(self, *inputs: Any, seed: int = 0) -> list[Array]:
        return self.run(inputs, seed=seed)

    @told_outside
    def run(
        self,
        inputs: Sequence[Any],
        *,
        seed: int = 0,
        threads: int | None = None,
        holder: object = None,
    ) -> list[Array]:
        """The flattened results. State outputs are views that the next run overwrites.

        `holder` owns the parameters among the inputs; they are taken to be the same as in the last
        run that had the same holder.
        """
        check_threads(threads)
        cluster, data = self.prepare(inputs)
        return self.carry_out(cluster, data, seed, threads, holder)

    def carry_out(
        self,
        cluster: Cluster,
        inputs: Sequence[Array],
        seed: int,
        threads: int | None,
        holder: object,
    ) -> list[Array]:
        """Run a version on inputs that are ready for it; the parameters are the holder's."""
        if self._agreement is not None:
            self._agreement.reach()
        try:
            return cluster.built.program.run(inputs, check_seed(seed), threads, holder)
        except MemoryError:
            raise self.out_of_memory() from None

    def out_of_memory(self) -> ResourceExceeded:
        """A run found no memory."""
        return ResourceExceeded(f"out of memory while running @{self.source.entry}")

    @told_outside
    def profile(self, inputs: Sequence[Any], *, seed: int = 0) -> list[tuple[str, float]]:
        """The seconds of every step (kernel, copy or host call) of one run."""
        cluster, data = self.prepare(inputs)
        return cluster.built.program.profile(data, check_seed(seed))

    @told_outside
    def timeline(self, inputs: Sequence[Any], *, seed: int = 0) -> list[Lap]:
        """Which thread of a CPU, or stream of a GPU, was busy with which step of one run, and
        when."""
        cluster, data = self.prepare(inputs)
        return cluster.built.program.timeline(data, check_seed(seed))

    def origins(self) -> list[Origin]:
        """What the user wrote that each step of the version compiled last carries out, in the order
        in which `profile` lists them."""
        latest = self._latest
        return step_origins(latest.built.artifact.steps, latest.compilation)

    def prepare(self, inputs: Sequence[Any]) -> tuple[Cluster, Sequence[Array]]:
        """The version for these inputs, and the inputs that are not state, ready for it."""
        shapes = self._given.shapes(inputs)
        found = None if shapes is None else self._known.get(shapes)
        if found is not None:
            return found, inputs
        cluster, data = self._prepare(inputs)
        if shapes is not None:
            self._known[shapes] = cluster
        return cluster, data

    def _prepare(self, inputs: Sequence[Any]) -> tuple[Cluster, Sequence[Array]]:
        """The same for inputs of which nothing is known yet."""
        given = iter(inputs)
        wanted = len(self.inputs)
        if len(inputs) != wanted:
            raise UserError(f"@{self.source.entry} takes {wanted} inputs but got {len(inputs)}")
        states = iter(self.state)
        everything = [
            next(states) if role is Role.STATE else next(given) for role in self.signature.roles
        ]
        arrays = check_inputs(self.source, everything)
        data = [
            in_one_piece(array)
            for array, role in zip(arrays, self.signature.roles, strict=True)
            if role is not Role.STATE
        ]
        return self._cluster([array.shape for array in arrays]), data

    def bind(self, params: Sequence[Any]) -> Bound:
        """The executable with its parameters given once; calls then take only data. What was given
        is not to be written to any more."""
        return Bound(self, params)

    def explain(self) -> str:
        """What was compiled, when, and why."""
        lines = [cluster.describe() for cluster in self.clusters.values()]
        return "\n".join(lines) or "nothing compiled yet: the program has dynamic dims"

    def report(self) -> list[str]:
        """Kernels, buffers and copies of the version compiled last, in sentences."""
        return self._latest.report()

    def _cluster(self, shapes: Sequence[tuple[int, ...]]) -> Cluster:
        sizes = bind_shapes(self.source.main.parameters, shapes)
        key = tuple(sorted(sizes.items()))
        if key not in self.clusters:
            reason = "first run with these sizes" if sizes else "all its sizes are given"
            with no_fork, collector_paused:
                self.clusters[key] = self._compile(sizes, reason)
            if len(self.clusters) > MOST_CLUSTERS:
                gone = self.clusters.pop(next(iter(self.clusters)))
                self._known = {s: found for s, found in self._known.items() if found is not gone}
        return self.clusters[key]

    def _compile(self, sizes: dict[str, int], reason: str) -> Cluster:
        watch = _Stopwatch()
        concrete, bounds = specialise(self.source, sizes), limits.current()
        check_results(concrete, bounds)
        compilation = Compilation(
            concrete, self.target, self.signature, self.overrides, self.opt_level
        )
        key = program_cache.key_of(
            concrete, self.target, self.signature, self.opt_level, self.overrides
        )
        found = program_cache.load_kept(key, self.target, concrete, self.signature, self.state)
        watch.note("disk")
        built = found.built or self._build(compilation, watch)
        for sentence in built.warned:
            compilation.warn(sentence)
        if found.built is None:
            program_cache.save_kept(key, concrete, built)
        if found.note:
            built.notes.append(found.note)
            reason = f"{reason}; {found.note}"
        check_memory(largest_buffer(built.artifact), concrete, bounds)
        _warn_of_work(built.artifact, concrete, bounds)
        return Cluster(sizes, compilation, built, watch.times, reason)

    def _build(self, compilation: Compilation, watch: _Stopwatch) -> Built:
        """A program through all stages."""
        generator = generator_for(self.target)
        with compiling(f"@{compilation.program.entry}"), generator.ahead(compilation):
            pipeline().run_pipeline(compilation)
            watch.note("loading", less=compilation.seconds)
            at("machine code")
            with naming_lines(compilation):
                built = generator.build(compilation, self.signature, self.state)
            watch.note("machine code")
        return built


def _warn_of_work(artifact: Artifact, program: Program, bounds: limits.Limits) -> None:
    """Say how long a run takes where it is long, before it begins."""
    launches = [step for step in artifact.steps if isinstance(step, Launch)]
    seconds = [artifact.kernels[launch.kernel].nanoseconds / 1e9 for launch in launches]
    if sum(seconds) > bounds.warned_seconds:
        longest = launches[seconds.index(max(seconds))].label
        warnings.warn(
            f"one run of @{program.entry} takes about {sum(seconds):,.0f} seconds by the "
            f"compiler's estimate, {max(seconds):,.0f} of them in the kernel {longest}; set "
            "WEFT_WARN_SECONDS to be warned of longer runs only",
            WeftWarning,
            stacklevel=2,
        )


def largest_buffer(artifact: Artifact) -> int:
    """The bytes of the largest piece of memory that a run takes; the inputs are there already."""
    return max((slot.bytes for slot in artifact.buffers if slot.space != "input"), default=0)


class _Stopwatch:
    """Notes how long things took, one after the other."""

    def __init__(self) -> None:
        self.times: dict[str, float] = {}
        self._last = time.perf_counter()

    def note(self, what: str, less: Mapping[str, float] | None = None) -> None:
        """The time since the last note, parts of which may have been measured already."""
        parts = less or {}
        now = time.perf_counter()
        self.times[what] = now - self._last - sum(parts.values())
        self.times.update(parts)
        self._last = now


class Bound(Compiled):
    """An executable with its parameters fixed: a call checks and fills in the data alone, and what
    is made of parameters alone is kept. Nobody may write into them any more."""

    elements_stay: Final = True

    def __init__(self, executable: Executable, params: Sequence[Any]) -> None:
        if not isinstance(params, Sequence):
            raise UserError(f"bind takes a list of the parameters, not {type(params).__name__}")
        kinds, roles = executable.inputs, executable.signature.given
        places = [place for place, role in enumerate(roles) if role is Role.PARAM]
        if len(params) != len(places):
            raise UserError(f"bind takes the {len(places)} parameters but got {len(params)}")
        self.executable = executable
        self._inputs: list[Any] = [None] * len(roles)
        for place, value in zip(places, params, strict=True):
            self._inputs[place] = in_one_piece(check_array(place, value, kinds[place]))
        self._places = [place for place, role in enumerate(roles) if role is Role.DATA]
        self._data = ReadyInputs([kinds[place] for place in self._places])
        self._known: dict[Shapes, Cluster] = {}

    @property
    def params(self) -> tuple[Array, ...]:
        """The parameters, in order."""
        return tuple(array for array in self._inputs if array is not None)

    @told_outside
    def __call__(self, *data: Any, seed: int = 0) -> list[Array]:
        if len(data) != len(self._places):
            raise UserError(f"this takes {len(self._places)} data inputs but got {len(data)}")
        shapes = self._data.shapes(data)
        cluster = None if shapes is None else self._known.get(shapes)
        inputs: Sequence[Any] = self._with(data)
        if cluster is None:
            cluster, inputs = self.executable.prepare(inputs)
            if shapes is not None:
                if len(self._known) >= MOST_CLUSTERS:
                    self._known.clear()
                self._known[shapes] = cluster
        return self.executable.carry_out(cluster, inputs, seed, None, self)

    def _with(self, data: Sequence[Any]) -> list[Any]:
        inputs = list(self._inputs)
        for place, value in zip(self._places, data, strict=True):
            inputs[place] = value
        return inputs


@overload
def compile_program(
    program: Program,
    target: str | Target = ...,
    *,
    params: Iterable[int] = ...,
    state: Iterable[int] = ...,
    donate: Iterable[int] = ...,
    overrides: Mapping[str, str] | None = ...,
    opt_level: int = ...,
    shapes: None = ...,
) -> Executable: ...
@overload
def compile_program(
    program: Program,
    target: str | Target = ...,
    *,
    params: Iterable[int] = ...,
    state: Iterable[int] = ...,
    donate: Iterable[int] = ...,
    overrides: Mapping[str, str] | None = ...,
    opt_level: int = ...,
    shapes: ShapeSet,
) -> Executable | ShapedExecutable: ...
@told_outside
@options_told("weft.compile")
def compile_program(
    program: Program,
    target: str | Target = "cpu",
    *,
    params: Iterable[int] = (),
    state: Iterable[int] = (),
    donate: Iterable[int] = (),
    overrides: Mapping[str, str] | None = None,
    opt_level: int = DEFAULT_LEVEL,
    shapes: ShapeSet | None = None,
) -> Executable | ShapedExecutable:
    """Compile a program for a target. `params`, `state` and `donate` are positions of inputs.

    `opt_level` is how hard the compiler looks for what becomes one kernel: 2, or 3 for exactly.
    `overrides` maps a stage to its text: what is read instead of computed. A program with dynamic
    dims is compiled for each set of sizes it meets; `shapes` says which of them share a program.
    """
    check_program("compile", program)
    verify(program)
    chosen = target_named(target)
    signature = make_signature(program, params, state, donate)
    check_level(opt_level)
    if overrides and not (is_static(program) and _are_texts(overrides)):
        pipeline().check_overrides(overrides, chosen)
    if not isinstance(shapes, ShapeSet | None):
        raise UserError(f"shapes is a weft.ShapeSet, not {type(shapes).__name__}")
    if shapes is not None and not is_static(program):
        return ShapedExecutable(
            program,
            signature,
            shapes,
            partial(_of_cluster, chosen, signature, overrides or {}, opt_level),
        )
    made = Executable(program, chosen, signature, overrides or {}, opt_level)
    made.state = _new_state(made)
    if is_static(program):
        made._cluster([leaf.static_shape for leaf in made._leaves])
    return made


def _are_texts(overrides: object) -> bool:
    """Whether overrides can be looked up on disk: the stages they name are then known."""
    return isinstance(overrides, Mapping) and all(
        isinstance(text, str) for pair in overrides.items() for text in pair
    )


def _of_cluster(
    target: Target,
    signature: Signature,
    overrides: Mapping[str, str],
    opt_level: int,
    program: Program,
) -> Executable:
    """The executable of a program for one cluster: further inputs are the real sizes."""
    params = [at for at, role in enumerate(signature.roles) if role is Role.PARAM]
    return compile_program(
        program,
        target,
        params=params,
        donate=signature.donated,
        overrides=overrides,
        opt_level=opt_level,
    )


def _new_state(executable: Executable) -> list[Array]:
    """State starts as zeros."""
    found = []
    for kind, role in zip(executable._leaves, executable.signature.roles, strict=True):
        if role is Role.STATE:
            if not kind.is_static:
                raise UserError(f"a state of type {kind} has a dynamic dimension")
            limits.check_bytes(kind.bytes, f"a state of type {kind}", limits.current())
            found.append(linker_for(executable.target).new_state(kind))
    return found


class Explained(Protocol):
    """What keeps account of its compiles: an executable, or a function under `weft.jit`."""

    def explain(self) -> str: ...


@told_outside
def explain(compiled: Explained) -> str:
    """What was compiled, when, and why."""
    if not hasattr(compiled, "explain"):
        raise UserError(
            f"explain takes what weft.compile or weft.jit answered, not {type(compiled).__name__}",
            where=shown(user_line()),
        )
    return compiled.explain()
