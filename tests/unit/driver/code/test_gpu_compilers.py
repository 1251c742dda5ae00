"""Many CUDA sources are compiled by several processes, with the same result as by one."""

from __future__ import annotations

import sys
import time
from typing import Any

import pytest

from weft.codegen.gpu.compile import compile_cuda
from weft.driver.code import gpu_kernels
from weft.driver.code.gpu_kernels import compile_all
from weft.foundation.errors import InternalError
from weft.foundation.pipes import receive
from weft.runtime import compilers


def sources(count: int) -> list[str]:
    return [
        f'extern "C" __global__ void k{n}(float* x) {{ x[threadIdx.x] *= {n}.0f; }}'
        for n in range(count)
    ]


def test_processes_compile_as_this_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """All but one of three processes are others, and what they answer is used."""
    taken: list[bytes] = []

    def counted(pipe: Any) -> bytes:
        taken.append(receive(pipe))
        return taken[-1]

    texts = sources(6)
    expected = compile_all(texts, "sm_90a", processes=1)
    monkeypatch.setattr(compilers, "receive", counted)
    # This process has nothing to do until the others are there.
    monkeypatch.setattr(gpu_kernels, "compile_cuda", _waiting_for(taken))
    made = compile_all(texts, "sm_90a", processes=3)
    assert taken
    assert [(c.code, c.report) for c in made] == [(c.code, c.report) for c in expected]


def _waiting_for(taken: list[bytes]) -> Any:
    def slowly(source: str, arch: str) -> Any:
        for _ in range(600):
            if taken:
                break
            time.sleep(0.1)
        return compile_cuda(source, arch)

    return slowly


def test_what_no_process_can_be_started_for_is_made_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilers, "_start_family", lambda module, count: None)
    made = compile_all(sources(3), "sm_90a", processes=3)
    assert [cubin.code[:4] for cubin in made] == [b"\x7fELF"] * 3


def test_a_wrong_source_is_told_as_ever() -> None:
    with pytest.raises(InternalError, match="generated CUDA does not compile"):
        compile_all([*sources(2), "nonsense"], "sm_90a", processes=2)


@pytest.mark.parametrize(
    ("count", "threads", "frozen", "expected"),
    [(31, 16, False, 1), (32, 64, False, 16), (48, 16, False, 16), (300, 64, False, 16),
     (300, 2, False, 1), (300, 8, False, 8), (300, 16, True, 1)],
)  # fmt: skip
def test_how_many_processes_pay(
    monkeypatch: pytest.MonkeyPatch, count: int, threads: int, frozen: bool, expected: int
) -> None:
    monkeypatch.setenv("WEFT_NUM_THREADS", str(threads))
    monkeypatch.setattr(sys, "frozen", frozen, raising=False)
    assert gpu_kernels.worth(count) == expected
