"""How the pieces of a launch are handed out to threads."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from weft.runtime import native, threads
from weft.runtime.threads import Call

_KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


_WORKERS = 8
"""Where a pool says how many workers it has."""


def launch(kernel: Callable[[int, int], None], pieces: int, grab: int, threads: int) -> None:
    """Carry out one launch whose kernel is a function of Python."""
    native_kernel = _KERNEL(lambda args, error, first, last: kernel(first, last))
    address = ctypes.cast(native_kernel, ctypes.c_void_p).value or 0
    steps = np.zeros(native.STEP_WORDS, np.int64)
    steps[:6] = native.LAUNCH, address, 0, 0, pieces, grab
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
    launch(lambda first, last: None, 2, 1, 2)
    library = threads._STATE.library
    assert library is not None
    pool = library.new_pool(0)
    ctypes.c_int64.from_address(pool + _WORKERS).value = 1
    monkeypatch.setitem(threads._STATE.pools, 2, pool)
    seen: list[int] = []
    launch(lambda first, last: seen.extend(range(first, last)), 8, 1, 2)
    assert sorted(seen) == list(range(8))


@pytest.mark.parametrize(
    ("machine", "rest"), [("x86_64", "pause"), ("aarch64", "isb"), ("riscv64", "ret void")]
)
def test_waiting_threads_leave_the_core_to_others(machine: str, rest: str) -> None:
    assert rest in native.source(f"{machine}-unknown-linux-gnu").partition("void @rest() {")[2]
