"""Levels of optimisation: other kernels, the same meaning."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import weft
from tests.support.cases import one_in
from weft.driver.stages.bodies import parts_of
from weft.driver.stages.compilation import LEVELS
from weft.foundation.errors import UserError
from weft.ptir import Builder, Program, load
from weft.ptir.builder import BodyBuilder, Value

pytestmark = pytest.mark.usefixtures("small_machine")
EXAMPLES = Path(__file__).parents[4] / "examples"


def scaled() -> Program:
    """Greedy and exact fusion differ about it."""
    b = Builder("scaled")
    x, y = b.param("f32", [64, 128]), b.param("f32", [64, 128])
    z = b.exp(x)
    product = z * b.broadcast_to(b.reduce_max(z, axes=[1], keepdims=True), [64, 128])
    return b.build(b.log(product), product * y)


def test_every_level_computes_the_same_with_fewer_kernels() -> None:
    program = scaled()
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((64, 128)).astype(np.float32) for _ in range(2))
    product = np.exp(x) * np.exp(x).max(1, keepdims=True)
    counts = []
    for level in LEVELS:
        made = weft.compile(program, opt_level=level)
        first, second = made(x, y)
        np.testing.assert_allclose(first, np.log(product), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(second, product * y, rtol=1e-5, atol=1e-5)
        counts.append(len(made.artifact.kernels))
    assert counts == sorted(counts, reverse=True)
    assert len(set(counts)) == 3


@pytest.mark.parametrize("name", one_in(2, ["attention", "softmax_layernorm"]))
@pytest.mark.parametrize("level", [0, 3])
def test_examples_at_other_levels(name: str, level: int) -> None:
    program = load(EXAMPLES / f"{name}.ptir.txt")
    rng = np.random.default_rng(0)
    inputs = [
        (3 * rng.random(kind.static_shape)).astype(kind.dtype.numpy)
        for kind in weft.compile(program).inputs
    ]
    want = weft.run(program, inputs, backend="reference")
    got = weft.compile(program, opt_level=level)(*inputs)
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_loops_are_compiled_at_the_level_of_their_program() -> None:
    b = Builder("loop")
    x = b.param("f32", [8, 32])

    def body(r: BodyBuilder, total: Value, row: Value) -> list[Value]:
        return [total + r.tanh(row), row]

    made = weft.compile(b.build(b.scan(body, [b.reduce_sum(x, [0])], [x])), opt_level=3)
    (cluster,) = made.clusters.values()
    _, loop = parts_of(cluster.compilation)
    assert loop.opt_level == 3


@pytest.mark.parametrize("level", [1, 4, -1, "3", 3.0, True])
def test_what_is_no_level_is_refused(level: object) -> None:
    with pytest.raises(UserError, match=r"there is no optimisation level .*; the levels are 0"):
        weft.compile(scaled(), opt_level=level)  # type: ignore[call-overload]


def test_without_the_solver_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE", "off")
    monkeypatch.setitem(sys.modules, "highspy", None)
    for name in ("weft.region.fusion.exact", "weft.region.fusion.milp"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(UserError, match="highspy, which is not installed: pip install highspy"):
        weft.compile(scaled(), opt_level=3)
