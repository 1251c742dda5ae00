"""On a GPU: kernels that start early beside kernels of many waves, which do not wait. Whatever the
order, results are those of one after the other. And the device has a clock of its own."""

from __future__ import annotations

import numpy as np
import pytest

from weft.driver.backends import TimedExecutable
from weft.driver.compile import compile_program
from weft.driver.cuda import CudaBackend
from weft.driver.execute import prepare
from weft.ptir import Builder, Program
from weft.runtime.cuda.driver import compute_capability

pytestmark = pytest.mark.skipif(
    compute_capability() != (9, 0), reason="early launches need an SM90 GPU"
)
ROWS = 1 << 18


def narrow_wide_narrow() -> Program:
    """Sums of columns in parts, a row of many waves, and kernels of one wave behind it."""
    b = Builder()
    x = b.param("f32", [ROWS, 64])
    total = b.reduce_sum(x, [0])
    y = b.reduce_sum(x * b.broadcast_to(total, x.shape), [1])
    z = y - b.broadcast_to(b.reduce_max(y, [0]), [ROWS])
    return b.build(total, z, b.reduce_sum(z * z, [0]))


def test_what_comes_later_sees_what_came_before() -> None:
    executable = compile_program(narrow_wide_narrow(), "sm90")
    code = executable._latest.compilation["gpu"]
    waits = [code.kernels[launch.symbol].waits for launch in code.launches.values()]
    # The first has none before it; of those behind it, one has many waves.
    assert waits.count(False) == 2
    assert waits[waits.index(False, 1) + 1]
    x = np.random.default_rng(0).standard_normal((ROWS, 64)).astype(np.float32)
    wide = x.astype(np.float64)
    y = (wide * wide.sum(0)).sum(1)
    want = [wide.sum(0), y - y.max(), ((y - y.max()) ** 2).sum()]
    first = executable(x)
    for got, expected in zip(first, want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())
    for _ in range(20):
        again = executable(x)
        assert [a.tobytes() for a in again] == [a.tobytes() for a in first]


def test_the_device_has_a_clock() -> None:
    backend = CudaBackend()
    executable = prepare(narrow_wide_narrow(), backend).executable
    assert isinstance(executable, TimedExecutable)
    seconds = executable.device_seconds([backend.store(np.ones((ROWS, 64), np.float32))])
    assert seconds is not None
    # 67 MB are read at least once, at no more than 5 TB/s, and not in a millisecond.
    assert 13e-6 < seconds < 1e-3
