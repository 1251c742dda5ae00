"""Forks of a process with threads: what another thread is in the midst of does not hang the
child."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from weft.foundation.forks import new_lock, new_reentrant_lock, no_fork

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs forks")
FORKED = """
import importlib.abc, os, signal, sys, threading, warnings
import weft

warnings.simplefilter("ignore")  # newer Pythons warn of forks of processes with threads
reached = threading.Event()


class Slow(importlib.abc.MetaPathFinder):
    "Loading this module takes a while, with the locks of all modules that are loading it."

    def find_spec(self, name, path, target=None):
        if name == sys.argv[1]:
            reached.set()
            threading.Event().wait(0.5)
        return None


def work():
    return float((weft.asarray([1.0, 2.0, 3.0]) * 3).sum())


sys.meta_path.insert(0, Slow())
thread = threading.Thread(target=work)
thread.start()
assert reached.wait(120)
child = os.fork()
if child == 0:
    signal.alarm(120)  # ends a child that hangs
    os._exit(0 if work() == 18 else 1)
_, status = os.waitpid(child, 0)
thread.join()
print(status, work())
"""


@pytest.mark.parametrize("module", ["weft.driver.compile", "weft.region.from_poly_view"])
def test_a_fork_while_another_thread_compiles_for_the_first_time(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED, module],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "WEFT_BACKEND": "cpu", "WEFT_CACHE": "off"},
    )
    assert (done.stdout, done.stderr) == ("0 18.0\n", "")


def forked(work: object) -> int:
    """The status of a child that does something, within a time."""
    child = os.fork()
    if child == 0:
        threading.Timer(60, os._exit, (9,)).start()
        os._exit(0 if callable(work) and work() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("make", [new_lock, new_reentrant_lock])
def test_locks_are_nobodys_in_a_child(make: object) -> None:
    assert callable(make)
    lock, held, done = make(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    assert forked(lambda: lock.acquire(timeout=30)) == 0
    done.set()
    thread.join()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_waits_for_others_and_not_for_itself() -> None:
    inside, leave, left = threading.Event(), threading.Event(), list[str]()

    def work() -> None:
        with no_fork:
            inside.set()
            leave.wait(60)
            left.append("left")

    thread = threading.Thread(target=work)
    thread.start()
    inside.wait(60)
    threading.Timer(0.2, leave.set).start()
    with no_fork, no_fork:
        assert forked(lambda: left == ["left"] and _enters()) == 0
    thread.join()


def _enters() -> bool:
    with no_fork:
        return True
