"""Attention whose weights are not powers over their sum: one kernel, with a factor of each row
behind its softmax."""

from __future__ import annotations

from typing import Any, Final

import pytest

import weft
from tests.support.example_inputs import inputs_for
from tests.support.gpu_interpreted import InterpretedGpu
from weft.plan.ir import AttentionPlan
from weft.ptir import Program
from weft.testing.compare import compare

WIDE: Final = "f32"


def _scores(q: Any, k: Any) -> Any:
    return (q @ weft.swapaxes(k, -1, -2) * 0.125).astype(WIDE)


def with_sinks(q: Any, k: Any, v: Any, sink: Any) -> Any:
    """Each head has one more weight, of nothing; the first query sees that alone."""
    rows, columns = weft.arange(q.shape[-2]), weft.arange(k.shape[-2])
    scores = _scores(q, k)
    if q.shape[-2] > 1:
        scores = weft.where(columns[None, :] < rows[:, None], scores, -weft.inf)
    sunk = sink.astype(WIDE)[:, None, None]
    top = weft.maximum(weft.max(scores, axis=-1, keepdims=True), sunk)
    powers = weft.exp(scores - top)
    total = weft.sum(powers, axis=-1, keepdims=True) + weft.exp(sunk - top)
    return (powers / total).astype(q.dtype) @ v


def with_sinks_and_sums(q: Any, k: Any, v: Any, sink: Any) -> Any:
    """And the logarithm of the sums."""
    scores, sunk = _scores(q, k), sink.astype(WIDE)[:, None, None]
    top = weft.maximum(weft.max(scores, axis=-1, keepdims=True), sunk)
    powers = weft.exp(scores - top)
    total = weft.sum(powers, axis=-1, keepdims=True) + weft.exp(sunk - top)
    return (powers / total).astype(q.dtype) @ v, (top + weft.log(total))[..., 0]


def by_inverses(q: Any, k: Any, v: Any, _: Any) -> Any:
    scores = _scores(q, k)
    powers = weft.exp(scores - weft.max(scores, axis=-1, keepdims=True))
    return (powers * (1.0 / weft.sum(powers, axis=-1, keepdims=True))).astype(q.dtype) @ v


def by_a_little_more(q: Any, k: Any, v: Any, _: Any) -> Any:
    scores = _scores(q, k)
    powers = weft.exp(scores - weft.max(scores, axis=-1, keepdims=True))
    return (powers / (weft.sum(powers, axis=-1, keepdims=True) + 1e-3)).astype(q.dtype) @ v


def program_of(write: Any, queries: int = 40, keys: int = 40, shared: int = 1) -> Program:
    shapes = [(2, 2, queries, 32), *[(2, 2 // shared, keys, 32)] * 2, (2,)]
    found: Program = weft.jit(write).program(*(weft.zeros(s, dtype="bf16") for s in shapes))
    return found


def agree(program: Program, target: str, kinds: list[str]) -> None:
    made = InterpretedGpu(target).compile(program).compilation
    kernels = [k for k in made["region"].kernels if k.pattern.value in ("attention", "stream")]
    assert [kernel.pattern.value for kernel in kernels] == kinds
    assert all(isinstance(made["plan"].of(kernel.name), AttentionPlan) for kernel in kernels)
    report = compare(program, inputs_for(program, 3), InterpretedGpu(target))
    assert report.agrees, str(report)


@pytest.mark.parametrize("target", ["sm90", "sm80"])
@pytest.mark.parametrize("write", [with_sinks, with_sinks_and_sums, by_inverses, by_a_little_more])
def test_other_weights_are_one_kernel_and_agree(write: Any, target: str) -> None:
    agree(program_of(write), target, ["attention"])


@pytest.mark.parametrize("target", ["sm90", "sm80"])
@pytest.mark.parametrize("write", [with_sinks, with_sinks_and_sums])
def test_so_are_those_of_a_single_query(write: Any, target: str) -> None:
    agree(program_of(write, queries=1, keys=200), target, ["attention"])


@pytest.mark.parametrize("target", ["sm90", "sm80"])
def test_sinks_are_trained(target: str) -> None:
    def both(q: Any, k: Any, v: Any, sink: Any) -> Any:
        result, pull = weft.vjp(with_sinks, q, k, v, sink)
        return (result, *pull(q))

    agree(program_of(both), target, ["attention", "stream", "stream"])
