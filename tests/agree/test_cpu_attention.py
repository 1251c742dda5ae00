"""Attention on the CPU in one kernel, by each algorithm: against NumPy in f64, for one thread and
two, and the cases in which the kernels stay apart."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from tests.support.cases import one_in
from tests.support.example_inputs import inputs_for
from tests.support.gpu_attention import DIVIDED_AFTER, by_hand
from weft.driver.pipeline import run_pipeline
from weft.driver.signature import make_signature
from weft.driver.stages.compilation import Compilation
from weft.foundation.errors import WeftError
from weft.plan.ir import ONLINE, STREAMING, AttentionPlan, PlanSet
from weft.plan.text import dumps
from weft.ptir import Builder, Program
from weft.target.known import target_named
from weft.testing.compare import compare

Array = NDArray[Any]
Sizes = tuple[int, int, int, int, int]


def oracle(arrays: Iterable[Array], causal: bool) -> tuple[Array, Array]:
    """The result and the log-sum-exp of the scores, in f64."""
    q, k, v = (x.astype(np.float64) for x in arrays)
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    if causal:
        seen = np.arange(k.shape[-2])[None, :] <= np.arange(q.shape[-2])[:, None]
        scores = np.where(seen, scores, -np.inf)
    top = scores.max(-1, keepdims=True)
    powers = np.exp(scores - top)
    total = powers.sum(-1, keepdims=True)
    return powers / total @ v, (top + np.log(total))[..., 0]


def attention(sizes: Sizes, causal: bool, dtype: str = "f32") -> Program:
    batch, heads, rows, columns, depth = sizes
    b = Builder("attention")
    q = b.param(dtype, [batch, heads, rows, depth])
    k, v = (b.param(dtype, [batch, heads, columns, depth]) for _ in range(2))
    return b.build(b.attention(q, k, v, causal=causal))


def arrays_for(program: Program, scale: float = 2.0) -> list[Array]:
    rng = np.random.default_rng(3)
    kinds = [kind for kind in program.main.parameters if isinstance(kind, weft.ptir.TensorType)]
    return [
        (scale * rng.standard_normal(kind.static_shape)).astype(kind.dtype.numpy) for kind in kinds
    ]


def patterns(executable: Any) -> list[str]:
    (cluster,) = executable.clusters.values()
    return [kernel.pattern.value for kernel in cluster.compilation["region"].kernels]


@pytest.mark.parametrize("name", ["divided", "times one over the sum", "masked"])
def test_powers_that_are_divided_after_are_one_kernel(name: str) -> None:
    program = by_hand("f32", DIVIDED_AFTER[name])
    compiled = weft.compile(program)
    assert patterns(compiled) == ["attention"]
    report = compare(program, inputs_for(program, 3), "cpu")
    assert report.agrees, str(report)


def with_plan(program: Program, **changes: Any) -> Any:
    """The program, with other values in the plan of its attention."""
    roles = make_signature(program)
    plans: PlanSet = run_pipeline(Compilation(program, target_named("cpu"), roles), "plan")["plan"]
    changed = {
        key: replace(plan, **changes) if isinstance(plan, AttentionPlan) else plan
        for key, plan in plans.plans.items()
    }
    return weft.compile(program, "cpu", overrides={"plan": dumps(PlanSet(plans.kernels, changed))})


by_each_algorithm = pytest.mark.parametrize("algo", [ONLINE, STREAMING])

CASES: list[tuple[Sizes, bool]] = [
    ((1, 2, 33, 33, 16), True),
    ((1, 2, 33, 33, 16), False),
    ((2, 3, 100, 100, 24), True),
    ((1, 1, 8, 8, 4), True),
    ((1, 2, 200, 150, 40), False),
    ((1, 2, 13, 300, 7), False),
    ((1, 1, 259, 259, 8), True),
]


KINDS = [(*case, "f32") for case in CASES] + [(*case, "f64") for case in CASES[::3]]


@pytest.mark.parametrize(("sizes", "causal", "dtype"), one_in(3, KINDS, unpack=True))
@by_each_algorithm
def test_one_kernel_agrees_with_numpy(sizes: Sizes, causal: bool, dtype: str, algo: str) -> None:
    program = attention(sizes, causal, dtype)
    arrays = arrays_for(program)
    executable = with_plan(program, algo=algo)
    assert patterns(executable) == ["attention"]
    found, again = (executable.run(arrays, threads=n)[0] for n in (1, 2))
    want, _ = oracle(arrays, causal)
    (reference,) = weft.run(program, arrays, backend="reference")
    ulp = np.finfo(found.dtype).eps * np.abs(want).max()
    bound = 2 * np.abs(reference - want).max() + (sizes[3] / 128 + 4) * ulp
    if dtype == "f64":
        bound = 1e-13 * np.abs(want).max()
    assert np.abs(found - want).max() <= bound
    np.testing.assert_array_equal(found, again)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@by_each_algorithm
def test_narrow_operands_are_widened(dtype: str, algo: str) -> None:
    program = attention((1, 2, 40, 40, 16), True, dtype)
    arrays = arrays_for(program)
    executable = with_plan(program, algo=algo)
    assert patterns(executable) == ["attention"]
    (found,) = executable.run(arrays)
    want, _ = oracle(arrays, causal=True)
    (reference,) = weft.run(program, arrays, backend="reference")
    error, allowed = (np.abs(x.astype(np.float64) - want).max() for x in (found, reference))
    assert error <= 2 * allowed


@by_each_algorithm
def test_what_training_keeps_comes_out_of_the_same_kernel(algo: str) -> None:
    b = Builder("forward")
    operands = [b.param("f32", [1, 40, 2, 16]) for _ in range(3)]
    results = b.emit(
        "byteir.flash_attn_fwd", *operands, dropout_p=0.0, softmax_scale=0.25, causal=True,
        return_softmax=False,
    )  # fmt: skip
    program = b.build(results)
    arrays = arrays_for(program)
    executable = with_plan(program, algo=algo)
    assert "attention" in patterns(executable)
    assert "matmul" not in patterns(executable)
    out, lse = executable.run(arrays)[:2]
    want, want_lse = oracle((x.transpose(0, 2, 1, 3) for x in arrays), causal=True)
    np.testing.assert_allclose(out.transpose(0, 2, 1, 3), want, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(lse, want_lse, rtol=1e-6, atol=1e-6)


@by_each_algorithm
def test_rows_that_see_nothing_and_rows_with_nan(algo: str) -> None:
    """A row of -inf has no softmax; NaN and +inf in a score spoil their row, and no other."""
    b = Builder("masked")
    q, k, v = (b.param("f32", [1, 1, 24, 8]) for _ in range(3))
    mask = b.param("f32", [1, 1, 24, 24])
    scores = b.dot_general(q, k, batch=([0, 1], [0, 1]), contract=([3], [3])) + mask
    weights = b.softmax(scores)
    program = b.build(b.dot_general(weights, v, batch=([0, 1], [0, 1]), contract=([3], [2])))
    arrays = arrays_for(program, 1.0)
    arrays[3][:] = 0
    arrays[3][0, 0, 3] = -np.inf
    arrays[3][0, 0, 5, 7] = np.nan
    arrays[3][0, 0, 6, 2:] = -np.inf
    arrays[3][0, 0, 9, 11] = np.inf
    executable = with_plan(program, algo=algo)
    assert patterns(executable) == ["attention"]
    (found,) = executable.run(arrays)
    spoilt = np.isnan(found[0, 0]).any(-1)
    assert list(np.flatnonzero(spoilt)) == [3, 5, 9]
    (want,) = weft.run(program, arrays, backend="reference")
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)


@by_each_algorithm
def test_queries_before_all_keys_see_nothing(algo: str) -> None:
    """The first piece of queries meets no block of keys at all."""
    b = Builder("late")
    q, k, v = (b.param("f32", [1, 2, rows, 8]) for rows in (150, 20, 20))
    result = b.emit("weft.attention", q, k, v, causal=True)
    program = b.build(result[0])
    executable = with_plan(program, algo=algo)
    assert patterns(executable) == ["attention"]
    (found,) = executable.run(arrays := arrays_for(program))
    np.testing.assert_array_equal(found[:, :, :130], 0.0)
    assert not (found[:, :, 130:] == 0.0).any()
    (want,) = weft.run(program, arrays, backend="reference")
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)


def test_scores_that_others_read_stay_in_memory() -> None:
    b = Builder("seen")
    q, k, v = (b.param("f32", [2, 16, 8]) for _ in range(3))
    weights = b.softmax(b.dot_general(q, k, batch=([0], [0]), contract=([2], [2])))
    mixed = b.dot_general(weights, v, batch=([0], [0]), contract=([2], [1]))
    program = b.build(mixed, weights)
    executable = weft.compile(program, "cpu")
    assert "attention" not in patterns(executable)
    found = executable.run(arrays := arrays_for(program))
    for one, other in zip(found, weft.run(program, arrays, backend="reference"), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_a_single_query_is_not_computed_in_blocks() -> None:
    executable = weft.compile(attention((1, 4, 1, 64, 16), False), "cpu")
    assert "attention" not in patterns(executable)


@by_each_algorithm
def test_hidden_blocks_are_not_computed(algo: str) -> None:
    """NaN in keys that a causal mask hides from a whole block of queries does not reach them."""
    program = attention((1, 1, 300, 300, 8), True)
    arrays = arrays_for(program)
    arrays[1][0, 0, 299] = np.nan
    (found,) = with_plan(program, algo=algo).run(arrays)
    assert not np.isnan(found[0, 0, :96]).any()
    assert np.isnan(found[0, 0, 299]).all()


@pytest.mark.parametrize(
    "changes",
    [
        {"tile_q": 24, "tile_kv": 16, "register_tile": (8, 12), "vector": 4},
        {"tile_q": 8, "tile_kv": 64, "register_tile": (4, 8), "vector": 4},
        {"tile_q": 6, "tile_kv": 10, "register_tile": (5, 2), "vector": 2},
        {"tile_q": 6, "tile_kv": 10, "register_tile": (5, 2), "vector": 2, "algo": STREAMING},
    ],
)
def test_every_legal_plan_gives_the_same_numbers(changes: dict[str, Any]) -> None:
    program = attention((1, 2, 50, 50, 8), True)
    arrays = arrays_for(program)
    executable = with_plan(program, **changes)
    assert executable.stages["cpu"] != weft.compile(program, "cpu").stages["cpu"]
    (found,) = executable.run(arrays)
    want, _ = oracle(arrays, causal=True)
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"stages": 3}, "stages=3 has no effect"),
        ({"algo": "guessing"}, "is not an algorithm"),
        ({"tile_q": 13}, "not whole tiles"),
        ({"vector": 3}, "power of two"),
        ({"tile_kv": 1 << 16}, "bytes of a thread"),
    ],
)
def test_other_plans_are_refused(changes: dict[str, Any], why: str) -> None:
    program = attention((1, 1, 50, 50, 8), True)
    with pytest.raises(WeftError, match=why):
        with_plan(program, **changes)
