"""`weft.tune`: the plans of a program's kernels measured here, or by the workers of a farm.

A farm is any executor of `concurrent.futures`: a pool of processes, `mpi4py.futures`, Dask's
`client.get_executor()`. A task is one kernel with all its plans, so that times that are compared
come from one machine; it goes and comes as JSON. Workers on one machine measure in turn. What a
worker could not measure, because it was killed or is another kind of machine, is measured here.
"""

from __future__ import annotations

import importlib
import json
import platform
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, as_completed
from dataclasses import astuple
from typing import Any

from weft.driver.programs.program_cache import tuned_key
from weft.driver.signature import make_signature
from weft.driver.stages.compilation import DEFAULT_LEVEL, Compilation, check_level
from weft.driver.stages.opaque import decode_op, encode_op
from weft.driver.tuning.measure import Measurement
from weft.driver.tuning.single_kernel import module_of
from weft.driver.tuning.tune import KernelClass, Races, Taken, Tuning, raced, tune
from weft.foundation.calls import told_outside
from weft.foundation.errors import UserError, a_type, brief
from weft.plan.text import plan_from_json, plan_to_json
from weft.ptir.ir import Program
from weft.ptir.specialise import is_static
from weft.ptir.verify import verify
from weft.region import text as region_text
from weft.runtime.device_lock import in_turn
from weft.target.known import target_named
from weft.target.target import Target


@told_outside
def tune_program(
    program: Program,
    target: str | Target = "cpu",
    *,
    executor: Executor | None = None,
    again: bool = False,
    opt_level: int = DEFAULT_LEVEL,
) -> Tuning:
    """Measure 10 to 20 plans for each kernel of a program that differs, and keep the best ones for
    every compile from then on. The workers of an executor measure, each a kernel at a time, and
    must be machines like this one; without one this process does. What was tuned before is measured
    `again` only if that is said."""
    if executor is not None and not isinstance(executor, Executor):
        raise UserError(f"executor is one of concurrent.futures, not {a_type(executor)}")
    verify(program)
    if not is_static(program):
        raise UserError("a program with dynamic dims has no kernels to measure; give its sizes")
    check_level(opt_level)
    chosen = target_named(target)
    compilation = Compilation(program, chosen, make_signature(program), opt_level=opt_level)
    return tune_on(compilation, executor, again=again)


def tune_on(
    compilation: Compilation, executor: Executor | None, *, again: bool = False, **seen: Any
) -> Tuning:
    """Tune a program with the workers of an executor, or without any."""
    notes: list[str] = []
    races = None if executor is None else _workers(executor, notes)
    made = tune(compilation, again=lambda kernels: again, races=races, **seen)
    made.notes += notes
    return made


def dask_executor(address: str) -> Executor:
    """The executor of a Dask scheduler at an address such as tcp://host:8786."""
    try:
        distributed = importlib.import_module("distributed")
    except ModuleNotFoundError:
        raise UserError("a farm is a Dask scheduler: install the package distributed") from None
    try:
        found: Executor = distributed.Client(address, timeout=10).get_executor(retries=2)
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"there is no farm at {brief(address)}: {error}") from None
    return found


# -- who asks ------------------------------------------------------------------------------------


def _workers(executor: Executor, notes: list[str]) -> Races:
    def races(
        classes: Sequence[KernelClass], target: Target
    ) -> Iterator[tuple[KernelClass, Iterable[Taken]]]:
        asked: dict[Future[str], KernelClass] = {}
        left: list[KernelClass] = []
        try:
            for kernels in classes:
                try:
                    asked[executor.submit(measured_by_worker, _task(kernels, target))] = kernels
                except RuntimeError as error:
                    left.append(kernels)
                    notes.append(_say_worker_failed(kernels, error))
            for future in as_completed(asked):
                found = _answer(future, asked[future], notes)
                if found is None:
                    left.append(asked[future])
                else:
                    yield asked[future], found
        finally:
            for future in asked:
                future.cancel()
        for kernels in left:
            yield kernels, raced(kernels.kernel, kernels.module, kernels.plans, target)

    return races


def _answer(future: Future[str], kernels: KernelClass, notes: list[str]) -> list[Taken] | None:
    """What a worker measured; None where it did not."""
    try:
        found = json.loads(future.result())
        if "refused" not in found:
            lines = found["measured"]
            return [(place, None if m is None else Measurement(*m)) for place, m in lines]
        notes.append(f"{kernels.kernel.name} is measured here: {found['refused']}")
    except Exception as error:  # whatever happened to the worker, the kernel is not lost
        notes.append(_say_worker_failed(kernels, error))
    return None


def _say_worker_failed(kernels: KernelClass, error: Exception) -> str:
    why = f"{type(error).__name__}: {error}".splitlines()[0]
    return f"{kernels.kernel.name} is measured here: its worker failed, {why}"


def _task(kernels: KernelClass, target: Target) -> str:
    module = region_text.dumps(module_of(kernels.kernel, kernels.module), encode_op)
    plans = [plan_to_json(plan) for plan in kernels.plans]
    task = {"target": target.name, "key": tuned_key(target), "region": module, "plans": plans}
    return json.dumps(task)


# -- who measures --------------------------------------------------------------------------------


def measured_by_worker(task: str) -> str:
    """What a worker does: the plans of one kernel, measured while no other worker of this machine
    measures."""
    asked = json.loads(task)
    target = target_named(asked["target"])
    if tuned_key(target) != asked["key"]:
        return json.dumps({"refused": f"{platform.node()} is another kind of machine"})
    module = region_text.loads(asked["region"], decode_op)
    (kernel,) = module.kernels
    plans = [plan_from_json(plan) for plan in asked["plans"]]
    with in_turn(target.kind.value):
        taken = raced(kernel, module, plans, target)
        found = [(place, None if line is None else astuple(line)) for place, line in taken]
    return json.dumps({"measured": found})
