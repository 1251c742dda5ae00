"""Distances and similarities of vectors, and losses with a margin or a likelihood."""

from __future__ import annotations

import math
from typing import Any

from weft.foundation.dtypes import FLOATS, INDICES
from weft.foundation.errors import SpecViolation
from weft.ops.arithmetic import broadcast_shapes, listed
from weft.ops.array.elementwise import abs as size_of
from weft.ops.array.elementwise import exp, log, log1p, maximum, sqrt
from weft.ops.array.manipulation import broadcast_to, expand_dims
from weft.ops.array.norms import vector_norm
from weft.ops.array.searching import where
from weft.ops.array.statistics import cumulative_sum, mean
from weft.ops.array.statistics import sum as sum_of
from weft.ops.functional.checks import (
    ensure_axis_in_bounds,
    ensure_choice,
    ensure_dtype,
    ensure_rank,
    ensure_same_dtype,
    ensure_tensor,
    wrong_value,
)
from weft.ops.functional.indexing import gather, one_hot
from weft.ops.functional.loss import REDUCTIONS
from weft.ops.functional.registry import functional
from weft.ops.tensor import Tensor


def _ensure_floats(**given: Any) -> list[Tensor]:
    """Tensors of one float dtype whose shapes broadcast."""
    found = [(name, ensure_tensor(name, value)) for name, value in given.items()]
    (first, lead), *rest = found
    ensure_dtype(first, lead, FLOATS, "floats")
    for name, tensor in rest:
        ensure_same_dtype(first, lead, name, tensor)
        broadcast_shapes(lead.shape, tensor.shape)
    return [tensor for _, tensor in found]


def _checked_number(name: str, value: Any, least: float = -math.inf) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= least:
        raise wrong_value(name, value, f"it must be a number of at least {least:g}")
    return float(value)


def _reduce_losses(x: Tensor, reduction: Any) -> Tensor:
    ensure_choice("reduction", reduction, REDUCTIONS)
    if reduction == "none":
        return x
    return mean(x) if reduction == "mean" else sum_of(x)


def _hinge(x: Tensor) -> Tensor:
    """x, and 0 where it is negative; the gradient at 0 is that of x."""
    return where(x < 0, 0.0, x)


def _open_hinge(x: Tensor) -> Tensor:
    """The same with the gradient 0 at 0, as losses over classes have it."""
    return where(x > 0, x, 0.0)


# -- distances -----------------------------------------------------------------------------------


@functional
def cosine_similarity(x: Tensor, y: Tensor, axis: int = 1, eps: float = 1e-8) -> Tensor:
    """The cosine of the angle between vectors along an axis; lengths count as `eps` at least."""
    first, second = _ensure_floats(x=x, y=y)
    shape = broadcast_shapes(first.shape, second.shape)
    first, second = broadcast_to(first, shape), broadcast_to(second, shape)
    at = ensure_axis_in_bounds("x", first, axis)
    least = _checked_number("eps", eps)
    lengths = [maximum(vector_norm(v, axis=at, keepdims=True), least) for v in (first, second)]
    return sum_of((first / lengths[0]) * (second / lengths[1]), axis=at)


@functional
def pairwise_distance(
    x: Tensor, y: Tensor, p: float = 2.0, eps: float = 1e-6, *, keepdims: bool = False
) -> Tensor:
    """The norm of order p of `x - y + eps` along the last axis."""
    first, second = _ensure_floats(x=x, y=y)
    difference = first - second + _checked_number("eps", eps)
    return vector_norm(difference, axis=-1, keepdims=bool(keepdims), ord=p)


# -- margins -------------------------------------------------------------------------------------


@functional
def margin_ranking_loss(
    x1: Tensor, x2: Tensor, target: Tensor, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """`max(0, margin - target * (x1 - x2))`: x1 should be larger where the target is 1, and smaller
    where it is -1."""
    first, second, wanted = _ensure_floats(x1=x1, x2=x2, target=target)
    return _reduce_losses(
        _hinge(_checked_number("margin", margin) - wanted * (first - second)), reduction
    )


@functional
def hinge_embedding_loss(
    x: Tensor, target: Tensor, margin: float = 1.0, reduction: str = "mean"
) -> Tensor:
    """x where the target is 1, and `max(0, margin - x)` where it is -1."""
    value, wanted = _ensure_floats(x=x, target=target)
    apart = where(wanted != 1, _hinge(_checked_number("margin", margin) - value), 0.0)
    return _reduce_losses(apart + where(wanted != -1, value, 0.0), reduction)


@functional
def cosine_embedding_loss(
    x1: Tensor, x2: Tensor, target: Tensor, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """`1 - cosine` where the target is 1, and `max(0, cosine - margin)` where it is -1."""
    first, second = _ensure_floats(x1=x1, x2=x2)
    wanted, tiny = ensure_tensor("target", target), 1e-12
    product = sum_of(first * second, axis=-1)
    # Keeps a vector of zeros from dividing by 0.
    squares = [sum_of(v * v, axis=-1) + tiny for v in (first, second)]
    cosine = product / sqrt(squares[0] * squares[1])
    apart = _hinge(cosine - _checked_number("margin", margin))
    found = where(wanted == 1, 1.0 - cosine, where(wanted == -1, apart, 0.0))
    return _reduce_losses(found, reduction)


@functional
def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """`max(0, margin + distance to the positive - distance to the negative)`; with `swap` the
    distance to the negative is measured from the anchor or the positive, whichever is nearer."""
    _ensure_floats(anchor=anchor, positive=positive, negative=negative)
    near = pairwise_distance(anchor, positive, p, eps)
    far = pairwise_distance(anchor, negative, p, eps)
    if swap:
        other = pairwise_distance(positive, negative, p, eps)
        far = where(other < far, other, far)
    return _reduce_losses(_hinge(_checked_number("margin", margin) + near - far), reduction)


@functional
def soft_margin_loss(x: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """`log(1 + exp(-target * x))` for targets 1 and -1."""
    value, wanted = _ensure_floats(x=x, target=target)
    return _reduce_losses(_softplus(-(wanted * value)), reduction)


def _softplus(x: Tensor) -> Tensor:
    return maximum(x, 0.0) + log1p(exp(-size_of(x)))


def _class_scores(x: Any, target: Any, rank: int) -> tuple[Tensor, Tensor]:
    """Scores [N, C] or [C], and class numbers."""
    (scores,) = _ensure_floats(x=x)
    wanted = ensure_tensor("target", target)
    ensure_dtype("target", wanted, INDICES, "class numbers (si32 or si64)")
    if scores.ndim == 1:
        scores = expand_dims(scores, axis=0)
        wanted = expand_dims(wanted, axis=0) if wanted.ndim < rank else wanted
    ensure_rank("x", scores, 2, "(N, C)")
    places = scores.shape if rank == 2 else scores.shape[:1]
    if wanted.shape != places:
        raise SpecViolation(
            "ShapeMismatch",
            f"the target is {listed(wanted.shape)}, and x {listed(scores.shape)}",
            f"a target of shape {listed(places)} goes with it",
        )
    return scores, wanted


def _as_given(x: Any, found: Tensor) -> Tensor:
    """Without the batch that x does not have."""
    return found[0] if ensure_tensor("x", x).ndim == 1 else found


@functional
def multi_margin_loss(
    x: Tensor,
    target: Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """The mean over all other classes of `max(0, margin - x[target] + x[class])^p`, times the
    weight of the target's class."""
    scores, wanted = _class_scores(x, target, 1)
    if p not in (1, 2):
        raise wrong_value("p", p, "it can be 1 or 2")
    chosen = gather(scores, expand_dims(wanted, axis=1), axis=1)
    costs = _open_hinge(_checked_number("margin", margin) - chosen + scores)
    costs = costs if p == 1 else costs * costs
    if weight is not None:
        costs = costs * expand_dims(ensure_tensor("weight", weight)[wanted], axis=1)
    others = where(one_hot(wanted, int(scores.shape[1]), dtype=scores.dtype) == 1, 0.0, costs)
    return _reduce_losses(_as_given(x, mean(others, axis=1)), reduction)


@functional
def multilabel_margin_loss(x: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """The target lists classes up to the first -1. The loss is the sum of `max(0, 1 - x[listed] +
    x[other])` over every listed and every other class, divided by the number of classes."""
    scores, wanted = _class_scores(x, target, 2)
    classes = int(scores.shape[1])
    ended = cumulative_sum((wanted < 0).astype(scores.dtype), axis=1) > 0
    known = where(ended, 0, wanted)
    counts = (~ended).astype(scores.dtype)
    held = sum_of(one_hot(known, classes, dtype=scores.dtype) * expand_dims(counts, axis=2), axis=1)
    chosen = gather(scores, known, axis=1)
    costs = _open_hinge(1.0 - expand_dims(chosen, axis=2) + expand_dims(scores, axis=1))
    free = where(expand_dims(held, axis=1) > 0, 0.0, costs) * expand_dims(counts, axis=2)
    return _reduce_losses(_as_given(x, sum_of(free, axis=(1, 2)) / float(classes)), reduction)


@functional
def multilabel_soft_margin_loss(
    x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """The mean over the classes, along the last axis, of the binary cross entropy of the scores x,
    times a weight for each class."""
    scores, wanted = _ensure_floats(x=x, target=target)
    costs = wanted * _softplus(-scores) + (1.0 - wanted) * _softplus(scores)
    costs = costs if weight is None else costs * ensure_tensor("weight", weight)
    return _reduce_losses(mean(costs, axis=-1), reduction)


# -- likelihoods ---------------------------------------------------------------------------------


@functional
def poisson_nll_loss(
    x: Tensor,
    target: Tensor,
    log_input: bool = True,
    full: bool = False,
    eps: float = 1e-8,
    reduction: str = "mean",
) -> Tensor:
    """`exp(x) - target * x` where x is the logarithm of a Poisson distribution's mean, or
    `x - target * log(x + eps)` where it is the mean; `full` adds Stirling's approximation of the
    target's factorial."""
    value, wanted = _ensure_floats(x=x, target=target)
    least = _checked_number("eps", eps)
    found = exp(value) - wanted * value if log_input else value - wanted * log(value + least)
    if full:
        # What is not chosen is finite as well: the gradient of a NaN that is not chosen would be
        # NaN.
        large = where(wanted > 1, wanted, 2.0)
        extra = large * log(large) - large + 0.5 * log(large * (2 * math.pi))
        found = found + where(wanted > 1, extra, 0.0)
    return _reduce_losses(found, reduction)


@functional
def gaussian_nll_loss(
    x: Tensor,
    target: Tensor,
    var: Tensor,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """`(log var + (x - target)² / var) / 2` for a normal distribution of mean x; a variance counts
    as `eps` at least, and `full` adds the constant."""
    value, wanted = _ensure_floats(x=x, target=target)
    (spread,) = _ensure_floats(var=var)
    if spread.ndim == value.ndim - 1 and spread.shape != value.shape:
        spread = expand_dims(spread, axis=-1)
    kept = where(spread < _checked_number("eps", eps), eps, spread)
    difference = value - wanted
    found = (log(kept) + difference * difference / kept) * 0.5
    return _reduce_losses(found + 0.5 * math.log(2 * math.pi) if full else found, reduction)
