"""Branches and loops on a GPU, within graphs: no byte is read back to decide anything."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import weft
from tests.support import turning_programs as programs
from weft.driver.cuda import CudaBackend, CudaExecutable
from weft.driver.execute import prepare
from weft.foundation.errors import ExecutionError, SpecViolation
from weft.runtime.cuda import steps
from weft.runtime.cuda.driver import compute_capability
from weft.runtime.cuda.gpu import open_gpu

pytestmark = pytest.mark.skipif(
    compute_capability() is None, reason="branches and loops of graphs need a GPU"
)
BACKEND = CudaBackend()


@pytest.fixture
def unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: object) -> bool:
        raise AssertionError("the host was asked")

    monkeypatch.setattr(steps.Walk, "_holds", asked)


@pytest.mark.usefixtures("unasked")
@pytest.mark.parametrize("count", [0, 1, 3, programs.TURNS])
@pytest.mark.parametrize("name", programs.CASES)
def test_the_host_is_not_asked(name: str, count: int) -> None:
    prepared = prepare(programs.CASES[name](), BACKEND)
    assert isinstance(prepared.executable, CudaExecutable)
    given = programs.inputs(prepared.program, count)
    want = weft.run(prepared.program, given, backend="reference", seed=3)
    for _ in range(6):
        got = prepared.execute([BACKEND.store(array) for array in given], seed=3)
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a.numpy(), b, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("unasked")
def test_a_violation_ends_a_loop() -> None:
    prepared = prepare(programs.divided(), BACKEND)
    (result,) = prepared.execute([BACKEND.store(np.asarray(3, np.int32))])
    with pytest.raises(SpecViolation, match="IntegerDivideByZero"):
        result.numpy()


@pytest.mark.usefixtures("unasked")
def test_an_endless_loop_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_MAX_LOOP_STEPS", "3000")
    prepared = prepare(programs.endless(), BACKEND)
    (result,) = prepared.execute([BACKEND.store(np.asarray(0, np.float32))])
    with pytest.raises(ExecutionError, match="ran 3,000 region calls without ending"):
        result.numpy()


def test_nodes_are_told_where_tensors_have_gone() -> None:
    b = weft.ptir.Builder()
    x, y = b.param("f32", [1 << 16]), b.param("f32", [1 << 16])
    prepared = prepare(b.build(x * 2.0 + y, b.reduce_sum(x, [0])), BACKEND)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(1 << 16).astype(np.float32) for _ in range(9)]
    held = [BACKEND.store(array) for array in arrays]
    results = [prepared.execute([a, b]) for a, b in pairwise(held)]
    for n, (first, second) in enumerate(results):
        np.testing.assert_allclose(
            first.numpy(), arrays[n] * 2 + arrays[n + 1], rtol=1e-5, atol=1e-6
        )
        np.testing.assert_allclose(second.numpy(), arrays[n].astype(np.float64).sum(), atol=0.1)
    open_gpu().wait()
