"""Sums, extremes and places of extremes along axes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from weft.foundation.dtypes import I1, SI64
from weft.foundation.errors import SpecViolation
from weft.interop.onnx.rules.elementwise import widened
from weft.interop.onnx.table import Call, rule
from weft.interop.onnx.values import Array, Value, wf
from weft.ops import functional
from weft.ops.tensor import Tensor

Reduction = Callable[[Tensor, tuple[int, ...], bool], Tensor]


def _reduce_sum(x: Tensor, axes: tuple[int, ...], keep: bool) -> Value:
    return wf.sum(x, axis=axes, dtype=x.dtype, keepdims=keep)


def _reduce_extreme(largest: bool) -> Reduction:
    def reduced(x: Tensor, axes: tuple[int, ...], keep: bool) -> Value:
        if x.dtype is I1:
            return (wf.any if largest else wf.all)(x, axis=axes, keepdims=keep)
        if any(x.shape[axis] == 0 for axis in axes):
            least = x.dtype.lowest if largest else x.dtype.highest
            shape = [1 if a in axes else d for a, d in enumerate(x.shape) if keep or a not in axes]
            return wf.full(tuple(shape), least, dtype=x.dtype)
        return (wf.max if largest else wf.min)(x, axis=axes, keepdims=keep)

    return reduced


def _reduce_mean(x: Tensor, axes: tuple[int, ...], keep: bool) -> Value:
    if x.dtype.is_float:
        return wf.mean(x, axis=axes, keepdims=keep)
    count = math.prod(int(x.shape[axis]) for axis in axes)
    return wf.divide(
        _reduce_sum(x, axes, keep), wf.full((), count, dtype=x.dtype), rounding="trunc"
    )


def _log_sum_exp(x: Tensor, axes: tuple[int, ...], keep: bool) -> Value:
    wide = x if x.dtype.is_float else x.astype(wf.float64)
    return functional.logsumexp(wide, axes, keep).astype(x.dtype)


def length(total: Tensor, p: float = 2) -> Value:
    """The root of a sum of p-th powers. A root rises infinitely fast at 0, where a length has its
    kink: there the result is a constant, so that its gradient is 0 and not NaN."""
    none = wf.equal(total, 0)
    safe = wf.where(none, wf.ones_like(total), total)
    root = wf.sqrt(safe) if p == 2 else wf.pow(safe, wf.full((), 1.0 / p, dtype=total.dtype))
    return wf.where(none, wf.zeros_like(total), root)


def _root(x: Tensor, axes: tuple[int, ...], keep: bool) -> Value:
    wide = widened(x) if x.dtype.is_float else x.astype(wf.float64)
    return length(_reduce_sum(wide * wide, axes, keep)).astype(x.dtype)


def _log_sum(x: Tensor, axes: tuple[int, ...], keep: bool) -> Value:
    wide = x if x.dtype.is_float else x.astype(wf.float64)
    return wf.log(_reduce_sum(wide, axes, keep)).astype(x.dtype)


def _prod(x: Tensor, axes: tuple[int, ...], keep: bool) -> Value:
    return wf.prod(x, axis=axes, dtype=x.dtype, keepdims=keep)


_REDUCTIONS: Final[dict[str, Reduction]] = {
    "ReduceSum": _reduce_sum,
    "ReduceMax": _reduce_extreme(True),
    "ReduceMin": _reduce_extreme(False),
    "ReduceMean": _reduce_mean,
    "ReduceProd": _prod,
    "ReduceL1": lambda x, axes, keep: _reduce_sum(wf.abs(x), axes, keep),
    "ReduceL2": _root,
    "ReduceLogSum": _log_sum,
    "ReduceLogSumExp": _log_sum_exp,
    "ReduceSumSquare": lambda x, axes, keep: _reduce_sum(x * x, axes, keep),
}


def _enter(name: str, function: Reduction) -> None:
    @rule(name, values=(1,))
    def reduced(call: Call, x: Tensor, axes: Array | None = None) -> Value:
        wanted = call.ints(axes, "axes") or []
        keep = bool(call.attr("keepdims", 1))
        if not wanted:
            if call.attr("noop_with_empty_axes", 0):
                return function(x[None], (0,), False)
            wanted = list(range(x.ndim))
        if any(not -x.ndim <= axis < x.ndim for axis in wanted):
            raise SpecViolation("InvalidAttributeValue", f"{x.type} has no axes {wanted}")
        return function(x, tuple(sorted({axis % x.ndim for axis in wanted})), keep)


for _name, _function in _REDUCTIONS.items():
    _enter(_name, _function)


@rule("ArgMax", "ArgMin")
def arg_extreme(call: Call, x: Tensor) -> Value:
    axis, keep = call.attr("axis", 0), bool(call.attr("keepdims", 1))
    find = wf.argmax if call.node.op == "ArgMax" else wf.argmin
    if not call.attr("select_last_index", 0):
        return find(x, axis=axis, keepdims=keep).astype(SI64)
    found = find(wf.flip(x, axis=axis), axis=axis, keepdims=keep).astype(SI64)
    return int(x.shape[axis]) - 1 - found


@rule("CumSum", "CumProd", values=(1,))
def running(call: Call, x: Tensor, axis: Array) -> Value:
    along = int(axis.reshape(()))
    if not -x.ndim <= along < x.ndim:
        raise SpecViolation("InvalidAttributeValue", f"{x.type} has no axis {along}")
    total = wf.cumulative_sum if call.node.op == "CumSum" else wf.cumulative_prod
    given = wf.flip(x, axis=along) if call.attr("reverse", 0) else x
    made = total(given, axis=along, dtype=x.dtype, include_initial=bool(call.attr("exclusive", 0)))
    if call.attr("exclusive", 0):
        at = [slice(None)] * x.ndim
        at[along] = slice(0, int(x.shape[along]))
        made = made[tuple(at)]
    return wf.flip(made, axis=along) if call.attr("reverse", 0) else made


@rule("TopK", values=(1,))
def top_k(call: Call, x: Tensor, k: Array | None = None) -> tuple[Tensor, Tensor]:
    count = int(k.reshape(-1)[0]) if k is not None else call.need("k")
    axis = call.attr("axis", -1)
    largest = bool(call.attr("largest", 1))
    if count == 0:
        at = [slice(None)] * x.ndim
        at[axis] = slice(0, 0)
        return x[tuple(at)], x[tuple(at)].astype(SI64)
    values, places = functional.top_k(x, count, axis, largest=largest)
    return values, places.astype(SI64)


@rule("LpNormalization")
def lp_normalization(call: Call, x: Tensor) -> Value:
    axis, p = call.attr("axis", -1), call.attr("p", 2)
    wide = widened(x)
    norm = wf.sum(wf.abs(wide), axis=axis, keepdims=True)
    if p == 2:
        norm = length(wf.sum(wide * wide, axis=axis, keepdims=True))
    safe = wf.where(wf.equal(norm, 0), wf.ones_like(norm), norm)
    return wf.where(wf.equal(norm, 0), wf.zeros_like(wide), wide / safe).astype(x.dtype)
