"""The pool's workers: where they run is the scheduler's choice again after each kernel."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

import weft
from weft.ptir import Builder


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
    for _ in range(200):
        masks = {frozenset(os.sched_getaffinity(thread)) for thread in threads}
        if masks == {frozenset(os.sched_getaffinity(0))}:
            break
        time.sleep(0.01)
    assert masks == {frozenset(os.sched_getaffinity(0))}
