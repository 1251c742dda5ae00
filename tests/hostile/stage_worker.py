"""A process with little memory that compiles and runs edited stage dumps, and the call that starts
one.

    outcomes = judged(["mlp cpu plan 17", "mlp cpu plan 0.5"])

Each case (program, target, stage, which edit: a number, or how far down the list) is a line on
stdin, each outcome a line of JSON on stdout. What takes too long, by the clock of
the processor, is a crash; so is a result that is not what the edited stage means.

An edit of a stage up to the kernels changes what is computed: the result must be what playing back
the kernels gives. A buffer map and a plan only say how: the result must be the program's. Loop
nests that verify run; what they mean is in their own hands.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import numpy as np

from examples import make_programs
from tests.hostile.stage_edits import Edit, edits
from tests.hostile.worker import answered
from tests.support.example_inputs import inputs_for
from weft.driver.compile import largest_buffer
from weft.driver.execute import run
from weft.driver.pipeline import run_pipeline, stages_for
from weft.driver.signature import make_signature
from weft.driver.stages.compilation import Compilation
from weft.driver.stages.generators import generator_for
from weft.driver.stages.opaque import run_opaque
from weft.foundation import limits
from weft.foundation.errors import InternalError, SpecViolation, WeftError, WeftWarning
from weft.ptir import Program
from weft.ptir.specialise import check_memory
from weft.region.interp import run_module
from weft.target.known import target_named
from weft.target.target import Kind

MEMORY = 3 << 30
SECONDS = 20.0
PROGRAMS: dict[str, Callable[[], Program]] = {
    "mlp": lambda: make_programs.mlp(batch=8, width=16, hidden=32, out=16),
    "mlp_bf16": lambda: make_programs.mlp(batch=128, width=64, hidden=128, out=128, dtype="bf16"),
    "softmax_layernorm": lambda: make_programs.softmax_layernorm(rows=6, columns=20),
    "attention": lambda: make_programs.attention(sequence=4, cache=8, depth=4),
}
"""The example programs, small."""


@dataclass(frozen=True)
class Outcome:
    """What became of one edit: "ok", the code of the violation, the name of another error that Weft
    raises on purpose, or CRASH."""

    case: str
    edit: str
    verdict: str
    said: str
    seconds: float


def judged(cases: Sequence[str]) -> list[Outcome]:
    """The outcomes of cases. A process that dies is a crash of the case it was at; another one goes
    on after it."""
    found: list[Outcome] = []
    while len(found) < len(cases):
        done = answered("tests.hostile.stage_worker", cases[len(found) :], {"WEFT_CACHE": "off"})
        found += [Outcome(**json.loads(line)) for line in done.stdout.splitlines()]
        if done.returncode and len(found) < len(cases):
            why = f"the process ended with {done.returncode}: {done.stderr[-500:]}"
            found.append(Outcome(cases[len(found)], "", "CRASH", why, 0.0))
    return found


# -- inside the process ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Base:
    """A program through all stages, and what it computes."""

    program: Program
    compilation: Compilation
    inputs: list[Any]
    results: list[Any]


@cache
def base(name: str, target: str) -> Base:
    program = PROGRAMS[name]()
    compilation = Compilation(program, target_named(target), make_signature(program))
    run_pipeline(compilation)
    inputs = inputs_for(program)
    return Base(program, compilation, inputs, run(program, inputs, backend="reference"))


@cache
def edits_of(name: str, target: str, stage: str) -> list[Edit]:
    return edits(base(name, target).compilation.text(stage))


def stages_that_read_back(target: str) -> list[str]:
    """LLVM IR and CUDA are left out: they are machine code in another spelling, and what they do is
    in the hands of whoever wrote them."""
    stages = stages_for(target_named(target))
    return [stage.name for stage in stages if stage.parse and stage.name not in ("llvm", "cu")]


def attempt(name: str, target: str, stage: str, edited: str) -> None:
    """Compile with an edited stage, run where there is a machine for it, and compare."""
    whole = base(name, target)
    made = Compilation(
        whole.program, whole.compilation.target, whole.compilation.signature, {stage: edited}
    )
    order = list(whole.compilation.values)
    for earlier in order[: order.index(stage)]:
        made.values[earlier] = whole.compilation.values[earlier]
    run_pipeline(made)
    if edited.startswith("{"):
        read, dumped = json.loads(edited), json.loads(made.text(stage))
        if not _has_dead_ops(read, dumped):
            _taken_in(_without_broadcasts(read), _without_broadcasts(dumped), stage)
    if made.target.kind is not Kind.CPU:
        return
    built = generator_for(made.target).build(made, made.signature, [])
    check_memory(largest_buffer(built.artifact), whole.program, limits.current())
    results = built.program.run([np.array(x) for x in whole.inputs], 0, 1)
    if stage in ("memory", "plan"):
        _same(results, whole.results, stage)
    elif stage != "cpu" and not _is_noise(made, whole.inputs):
        _same(results, played_back(made, whole.inputs), stage)


def played_back(made: Compilation, inputs: Sequence[Any]) -> list[Any]:
    """What the kernels of a compilation mean."""
    module = made["region"]
    given = dict(zip(module.inputs, inputs, strict=True)) | made["tiny"].constants
    found = run_module(module, given, opaque=run_opaque)
    return [found[name] for name in module.outputs]


def _is_noise(made: Compilation, inputs: Sequence[Any]) -> bool:
    """Whether an edit made results of rounding errors: where floats change in their last digits,
    they change by more than results are compared to."""
    source = np.random.default_rng(0)
    moved = [
        (x * (1 + source.uniform(-1e-6, 1e-6, np.shape(x)))).astype(x.dtype)
        if np.issubdtype(x.dtype, np.floating)
        else x
        for x in inputs
    ]
    try:
        _same(played_back(made, moved), played_back(made, inputs), "")
    except AssertionError:
        return True
    return False


def _has_dead_ops(read: Any, dumped: Any) -> bool:
    """Whether a graph says more than what its outputs are made of, or the same twice."""
    if "ops" not in read:
        return False
    made, waiting, found = _named(read), list(read["outputs"].values()), set[str]()
    while waiting:
        name = waiting.pop()
        if name not in found and name in made:
            found.add(name)
            waiting += made[name].get("inputs", [])
    return made.keys() != found or not found <= _named(dumped).keys()


def _named(graph: Any) -> dict[str, Any]:
    """Ops by the names of their values."""
    return {name: op for op in graph["ops"] for name in op.get("outputs") or [op["name"]]}


def _without_broadcasts(document: Any) -> Any:
    """A graph whose elementwise ops take what is broadcast for them, ops in the order of their
    names: reading puts in broadcasts that a file leaves out. Other stages as they are."""
    if "ops" not in document:
        return document
    made = _named(document)

    def source(name: Any) -> Any:
        while made.get(name, {}).get("kind") in ("reshape", "expand"):
            (name,) = made[name]["inputs"]
        return name

    found = {
        name: op | {"inputs": [source(x) for x in op["inputs"]]} if op["op"] == "Binary" else op
        for name, op in made.items()
    }
    return document | {"ops": [found[name] for name in sorted(found)]}


def _taken_in(edited: Any, dumped: Any, place: str) -> None:
    """What an accepted dump says is in the stage: fields may be left out, but none is ignored. A
    list of a plan that is empty is left to the template (`weft.plan.completion`)."""
    if edited == [] and place.startswith("plan."):
        return
    if isinstance(edited, dict) and isinstance(dumped, dict):
        for key, value in edited.items():
            if key not in dumped and value:
                raise AssertionError(f"{place}.{key} was accepted and ignored")
            _taken_in(value, dumped.get(key, value), f"{place}.{key}")
    elif isinstance(edited, list) and isinstance(dumped, list) and len(edited) == len(dumped):
        for number, (value, other) in enumerate(zip(edited, dumped, strict=True)):
            _taken_in(value, other, f"{place}.{number}")
    elif edited not in ("", dumped) and str(edited) != str(dumped):
        raise AssertionError(f"{place} = {edited!r} was accepted as {dumped!r}"[:300])


def _same(results: Sequence[Any], wanted: Sequence[Any], stage: str) -> None:
    for number, (out, want) in enumerate(zip(results, wanted, strict=True)):
        a, b = np.asarray(out, np.float64), np.asarray(want, np.float64).reshape(np.shape(out))
        size = np.max(np.abs(b[np.isfinite(b)]), initial=1.0)
        off = np.asarray(~(np.abs(a - b) <= 1e-4 * size))
        if (off & ~(a == b) & ~(np.isnan(a) & np.isnan(b))).any():
            raise AssertionError(f"result {number} is not what the edited {stage} says")


def outcome(case: str) -> Outcome:
    """The judgement of one edit."""
    name, target, stage, number = case.split()
    every = edits_of(name, target, stage)
    edit = every[int(float(number) * len(every)) if "." in number else int(number)]
    started, said = time.process_time(), ""
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        attempt(name, target, stage, edit.text())
        verdict = "ok"
    except InternalError as error:
        verdict, said = "CRASH", _trace(error)
    except WeftError as error:
        said = str(error)[:300]
        verdict = error.code if isinstance(error, SpecViolation) else type(error).__name__
    except Exception as error:
        verdict, said = "CRASH", _trace(error)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return Outcome(case, edit.what, verdict, said, time.process_time() - started)


def _trace(error: Exception) -> str:
    return "".join(traceback.format_exception(error, limit=-3))[-1_500:]


def _too_long(*_: Any) -> None:
    raise TimeoutError(f"it takes more than {SECONDS} s")


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGPROF, _too_long)
    warnings.simplefilter("ignore", WeftWarning)
    for case in sys.stdin.read().splitlines():
        print(json.dumps(asdict(outcome(case))), flush=True)


if __name__ == "__main__":
    main()
