"""How the pieces of a launch are handed out to threads."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from weft.runtime import native, threads
from weft.runtime.native_pool import SLEEPERS_AT, WORKERS_AT
from weft.runtime.threads import Call, shared_out

_KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


def wait_until(comes: Callable[[], bool]) -> None:
    ends = time.monotonic() + 60
    while not comes() and time.monotonic() < ends:
        time.sleep(0.001)


def launch(
    kernel: Callable[[int, int], None],
    pieces: int,
    grab: int,
    threads: int,
    asked: int | None = None,
    wakes: bool = True,
) -> None:
    """Carry out one launch whose kernel is a function of Python, for `asked` of the threads."""
    native_kernel = _KERNEL(lambda args, error, first, last: kernel(first, last))
    address = ctypes.cast(native_kernel, ctypes.c_void_p).value or 0
    steps = np.zeros(native.STEP_WORDS, np.int64)
    steps[:] = native.LAUNCH, address, 0, 0, pieces, grab, asked or threads, wakes
    state = np.zeros(native.STATE_WORDS, np.int64)
    call = Call(int(steps.ctypes.data), 1, int(state.ctypes.data), False)
    assert call.execute(threads) == 1


@pytest.mark.parametrize("threads", [2, 3, 7])
@pytest.mark.parametrize(("pieces", "grab"), [(2, 1), (5, 2), (64, 5), (1000, 35), (1001, 1)])
def test_every_piece_is_carried_out_once(pieces: int, grab: int, threads: int) -> None:
    seen: list[tuple[int, int]] = []
    launch(lambda first, last: seen.append((first, last)), pieces, grab, threads)
    assert sorted(piece for first, last in seen for piece in range(first, last)) == list(
        range(pieces)
    )


def test_a_thread_begins_with_its_own_share() -> None:
    for _ in range(2):
        ran: dict[int, int] = {}

        def kernel(first: int, last: int, ran: dict[int, int] = ran) -> None:
            ran[first] = threading.get_ident()
            time.sleep(0.03)

        launch(kernel, 8, 1, 2)
        assert ran[0] == ran[1] == threading.get_ident()
        assert ran[4] != ran[0], "the second half begins with the other thread"


def test_who_is_done_goes_on_with_the_share_of_another() -> None:
    """The caller's share is four slow pieces, and the other thread's four are over at once."""
    ran: dict[int, int] = {}

    def kernel(first: int, last: int) -> None:
        ran[first] = threading.get_ident()
        time.sleep(0.2 if first == 0 else 0.0)

    launch(kernel, 8, 1, 2)
    assert ran[3] != ran[0]


def test_a_worker_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool that counts a worker which no thread stands behind: the caller does its share."""
    memory = np.zeros(1 << 8, np.int64)
    start = int(memory.ctypes.data)
    memory[(-start % 128 + WORKERS_AT) // 8] = 1
    monkeypatch.setitem(threads._STATE.pools, 2, start + -start % 128)
    seen: list[int] = []
    launch(lambda first, last: seen.extend(range(first, last)), 8, 1, 2)
    assert sorted(seen) == list(range(8))


def test_workers_that_are_not_asked_for_do_nothing() -> None:
    """Launches for fewer and for more threads, in turn, have each piece done once."""
    for asked in (2, 5, 3, 5, 2):
        ran: dict[int, int] = {}

        def kernel(first: int, last: int, ran: dict[int, int] = ran) -> None:
            ran[first] = threading.get_ident()
            time.sleep(0.002)

        launch(kernel, 20, 1, 5, asked)
        assert sorted(ran) == list(range(20))
        assert len(set(ran.values())) <= asked


def test_threads_that_sleep_are_woken_where_that_pays() -> None:
    def kernel(first: int, last: int) -> None:
        ran.add(threading.get_ident())
        wait_until(lambda: not wakes or len(ran) == 9)

    for wakes in (False, True):
        ran: set[int] = set()
        launch(lambda first, last: None, 9, 1, 9)
        sleepers = ctypes.c_int64.from_address(threads._STATE.pools[9] + SLEEPERS_AT)
        wait_until(lambda asleep=sleepers: asleep.value == 8)  # type: ignore[misc]
        launch(kernel, 36, 1, 9, wakes=wakes)
        assert len(ran) == (9 if wakes else 1)


def test_counters_of_many_launches_and_grabs() -> None:
    counted = 0

    def kernel(first: int, last: int) -> None:
        nonlocal counted
        with lock:
            counted += last - first

    lock = threading.Lock()
    for pieces in (1 << 21, *range(2, 400, 3)):
        counted = 0
        launch(kernel, pieces, 1 if pieces < 400 else 1 << 12, 3)
        assert counted == pieces


def test_how_launches_are_shared_out() -> None:
    """Nobody comes for little work, few threads for a little more, and no more than pieces."""
    pieces = np.array([64, 64, 64, 64, 16, 1, 0, 4096])
    work = np.array([0, 3_999, 4_000, 1_000_000, 4_000, 10**9, 10**9, 10**9])
    grab, asked, wakes = shared_out(pieces, work, 16).T
    assert asked.tolist() == [1, 1, 10, 16, 10, 1, 1, 16]
    assert grab.tolist() == [64, 64, 6, 1, 1, 1, 1, 64]
    assert wakes.all()
    assert not shared_out(pieces[:3], work[:3], 16)[:, 2].any(), "not worth waking anybody"


@pytest.mark.parametrize(
    ("machine", "rest"), [("x86_64", "pause"), ("aarch64", "isb"), ("riscv64", "ret void")]
)
def test_waiting_threads_leave_the_core_to_others(machine: str, rest: str) -> None:
    assert rest in native.source(f"{machine}-unknown-linux-gnu").partition("void @rest() {")[2]
