"""The pool's workers: where they run is the scheduler's choice again after each kernel."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

import weft
from weft.ptir import Builder


def masks(threads: Iterable[int]) -> set[frozenset[int]]:
    """Where these threads may run, those that still do."""
    found = set()
    for thread in threads:
        with contextlib.suppress(ProcessLookupError):
            found.add(frozenset(os.sched_getaffinity(thread)))
    return found


@pytest.mark.usefixtures("small_machine")  # a large one would not share so small a product
@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs Linux's affinity masks")
def test_workers_may_run_where_the_process_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_NUM_THREADS", "3")
    b = Builder()
    x = b.param("f32", [256, 256])
    product = weft.compile(b.build(b.matmul(x, x)))
    value = np.eye(256, dtype=np.float32)
    before = len(list(Path("/proc/self/task").iterdir()))
    for _ in range(5):
        time.sleep(0.02)
        np.testing.assert_array_equal(product(value)[0], value)
    threads = [int(task.name) for task in Path("/proc/self/task").iterdir()]
    assert len(threads) >= max(before, 3)
    ends = time.monotonic() + 60
    while masks(threads) != masks([0]) and time.monotonic() < ends:
        time.sleep(0.01)
    assert masks(threads) == masks([0])
