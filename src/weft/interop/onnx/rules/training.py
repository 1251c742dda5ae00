"""Steps of optimisers, and two operators of classical models that are plain arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from weft.foundation.errors import SpecViolation
from weft.interop.onnx.table import Call, rule
from weft.interop.onnx.values import Array, Value, wf
from weft.ops.tensor import Tensor

TRAINING: Final = "ai.onnx.preview.training"
CLASSICAL: Final = "ai.onnx.ml"


def _tensor_groups(each: tuple[Tensor, ...], count: int) -> list[tuple[Tensor, ...]]:
    """The tensors that belong together, which come as all of the first, all of the second, ..."""
    if len(each) % count:
        raise SpecViolation("MalformedModel", f"its {len(each)} tensors make no {count} groups")
    size = len(each) // count
    return list(zip(*(each[k * size : (k + 1) * size] for k in range(count)), strict=True))


def _columns_of_rows(rows: Sequence[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    return tuple(tensor for column in zip(*rows, strict=True) for tensor in column)


def _slope(call: Call, x: Tensor, g: Tensor) -> Value:
    return g + x * call.attr("norm_coefficient", 0.0)


@rule("Adagrad", domain=TRAINING)
def adagrad(call: Call, rate: Tensor, count: Tensor, *each: Tensor) -> Value:
    rows = []
    for x, g, squares in _tensor_groups(each, 3):
        slope = _slope(call, x, g)
        total = squares + slope * slope
        step = rate / (1.0 + count.astype(rate.dtype) * call.attr("decay_factor", 0.0))
        rows.append((x - step * slope / (wf.sqrt(total) + call.attr("epsilon", 1e-6)), total))
    return _columns_of_rows(rows)


@rule("Adam", domain=TRAINING)
def adam(call: Call, rate: Tensor, count: Tensor, *each: Tensor) -> Value:
    alpha, beta = call.attr("alpha", 0.9), call.attr("beta", 0.999)
    t = count.astype(rate.dtype)
    later = wf.where(count > 0, t, wf.ones_like(t))
    exact = rate * wf.sqrt(1.0 - wf.pow(beta, later)) / (1.0 - wf.pow(alpha, later))
    step = wf.where(count > 0, exact, rate)
    rows = []
    for x, g, mean, squares in _tensor_groups(each, 4):
        slope = _slope(call, x, g)
        first = mean * alpha + slope * (1.0 - alpha)
        second = squares * beta + slope * slope * (1.0 - beta)
        moved = x - step * first / (wf.sqrt(second) + call.attr("epsilon", 1e-6))
        rows.append((moved * (1.0 - call.attr("norm_coefficient_post", 0.0)), first, second))
    return _columns_of_rows(rows)


@rule("Momentum", domain=TRAINING)
def momentum(call: Call, rate: Tensor, count: Tensor, *each: Tensor) -> Value:
    alpha, mode = call.need("alpha"), call.choice("mode", "", ("standard", "nesterov"))
    share = wf.where(count > 0, wf.full_like(rate, call.need("beta")), wf.ones_like(rate))
    rows = []
    for x, g, speed in _tensor_groups(each, 3):
        slope = _slope(call, x, g)
        found = speed * alpha + share * slope
        step = slope + found * alpha if mode == "nesterov" else found
        rows.append((x - rate * step, found))
    return _columns_of_rows(rows)


@rule("ArrayFeatureExtractor", domain=CLASSICAL, values=(1,))
def array_feature_extractor(call: Call, x: Tensor, places: Array) -> Value:
    """Columns of the last axis; a vector is one row."""
    rows = x if x.ndim > 1 else x[None]
    return wf.take(rows, wf.asarray(places.reshape(-1)), axis=-1)


@rule("Binarizer", domain=CLASSICAL)
def binarizer(call: Call, x: Tensor) -> Value:
    return (x > call.attr("threshold", 0.0)).astype(x.dtype)
