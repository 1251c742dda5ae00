"""What to watch, and for how long.

    with weft.trace(weft.TraceConfig(dump_programs="dumps", profile_backend=True)):
        ...
    with weft.profile("trace.json"):
        ...

WEFT_TRACE=DIR watches a whole process: programs are dumped and profiled into DIR.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from weft.foundation.calls import told, told_methods
from weft.foundation.errors import UserError, brief
from weft.foundation.files import check_writable
from weft.ops.graph.hooks import WATCH
from weft.ops.trace.profile import Profile
from weft.ops.trace.tracer import ProgramTracer

T = TypeVar("T")


@told_methods
@dataclass(frozen=True)
class TraceConfig:
    """What a trace writes and prints."""

    dump_programs: str | os.PathLike[str] | None = None
    """A folder for programs, executions, passes and profiles; made where it is missing."""
    profile_backend: bool = False
    """Time every instruction (or kernel, on backends that have kernels)."""
    debug_tensors: bool = False
    """Look at every tensor of every program: range, mean, NaN, and where the first NaN is made. The
    reports go to stderr, and are the tracer's `reports`."""


@told
def trace(config: TraceConfig | None = None) -> AbstractContextManager[ProgramTracer]:
    """Watch everything that is compiled or run inside the `with` block, in every thread."""
    chosen = TraceConfig(profile_backend=True) if config is None else config
    first = [_tracer(chosen)]
    return _Again(lambda: _watch_programs(first.pop() if first else _tracer(chosen)))


@told
def profile(
    trace: str | os.PathLike[str] | None = None, *, show: bool = True
) -> AbstractContextManager[Profile]:
    """Time everything that runs inside the `with` block, kernel by kernel, and print where the time
    went: op, line and layer of every kernel, the most expensive first.

    `trace` is a file for Perfetto or chrome://tracing. `as p` has the numbers: `p.table("line")`,
    `p.spans`. With `show` off nothing is printed. What this gives can be used again: every block
    has numbers of its own, and the file is that of the last. What runs in a block inside another
    one counts in both. A block that an exception leaves tells what ran until then.
    """
    path = None if trace is None else Path(trace)
    if path is not None:
        check_writable(path)
    return _Again(lambda: _profile_calls(path, show))


class _Again(AbstractContextManager[T]):
    """A context that can be entered again, each time anew."""

    def __init__(self, begin: Callable[[], AbstractContextManager[T]]) -> None:
        self._begin = begin
        self._open: list[AbstractContextManager[T]] = []

    def __enter__(self) -> T:
        made = self._begin()
        found = made.__enter__()
        self._open.append(made)
        return found

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        return self._open.pop().__exit__(kind, error, trace)


@contextmanager
def _profile_calls(path: Path | None, show: bool) -> Iterator[Profile]:
    tracer = ProgramTracer(None, True, False)
    assert tracer.profile is not None
    try:
        with _watch_programs(tracer):
            yield tracer.profile
    finally:
        # What ran before an exception is told too, which is what somebody may look for.
        if show:
            print(tracer.profile)
        if path is not None:
            tracer.profile.save(path)
            tracer.note_profile(path)


@contextmanager
def _watch_programs(tracer: ProgramTracer) -> Iterator[ProgramTracer]:
    before, WATCH.tracer = WATCH.tracer, tracer
    try:
        yield tracer
    finally:
        WATCH.tracer = before
        outer = before.profile if isinstance(before, ProgramTracer) else None
        if outer is not None and tracer.profile is not None:
            outer.take_over(tracer.profile)
        tracer.close()


def _tracer(config: TraceConfig) -> ProgramTracer:
    if not isinstance(config, TraceConfig):
        raise UserError(
            f"[trace] a weft.TraceConfig is wanted, not {brief(config)}; a folder for programs is "
            "weft.TraceConfig(dump_programs=folder)"
        )
    folder = None if config.dump_programs is None else Path(config.dump_programs)
    return ProgramTracer(folder, config.profile_backend, config.debug_tensors)


def watch_process() -> None:
    """Obey WEFT_TRACE."""
    folder = os.environ.get("WEFT_TRACE")
    if folder and WATCH.tracer is None:
        tracer = _tracer(TraceConfig(dump_programs=folder, profile_backend=True))
        WATCH.tracer = tracer
        atexit.register(tracer.close)
