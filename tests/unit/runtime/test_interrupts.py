"""Ctrl-C during a run: it ends between two steps or in the midst of a long kernel, and what is
compiled stays good."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import warnings
from typing import Any

import numpy as np
import pytest

from tests.support.cases import one_in
from weft.codegen.cpu import long_routines
from weft.driver.compile import Executable, compile_program
from weft.foundation.errors import WeftWarning
from weft.ptir import Builder, Program
from weft.runtime import native
from weft.runtime import threads as native_threads

TURNS = 900_000
"""Runs of so many take tens of milliseconds, and hardly a moment passes between them."""
INTERRUPTED = """
import os, signal, threading
import numpy as np
import weft
from weft.ptir import Builder

signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore it for background jobs
b = Builder()
x = b.param("f32", [])
executable = weft.compile(b.build(b.while_(lambda r, y: (y > 0.0, y), lambda r, y: y * 1.0, x)))
assert executable(np.float32(-1))[0] == -1
try:
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    executable(np.float32(1))
except KeyboardInterrupt:
    print("interrupted", executable(np.float32(-2))[0])
"""


def test_a_loop_without_end_can_be_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_MAX_LOOP_STEPS", str(10**15))
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("interrupted -2.0\n", "")


LONG_KERNEL = """
import os, signal, threading, time, warnings
import weft
from weft.runtime import threads

signal.signal(signal.SIGINT, signal.default_int_handler)
warnings.simplefilter("ignore")
begun, interrupted = threading.Event(), []
plain = threads._library().run


def run(call):
    begun.set()
    return plain(call)


threads._library().run = run


def interrupt():
    begun.wait()
    time.sleep(0.3)
    interrupted.append(time.monotonic())
    os.kill(os.getpid(), signal.SIGINT)


threading.Thread(target=interrupt, daemon=True).start()
try:
    weft.ones((1 << 20, 1 << 20)).sum().item()
except KeyboardInterrupt:
    late = time.monotonic() - interrupted[0]
    print("interrupted", late < 30, weft.ones((3, 3)).sum().item())
"""


@pytest.mark.parametrize("threads", ["1", "2"])
def test_a_long_kernel_can_be_interrupted(threads: str) -> None:
    """It would take minutes, or hours. How soon it ends depends on the machine's other work."""
    done = subprocess.run(
        [sys.executable, "-c", LONG_KERNEL],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "WEFT_BACKEND": "cpu", "WEFT_NUM_THREADS": threads},
    )
    assert (done.stdout, done.stderr) == ("interrupted True 9.0\n", "")


def test_short_routines_look_nowhere_and_long_ones_seldom() -> None:
    def sources(size: int) -> str:
        b = Builder()
        x = b.param("f32", [size])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return compile_program(b.build(b.reduce_sum(x * x, [0]))).stages["llvm"]

    assert long_routines.STOP_WORD == native.STOP_WORD
    assert "halt" not in sources(1 << 20)
    assert "label %halt" in sources(1 << 31)


def test_work_beyond_a_limit_is_told_before_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    b = Builder("long")
    x = b.param("f32", [1 << 10, 1])
    product = b.build(b.reduce_sum(b.broadcast_to(x, [1 << 10, 1 << 33]), [0, 1]))
    with pytest.warns(WeftWarning, match=r"one run of @long takes about [\d,]+ seconds by the"):
        compile_program(product, "cpu")
    monkeypatch.setenv("WEFT_WARN_SECONDS", str(10**9))
    compile_program(product, "cpu")


def counting() -> Program:
    """Adds 1 so often, and to a table beside it."""
    b = Builder()
    n, table = b.param("f32", []), b.param("f32", [3])

    def body(r: Any, n: Any, table: Any) -> Any:
        return n + 1.0, table + 1.0

    return b.build(*b.while_(lambda r, n, t: (n < float(TURNS), n, t), body, n, table))


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Where each native call from now on begins."""
    positions = list[int]()
    plain = native_threads.Call.execute

    def execute(call: native_threads.Call, threads: int, first: int = 0, turns: int = -1) -> int:
        positions.append(first)
        return plain(call, threads, first, turns)

    monkeypatch.setattr(native_threads.Call, "execute", execute)
    return positions


def run_for_seconds(executable: Executable, inputs: list[Any]) -> int:
    """Run long enough for the clock to show another second during several runs; how often it
    ran."""
    started, runs = time.monotonic(), 0
    while time.monotonic() - started < 3:
        assert executable.run(inputs)[0] == TURNS
        runs += 1
    return runs


def test_a_run_that_pauses_goes_on_where_it_was(begun: list[int]) -> None:
    executable = compile_program(counting(), "cpu")
    runs = run_for_seconds(executable, [np.float32(0), np.zeros(3, np.float32)])
    assert begun.count(0) >= runs
    assert any(begun)


@pytest.mark.parametrize("roles", one_in(2, [{"state": [1]}, {"donate": [1]}]), ids=str)
def test_what_is_updated_in_place_is_updated_whole(roles: Any, begun: list[int]) -> None:
    executable = compile_program(counting(), "cpu", **roles)
    tables = [] if "state" in roles else [np.zeros(3, np.float32)]
    runs = run_for_seconds(executable, [np.float32(0), *tables])
    assert begun == [0] * runs
