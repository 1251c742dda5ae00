"""Cases shared among processes, each with a backend of its own.

A case that ends its process, or takes too long, fails; the others go on in a new process. So does
what comes after an error of a driver: the device may be lost to the process that met it.
"""

from __future__ import annotations

import json
import multiprocessing
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Final

from weft.driver.backends import Backend, get_backend
from weft.foundation.errors import BackendUnavailable
from weft.testing.conformance.case import Case
from weft.testing.conformance.records import decode, encode_result
from weft.testing.conformance.run import (
    Outcome,
    Result,
    blank_result,
    prepare_case,
    run_case,
)
from weft.testing.conformance.table import all_cases

PATIENCE: Final = 180.0
"""Seconds after which a case is given up."""
_SPAWN: Final = multiprocessing.get_context("spawn")
_LOST: Final = "DriverError was raised"
_UNAVAILABLE: Final = "unavailable"
"""What a worker says in place of a result: why its backend cannot work on this machine."""


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    case: Case
    started: float


def run_shared(
    cases: Sequence[Case],
    backend: str,
    jobs: int,
    seconds: float | None = None,
    prepare: str | None = None,
) -> Iterator[Result]:
    """The results of the cases, as they come; after `seconds` no further case is begun. With
    `prepare` the cases are only compiled, for that target."""
    todo, busy = deque(cases), list[_Worker]()
    end = None if seconds is None else time.monotonic() + seconds
    try:
        while todo or busy:
            if end is not None and time.monotonic() > end:
                todo.clear()
            while todo and len(busy) < jobs:
                busy.append(_start_worker(todo.popleft(), backend, prepare))
            ready = set(wait([worker.pipe for worker in busy], timeout=1.0))
            for worker in list(busy):
                if worker.pipe in ready or time.monotonic() - worker.started > PATIENCE:
                    result = _worker_result(worker)
                    busy.remove(worker)
                    if worker.process.is_alive() and todo and _is_sound(result):
                        busy.append(_hand_case(worker, todo.popleft()))
                    else:
                        _stop(worker)
                    yield result
    finally:
        for worker in busy:
            _stop(worker)


def _start_worker(case: Case, backend: str, prepare: str | None) -> _Worker:
    ours, theirs = _SPAWN.Pipe()
    process = _SPAWN.Process(target=_serve, args=(theirs, backend, prepare), daemon=True)
    process.start()
    theirs.close()
    return _hand_case(_Worker(process, ours, case, 0.0), case)


def _hand_case(worker: _Worker, case: Case) -> _Worker:
    worker.pipe.send_bytes(case.id.encode())
    return replace(worker, case=case, started=time.monotonic())


def _worker_result(worker: _Worker) -> Result:
    """What a worker has to say of its case, or what its silence means."""
    blank = replace(blank_result(worker.case), outcome=Outcome.FAIL)
    if not worker.pipe.poll():
        worker.process.kill()
        return replace(blank, reason=f"it took more than {PATIENCE:.0f} seconds")
    try:
        told = json.loads(worker.pipe.recv_bytes())
    except (EOFError, OSError):
        worker.process.join()
        return replace(blank, reason=f"its process ended with code {worker.process.exitcode}")
    if _UNAVAILABLE in told:
        raise BackendUnavailable(told[_UNAVAILABLE])
    return decode(told)


def _is_sound(result: Result) -> bool:
    return _LOST not in result.reason


def _stop(worker: _Worker) -> None:
    worker.pipe.close()
    worker.process.join(timeout=5)
    if worker.process.is_alive():
        worker.process.kill()


def _serve(pipe: Connection, backend: str, prepare: str | None) -> None:
    """A worker: a case by its id, its result, and so on until nobody asks any more."""
    cases = {case.id: case for case in all_cases()}
    chosen = get_backend(backend)
    while True:
        try:
            case = cases[pipe.recv_bytes().decode()]
        except (EOFError, OSError):
            return
        told = json.dumps(_run_and_tell(case, chosen, prepare), ensure_ascii=False)
        # Whoever asked may be gone by now.
        with suppress(OSError):
            pipe.send_bytes(told.encode())


def _run_and_tell(case: Case, backend: Backend, prepare: str | None) -> dict[str, Any]:
    try:
        return encode_result(
            prepare_case(case, backend, prepare) if prepare else run_case(case, backend)
        )
    except BackendUnavailable as error:
        return {_UNAVAILABLE: str(error)}
