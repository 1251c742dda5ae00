"""What the runtime is told of the kernels of a CPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import weft
from weft.driver.code import cpu_kernels
from weft.driver.compile import Executable
from weft.ptir import Builder
from weft.runtime.threads import WORTH_SHARING
from weft.target import cpu, known
from weft.target.known import target_named

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


def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with vectors of 8 numbers, whatever this one has."""
    host = cpu.host()
    limits = replace(host.limits, vector_bits=256)
    monkeypatch.setattr(known, "host", lambda: replace(host, limits=limits))


def _sine(size: int) -> Executable:
    b = Builder()
    return weft.compile(b.build(b.sin(b.param("f32", [size]))))


def test_maps_of_several_sizes_share_machine_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one vector, or several: the number of their pieces alone differs, and each keeps its
    name."""
    _wide(monkeypatch)
    monkeypatch.setenv("WEFT_CACHE", "off")
    weft.clear_caches()
    made = {size: _sine(size) for size in (8, 24, 64, 88)}
    built = [executable.clusters[()].built for executable in made.values()]
    assert [(one.compiled, one.reused) for one in built] == [(1, 0), (0, 1), (0, 1), (0, 1)]
    assert len({executable.artifact.kernels[0].symbol for executable in made.values()}) == 4
    for size, executable in made.items():
        x = np.linspace(-9, 9, size, dtype=np.float32)
        np.testing.assert_allclose(executable.run([x])[0], np.sin(x), rtol=1e-6, atol=1e-7)


def test_kernels_of_a_program_that_differ_in_name_are_compiled_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _wide(monkeypatch)
    monkeypatch.setenv("WEFT_CACHE", "off")
    weft.clear_caches()
    sources = {
        name: f"define void @{name}(ptr %a, ptr %e, i64 %first, i64 %last) {{\n  ret void\n}}\n"
        for name in ("k_0123456789abcdef", "k_fedcba9876543210")
    }
    made = cpu_kernels.compile_sources(cpu_kernels.LlvmCode(sources), target_named("cpu"))
    assert (made.compiled, made.reused) == (1, 0)
    for name, other in zip(sources, reversed(sources), strict=True):
        assert name.encode() in made.objects[name]
        assert other.encode() not in made.objects[name]
