"""Losses against formulas in f64, and class losses against a loop over targets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import special

import weft
from tests.support.cases import each
from tests.support.tensors import DTYPES, Array, agrees, data, wide
from weft import functional as F
from weft.foundation.dtypes import DType
from weft.ptir.ops.movement import Iota

Shape = tuple[int, ...]


def huber(x: Array, y: Array, delta: float) -> Array:
    return np.asarray(special.huber(delta, x - y))


def bce(x: Array, y: Array) -> Array:
    return np.asarray(-(special.xlogy(y, x) + special.xlog1py(1 - y, -x)))


LOSSES: dict[str, tuple[Callable[..., Any], Callable[[Array, Array], Array], str]] = {
    "mse": (F.mse_loss, lambda x, y: (x - y) ** 2, "any"),
    "l1": (F.l1_loss, lambda x, y: np.abs(x - y), "any"),
    "huber": (F.huber_loss, lambda x, y: huber(x, y, 1.0), "any"),
    "huber 0.5": (
        lambda x, y, r: F.huber_loss(x, y, r, 0.5),
        lambda x, y: huber(x, y, 0.5),
        "any",
    ),
    "smooth_l1": (F.smooth_l1_loss, lambda x, y: huber(x, y, 1.0), "any"),
    "smooth_l1 2": (
        lambda x, y, r: F.smooth_l1_loss(x, y, r, 2.0),
        lambda x, y: huber(x, y, 2.0) / 2.0,
        "any",
    ),
    "smooth_l1 0": (
        lambda x, y, r: F.smooth_l1_loss(x, y, r, 0.0),
        lambda x, y: np.abs(x - y),
        "any",
    ),
    "bce": (F.binary_cross_entropy, bce, "probability"),
    "bce of logits": (
        F.binary_cross_entropy_with_logits,
        lambda x, y: bce(special.expit(x), y),
        "target",
    ),
    "kl": (F.kl_div, lambda x, y: special.xlogy(y, y) - y * x, "target"),
}


def operands(kind: str, shape: Shape, dtype: DType) -> tuple[Array, Array]:
    x, y = data(shape, dtype, 1), data(shape, dtype, 2)
    if kind == "probability":
        x = special.expit(wide(x)).astype(dtype.numpy)
    if kind != "any":
        y = special.expit(wide(y)).astype(dtype.numpy)
    return x, y


REDUCE: dict[str, Callable[[Array], Array]] = {
    "none": lambda x: x,
    "sum": lambda x: np.asarray(x.sum()),
    "mean": lambda x: np.asarray(x.mean()),
}


@each("dtype", DTYPES)
@each("reduction", REDUCE)
@each("name", LOSSES)
def test_loss(name: str, reduction: str, dtype: DType) -> None:
    function, oracle, kind = LOSSES[name]
    for shape in ((), (5,), (3, 4)):
        x, y = operands(kind, shape, dtype)
        exact = REDUCE[reduction](oracle(wide(x), wide(y)))
        agrees(function(weft.asarray(x), weft.asarray(y), reduction), exact, dtype, ulps=12)


def test_a_certain_mistake_costs_a_hundred() -> None:
    x, y = weft.asarray([0.0, 1.0, 0.0]), weft.asarray([1.0, 0.0, 0.0])
    assert F.binary_cross_entropy(x, y, "none").tolist() == [100.0, 100.0, 0.0]


def test_logits_far_from_zero_cost_what_they_are() -> None:
    x, y = weft.asarray([1e4, -1e4, 1e4]), weft.asarray([0.0, 1.0, 1.0])
    assert F.binary_cross_entropy_with_logits(x, y, "none").tolist() == [1e4, 1e4, 0.0]


def test_a_target_of_zero_counts_nothing() -> None:
    assert F.kl_div(weft.asarray([-1.0]), weft.asarray([0.0])).item() == 0.0


def test_the_mean_of_many_f16_is_in_range_though_their_sum_is_not() -> None:
    x = weft.full((2000,), 10.0, dtype=weft.float16)
    assert F.mse_loss(x, weft.zeros_like(x)).item() == 100.0


# -- classes -------------------------------------------------------------------------------------


def loop_classes(
    logs: Array, target: Array, axis: int, ignored: int, smoothing: float, reduction: str
) -> Array:
    """One target at a time; `logs` are log-probabilities."""
    last = np.moveaxis(logs, axis, -1)
    out = np.zeros(target.shape)
    for place in np.ndindex(target.shape):
        if target[place] != ignored:
            row = last[place]
            out[place] = -(1 - smoothing) * row[target[place]] - smoothing * row.mean()
    if reduction == "mean":
        return np.asarray(out.sum() / (target != ignored).sum())
    return REDUCE[reduction](out)


@each("dtype", DTYPES)
@each("reduction", REDUCE)
@each("smoothing", [0.0, 0.2])
@each("ignored", [-100, 1])
@each(("shape", "axis"), [((4,), -1), ((5, 4), -1), ((2, 4, 3), 1)])
def test_cross_entropy(
    shape: Shape, axis: int, ignored: int, smoothing: float, reduction: str, dtype: DType
) -> None:
    x = data(shape, dtype, scale=2.0)
    places = tuple(np.delete(shape, axis))
    target = np.random.default_rng(5).integers(0, shape[axis], places)
    target.reshape(-1)[:1] = 2  # at least one counts
    logs = special.log_softmax(wide(x), axis)
    exact = loop_classes(logs, target, axis, ignored, smoothing, reduction)
    found = F.cross_entropy(
        weft.asarray(x), weft.asarray(target), reduction,
        ignore_index=ignored, label_smoothing=smoothing, axis=axis,
    )  # fmt: skip
    agrees(found, exact, dtype)
    if not smoothing:
        rounded = logs.astype(dtype.numpy)
        exact = loop_classes(wide(rounded), target, axis, ignored, 0.0, reduction)
        given = (weft.asarray(rounded), weft.asarray(target), reduction)
        agrees(F.nll_loss(*given, ignore_index=ignored, axis=axis), exact, dtype)


def test_the_count_of_targets_is_exact_in_narrow_floats() -> None:
    x = weft.full((5000, 2), -1.0, dtype=weft.bfloat16)
    target = weft.zeros((5000,), dtype=weft.int64)
    assert F.nll_loss(x, target).item() == 1.0


def test_without_any_target_the_mean_is_nan() -> None:
    target = np.asarray([-100, -100])
    assert np.isnan(F.cross_entropy(weft.asarray(data((2, 3))), weft.asarray(target)).item())


def test_the_mean_over_the_batch_is_the_divergence_of_rows() -> None:
    x, y = special.log_softmax(data((3, 5)), axis=1), special.softmax(data((3, 5), seed=1), axis=1)
    exact = special.rel_entr(wide(y), np.exp(wide(x))).sum() / 3
    found = F.kl_div(weft.asarray(x), weft.asarray(y), "batchmean")
    agrees(found, np.asarray(exact), x.dtype.name.replace("float", "f"))
    with pytest.raises(weft.SpecViolation, match="at least 1 is wanted"):
        F.kl_div(weft.asarray(0.5), weft.asarray(0.5), "batchmean")


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("wrong", [3, -1, 2**40])
@pytest.mark.parametrize("loss", [F.cross_entropy, F.nll_loss])
def test_a_target_that_is_no_class_stops_the_run(
    loss: Callable[..., Any], wrong: int, backend: str
) -> None:
    with weft.graph(backend=backend):
        x, target = weft.asarray(data((2, 3))), weft.asarray([0, wrong])
        with pytest.raises(weft.SpecViolation, match="GatherIndexOutOfBounds"):
            loss(x, target, "sum").numpy()
        assert np.isfinite(loss(x, target, "sum", ignore_index=wrong).item())
        with pytest.raises(weft.SpecViolation, match="GatherIndexOutOfBounds"):
            weft.value_and_grad(loss)(x, target)[0].numpy()


def test_classes_are_numbered_in_32_bits() -> None:
    """Also where targets have 64: every score is compared with its target."""
    program = weft.jit(F.cross_entropy).program(np.zeros((4, 6), np.float32), np.zeros(4, np.int64))
    counted = [i.output for i in program.main.body if isinstance(i.op, Iota)]
    assert {str(kind) for kind in counted} == {"si32[6]", "si32[4, 6]"}
