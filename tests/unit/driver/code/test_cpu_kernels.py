"""What the runtime is told of the kernels of a CPU."""

from __future__ import annotations

import pytest

import weft
from weft.ptir import Builder
from weft.runtime.threads import WORTH_SHARING
from weft.target import cpu, known

_CACHES = (32 << 10, 1 << 20)


@pytest.mark.parametrize("cores", [2, 16, 128])
def test_what_one_thread_takes_does_not_depend_on_how_many_there_are(
    cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A product of a step of a recurrence, which sixteen cores are done with in five microseconds:
    it is worth sharing all the more."""
    machine = cpu.describe("x86_64", frozenset({"avx2", "fma"}), cores, _CACHES)
    monkeypatch.setattr(known, "host", lambda: machine)
    b = Builder()
    x, w = b.param("f32", [32, 256]), b.param("f32", [256, 768])
    (kernel,) = weft.compile(b.build(b.matmul(x, w))).artifact.kernels
    assert 5 * WORTH_SHARING < kernel.work < 50 * WORTH_SHARING
    assert kernel.work_items > 1
