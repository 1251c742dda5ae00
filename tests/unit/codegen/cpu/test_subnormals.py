"""x86-64 takes 150 cycles for a product that is subnormal, or has a factor that is. Rows whose
numbers fall that low are computed without one, as the processor's own flags tell."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from weft.driver.pipeline import run_pipeline
from weft.driver.signature import make_signature
from weft.driver.stages.compilation import Compilation
from weft.plan.ir import ONLINE, STREAMING, AttentionPlan, Plan, PlanSet
from weft.plan.text import dumps
from weft.ptir import Builder, Program
from weft.target.known import target_named

Array = NDArray[Any]
UNDERFLOW_OR_SUBNORMAL_FACTOR: Final = 0x10 | 0x02
EVERY_FLAG: Final = 0x3F
KEYS: Final = 37

on_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="flags of x86-64")


def low_scores() -> Array:
    """Rows that lie from nothing to 108 below their greatest number, and the -100 of a mask."""
    rows = np.random.default_rng(0).uniform(-1, 0, (8, KEYS)) - np.linspace(0, 108, 8)[:, None]
    rows[:, 3], rows[:, 20] = 0.25, -0.5
    rows[6, 25:] = -100
    return rows.astype(np.float32)


def shares(x: Array) -> Array:
    powers = np.exp((x - x.max(axis=-1, keepdims=True)).astype(np.float64))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def flags_of(run: Callable[[], object]) -> int:
    """What the floating-point flags of this thread tell about a call."""
    maths = ctypes.CDLL("libm.so.6")
    maths.feclearexcept(EVERY_FLAG)
    run()
    return int(maths.fetestexcept(UNDERFLOW_OR_SUBNORMAL_FACTOR))


def ready(program: Program, *arrays: Array, plans: str | None = None) -> Callable[[], Any]:
    overrides = {"plan": plans} if plans else {}
    bound = weft.compile(program, "cpu", overrides=overrides)
    return lambda: bound(*arrays)[0]


@on_x86
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_a_softmax_multiplies_nothing_subnormal(dtype: str, axis: int) -> None:
    scores: NDArray[Any] = low_scores().astype(np.float32 if dtype == "f32" else np.float64)
    if dtype == "f64":
        scores = np.where(np.less(scores, -2), scores * 7, scores)
    given = scores if axis else np.ascontiguousarray(scores.T)
    b = Builder()
    x = b.param(dtype, list(given.shape))
    run = ready(b.build(b.softmax(x, axis=axis)), given)
    run()
    assert flags_of(run) == 0


@pytest.mark.parametrize("axis", [0, 1])
def test_shares_that_are_subnormal_are_right(axis: int) -> None:
    scores = low_scores()
    b = Builder()
    x = b.param("f32", list(scores.shape if axis else scores.T.shape))
    found = ready(b.build(b.softmax(x, axis=axis)), scores if axis else scores.T.copy())()
    want = shares(scores)
    found = np.asarray(found) if axis else np.asarray(found).T
    np.testing.assert_allclose(found, want, rtol=4e-6, atol=1.5e-45)
    assert 0 < want[want < 1e-38].max() < 1.2e-38


def with_algorithm(program: Program, algo: str) -> str:
    planned = Compilation(program, target_named("cpu"), make_signature(program))
    plans: PlanSet = run_pipeline(planned, "plan")["plan"]
    changed: dict[str, Plan] = {
        key: replace(plan, algo=algo) if isinstance(plan, AttentionPlan) else plan
        for key, plan in plans.plans.items()
    }
    return dumps(PlanSet(plans.kernels, changed))


@pytest.mark.parametrize("algo", [ONLINE, STREAMING])
def test_an_attention_multiplies_nothing_subnormal(algo: str) -> None:
    """Weights that would be are 2^-110, which no sum of values notices; what vanishes is 0."""
    scores = low_scores()
    rng = np.random.default_rng(1)
    q, k = np.zeros((8, 1, 40, 16), np.float32), np.zeros((8, 1, KEYS, 16), np.float32)
    q[..., 0], k[:, 0, :, 0] = 4, scores
    v = rng.standard_normal((8, 1, KEYS, 16)).astype(np.float32)
    v[7, 0, :5] = np.where(scores[7, :5, None] < -107, np.inf, v[7, 0, :5])
    b = Builder()
    program = b.build(b.attention(*(b.param("f32", list(x.shape)) for x in (q, k, v))))
    run = ready(program, q, k, v, plans=with_algorithm(program, algo))
    with np.errstate(invalid="ignore"):
        want = np.einsum("bk,bkd->bd", shares(scores).astype(np.float32), v[:, 0])
    found = np.asarray(run())
    np.testing.assert_allclose(found, np.broadcast_to(want[:, None, None], found.shape), 1e-5, 1e-6)
    if platform.machine() == "x86_64":
        assert flags_of(run) == 0


@on_x86
@pytest.mark.parametrize(
    ("fn", "low"), [("exp", -110.0), ("exp2", -155.0), ("tanh", 0.0), ("erf", 0.0)]
)
def test_functions_multiply_nothing_subnormal(fn: str, low: float) -> None:
    x = np.linspace(low, 1, 999).astype(np.float32)
    if low == 0:
        x = 10.0 ** np.linspace(-37, 0, 999, dtype=np.float32)
    b = Builder()
    run = ready(b.build(getattr(b, fn)(b.param("f32", [999]))), x)
    run()
    assert flags_of(run) == 0
