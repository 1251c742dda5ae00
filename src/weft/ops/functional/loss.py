"""Losses: how far predictions are from targets, element by element, then reduced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from weft.foundation.dims import Shape
from weft.foundation.dtypes import FLOATS, INDICES, SI32
from weft.foundation.errors import SpecViolation
from weft.ops.arithmetic import broadcasts, listed
from weft.ops.functional.activation import AxisChecked, capture_log_softmax
from weft.ops.functional.capture import capture, widened
from weft.ops.functional.checks import (
    Checked,
    ensure_axis_in_bounds,
    ensure_choice,
    ensure_dtype,
    ensure_known,
    ensure_rank_at_least,
    ensure_same_dtype,
    ensure_shape,
    ensure_shape_matches,
    ensure_tensor,
    wrong_value,
)
from weft.ops.functional.registry import functional
from weft.ops.session import Handle, Session
from weft.ops.tensor import Tensor

REDUCTIONS = ("mean", "sum", "none")
BATCH_MEAN = "batchmean"
_NARROW = 1 << 31
"""Classes that 32 bits can number."""


@dataclass(frozen=True)
class PairChecked(Checked):
    """A prediction and a target of one type."""

    reduction: str
    number: float = 0.0


def check_pair(
    x: Any,
    target: Any,
    reduction: Any,
    number: float = 0.0,
    reductions: Sequence[str] = REDUCTIONS,
) -> PairChecked:
    prediction, wanted = ensure_tensor("x", x), ensure_tensor("target", target)
    ensure_dtype("x", prediction, FLOATS, "floats")
    ensure_same_dtype("x", prediction, "target", wanted)
    ensure_shape_matches("x", prediction, "target", wanted)
    ensure_choice("reduction", reduction, reductions)
    return PairChecked(reduction, number)


def _limit(name: str, value: Any, least: float) -> float:
    """Where a loss stops to be square: a number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= least:
        raise wrong_value(name, value, f"it must be a number of at least {least:g}")
    return float(value)


def apply_reduction(x: Handle, reduction: str) -> Handle:
    """All elements as one number, or as they are."""
    axes = range(x.rank)
    if reduction == "none":
        return x
    return x.reduce_mean(axes) if reduction == "mean" else x.reduce_sum(axes)


def capture_mse(s: Session, checked: PairChecked, x: Handle, target: Handle) -> Handle:
    difference = x - target
    return apply_reduction(difference * difference, checked.reduction)


@functional
def mse_loss(x: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """`(x - target)²`."""
    return capture(capture_mse, check_pair(x, target, reduction), ensure_tensor("x", x), target)


def capture_l1(s: Session, checked: PairChecked, x: Handle, target: Handle) -> Handle:
    return apply_reduction((x - target).abs(), checked.reduction)


@functional
def l1_loss(x: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """`|x - target|`."""
    return capture(capture_l1, check_pair(x, target, reduction), ensure_tensor("x", x), target)


def capture_huber(s: Session, checked: PairChecked, x: Handle, target: Handle) -> Handle:
    delta = checked.number
    size = (x - target).abs()
    near = size * size * 0.5
    far = (size - 0.5 * delta) * delta
    return apply_reduction(
        s.select(size.compare("less_equal", delta), near, far), checked.reduction
    )


@functional
def huber_loss(x: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0) -> Tensor:
    """`0.5 d²` where `d = |x - target|` is at most delta, and `delta (d - 0.5 delta)` beyond."""
    checked = check_pair(x, target, reduction, _limit("delta", delta, 0))
    return capture(capture_huber, checked, ensure_tensor("x", x), target)


def capture_smooth_l1(s: Session, checked: PairChecked, x: Handle, target: Handle) -> Handle:
    beta = checked.number
    size = (x - target).abs()
    if beta == 0:
        return apply_reduction(size, checked.reduction)
    near = size * size * (0.5 / beta)
    return apply_reduction(
        s.select(size.compare("less", beta), near, size - 0.5 * beta), checked.reduction
    )


@functional
def smooth_l1_loss(x: Tensor, target: Tensor, reduction: str = "mean", beta: float = 1.0) -> Tensor:
    """`0.5 d² / beta` where `d = |x - target|` is under beta, and `d - 0.5 beta` beyond."""
    checked = check_pair(x, target, reduction, _limit("beta", beta, 0))
    return capture(capture_smooth_l1, checked, ensure_tensor("x", x), target)


def capture_bce(s: Session, checked: PairChecked, x: Handle, target: Handle) -> Handle:
    return s.cast(apply_reduction(_bce(s, widened(x), widened(target)), checked.reduction), x.dtype)


def _bce(s: Session, x: Handle, target: Handle) -> Handle:
    """Logarithms are kept over -100, so that a certain mistake costs a finite amount, and so is
    what divides the derivative, `(x - target) / max(x (1 - x), 1e-12)`."""
    low, least = -100.0, 1e-12
    inside = (x * (1.0 - x)).compare("greater_equal", least)
    fixed = s.emit("stop_gradient", x)
    p = s.select(inside, x, fixed)
    yes, no = (s.emit("maximum", q.log(), low) for q in (p, 1.0 - p))
    loss = -(target * yes + (1.0 - target) * no)
    # At the ends logarithms have no finite derivative; a line through the value has, and is 0.
    mistake = (x + fixed) * 0.5 - s.emit("stop_gradient", target)
    line = (x - fixed) * (mistake / least)
    return loss + s.select(inside, s.full(0.0, x.dtype, x.shape), line)


@functional
def binary_cross_entropy(
    x: Tensor, target: Tensor, reduction: str = "mean", *, weight: Tensor | None = None
) -> Tensor:
    """`-(target log x + (1 - target) log(1 - x))` for probabilities x, times a weight. Logarithms
    are at least -100, and `x (1 - x)`, the divisor in the derivative, is at least 1e-12, so both
    are finite at 0 and 1."""
    return _weigh_pairs(capture_bce, x, target, reduction, weight)


def _weigh_pairs(
    emit: Any, x: Tensor, target: Tensor, reduction: str, weight: Any, *more: Any
) -> Tensor:
    """A loss of pairs, each times a weight that broadcasts to x."""
    checked = check_pair(x, target, reduction)
    value = ensure_tensor("x", x)
    for name, given in (("weight", weight), *more):
        _ensure_broadcasts(name, given, value)
    if weight is None:
        return capture(emit, checked, value, target, *[given for _, given in more])
    each = capture(emit, PairChecked("none"), value, target, *[given for _, given in more])
    return capture(capture_reduced, checked, each * ensure_tensor("weight", weight))


def _ensure_broadcasts(name: str, given: Any, x: Tensor) -> None:
    if given is None:
        return
    tensor = ensure_tensor(name, given)
    ensure_same_dtype("x", x, name, tensor)
    if not broadcasts(tensor.shape, x.shape):
        raise SpecViolation(
            "BroadcastDimsInvalid",
            f"{name} {listed(tensor.shape)} does not broadcast to x {listed(x.shape)}",
            "give one number for each element, or for each along the last axes",
        )


def capture_reduced(s: Session, checked: PairChecked, x: Handle) -> Handle:
    return apply_reduction(x, checked.reduction)


def capture_bce_logits(
    s: Session, checked: PairChecked, x: Handle, target: Handle, positive: Handle | None
) -> Handle:
    soft = s.emit("maximum", x, 0.0) + (-x.abs()).exp().log1p()
    if positive is None:
        return apply_reduction(soft - x * target, checked.reduction)
    # soft is the cost of a 0, and soft - x that of a 1, of which there are more or fewer.
    share = target * positive.broadcast_to(x.shape)
    return apply_reduction((soft - x) * share + soft * (1.0 - target), checked.reduction)


@functional
def binary_cross_entropy_with_logits(
    x: Tensor,
    target: Tensor,
    reduction: str = "mean",
    *,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
) -> Tensor:
    """The same for x before the sigmoid, without overflow; `pos_weight` is the weight of the
    positive part (target 1) for each class along the last axis."""
    return _weigh_pairs(
        capture_bce_logits, x, target, reduction, weight, ("pos_weight", pos_weight)
    )


def capture_kl(s: Session, checked: PairChecked, x: Handle, target: Handle) -> Handle:
    # Where the target is 0 its term is 0, though its logarithm is not finite, and x may not be.
    positive = target.compare("greater", 0.0)
    safe = s.select(positive, target, s.full(1.0, target.dtype, target.shape))
    term = target * (safe.log() - s.select(positive, x, s.full(0.0, x.dtype, x.shape)))
    terms = s.select(positive, term, s.full(0.0, x.dtype, x.shape))
    if checked.reduction == BATCH_MEAN:
        return apply_reduction(terms, "sum") / checked.number
    return apply_reduction(terms, checked.reduction)


@functional
def kl_div(x: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """`target (log target - x)` for log-probabilities x and probabilities target. In addition to
    the usual reductions there is "batchmean", the sum divided by the size of the first axis: the
    divergence of distributions along the other axes."""
    return capture(capture_kl, _check_kl(x, target, reduction), ensure_tensor("x", x), target)


def _check_kl(x: Any, target: Any, reduction: Any) -> PairChecked:
    if reduction != BATCH_MEAN:
        return check_pair(x, target, reduction, reductions=(*REDUCTIONS, BATCH_MEAN))
    check_pair(x, target, "sum")
    ensure_rank_at_least("x", ensure_tensor("x", x), 1)
    size = ensure_known("the first axis", ensure_tensor("x", x).shape[0])
    return PairChecked(BATCH_MEAN, float(size))


# -- classes -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClassChecked(Checked):
    """Scores along `axis`, a class number for each place of the other axes."""

    axis: int
    classes: int
    reduction: str
    ignore_index: int
    smoothing: float


def check_classes(
    x: Any,
    target: Any,
    weight: Any,
    axis: Any,
    reduction: Any,
    ignore_index: Any,
    smoothing: Any = 0.0,
    probabilities: bool = False,
) -> ClassChecked:
    scores, wanted = ensure_tensor("x", x), ensure_tensor("target", target)
    ensure_dtype("x", scores, FLOATS, "floats")
    at = ensure_axis_in_bounds("x", scores, axis)
    if probabilities and wanted.dtype.is_float and wanted.shape == scores.shape:
        ensure_same_dtype("x", scores, "target", wanted)
    else:
        _check_numbers(scores, wanted, at)
    ensure_choice("reduction", reduction, REDUCTIONS)
    if isinstance(ignore_index, bool) or not isinstance(ignore_index, int):
        raise wrong_value("ignore_index", ignore_index, "it must be a whole number")
    if not isinstance(smoothing, int | float) or not 0 <= smoothing <= 1:
        raise wrong_value("label_smoothing", smoothing, "it must be a number from 0 to 1")
    classes = ensure_known("the class axis", scores.shape[at])
    if weight is not None:
        ensure_same_dtype("x", scores, "weight", ensure_tensor("weight", weight))
        ensure_shape("weight", ensure_tensor("weight", weight), (classes,), "one for each class")
    return ClassChecked(at, classes, reduction, ignore_index, float(smoothing))


def _check_numbers(scores: Tensor, wanted: Tensor, axis: int) -> None:
    """A class number for each place of the scores."""
    ensure_dtype("target", wanted, INDICES, "class numbers (si32 or si64)")
    places: Shape = (*scores.shape[:axis], *scores.shape[axis + 1 :])
    if wanted.shape != places:
        raise SpecViolation(
            "ShapeMismatch",
            f"x {listed(scores.shape)} has a place for every element of {listed(places)}, but the "
            f"target is {listed(wanted.shape)}",
            f"the target is x without its class axis {axis}",
        )


def _find_target(s: Session, checked: ClassChecked, target: Handle, shape: Shape) -> Handle:
    """Where the class of each target is, among the scores: a comparison with iota, so that a sum
    over the class axis picks elements without a gradient that scatters. An ignored target stands
    for class 0; one that is no class stops the run when it is looked up among the classes."""
    axis = checked.axis
    column = (*shape[:axis], 1, *shape[axis + 1 :])
    counted = target.compare("not_equal", checked.ignore_index)
    known = s.select(counted, target, s.full(0, target.dtype, target.shape))
    # Numbers of classes are compared for every score: the narrower, the faster.
    number = target.dtype if checked.classes > _NARROW else SI32
    target = s.iota(number, (checked.classes,), 0).take(known)
    wanted = target.reshape(column).broadcast_to(shape)
    return s.iota(number, shape, axis).compare("equal", wanted)


def _pick_target(s: Session, chosen: Handle, x: Handle, axis: int) -> Handle:
    """The element of x that is chosen at each place."""
    return s.select(chosen, x, s.full(0.0, x.dtype, x.shape)).reduce_sum([axis])


def _by_class(weight: Handle, x: Handle, axis: int) -> Handle:
    """A number for each class, at every place."""
    shape = [1] * x.rank
    shape[axis] = weight.tensor.static_shape[0]
    return weight.cast(x.dtype).reshape(shape).broadcast_to(x.shape)


def capture_nll(
    s: Session, checked: ClassChecked, x: Handle, target: Handle, weight: Handle | None
) -> Handle:
    return s.cast(_class_loss(s, checked, widened(x), target, weight), x.dtype)


def _class_loss(
    s: Session,
    checked: ClassChecked,
    x: Handle,
    target: Handle,
    weight: Handle | None,
    above: Handle | None = None,
    raw: tuple[Handle, Handle] | None = None,
) -> Handle:
    """The loss of log-probabilities x, or of x - above, where scores are so much too high. That is
    taken off what was picked: the gradient then needs no sum over the classes. `raw` are scores
    and what was taken off those of a row to make x: what is picked of them is known without it, so
    that parts of a row can be looked through by themselves."""
    axis = checked.axis
    weights = None if weight is None else _by_class(weight, x, axis)
    costs = x if weights is None else x * weights
    chosen = _find_target(s, checked, target, x.shape)
    share = None if weights is None else _pick_target(s, chosen, weights, axis)
    if raw is None or weights is not None:
        loss = -_pick_target(s, chosen, costs, axis)
    else:
        loss = raw[1].reshape(target.shape) - _pick_target(s, chosen, raw[0], axis)
    if above is not None:
        loss = above + loss if share is None else share * above + loss
    if checked.smoothing:
        spread = -costs.reduce_mean([axis])
        if above is not None:
            spread = spread + (above if weights is None else above * weights.reduce_mean([axis]))
        loss = loss * (1.0 - checked.smoothing) + spread * checked.smoothing
    counted = target.compare("not_equal", checked.ignore_index)
    zero = s.full(0.0, loss.dtype, loss.shape)
    loss = s.select(counted, loss, zero)
    if checked.reduction != "mean":
        return apply_reduction(loss, checked.reduction)
    shares = counted.cast(loss.dtype) if share is None else s.select(counted, share, zero)
    axes = range(loss.rank)
    return loss.reduce_sum(axes) / shares.reduce_sum(axes)


@functional
def nll_loss(
    x: Tensor,
    target: Tensor,
    reduction: str = "mean",
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    axis: int = -1,
) -> Tensor:
    """`-x[target]` for log-probabilities x; the mean is over the targets that are not ignored.
    `weight` is a weight for each class. A target that is not a class stops the run with
    GatherIndexOutOfBounds."""
    checked = check_classes(x, target, weight, axis, reduction, ignore_index)
    return capture(capture_nll, checked, ensure_tensor("x", x), target, weight)


def capture_cross_entropy(
    s: Session, checked: ClassChecked, x: Handle, target: Handle, weight: Handle | None
) -> Handle:
    wide = widened(x)
    if target.dtype.is_float:
        logs = capture_log_softmax(s, AxisChecked(checked.axis), wide)
        return s.cast(_share_loss(s, checked, logs, target, weight), x.dtype)
    # The largest score cancels out, and so does its slope.
    largest = wide.reduce_max([checked.axis], keepdims=True).stop_gradient()
    scores = wide - largest.broadcast_to(wide.shape)
    above = scores.exp().reduce_sum([checked.axis]).log()
    loss = _class_loss(s, checked, scores, target, weight, above, (wide, largest))
    return s.cast(loss, x.dtype)


def _share_loss(
    s: Session, checked: ClassChecked, logs: Handle, target: Handle, weight: Handle | None
) -> Handle:
    """The loss of a target that says how much of each class there is."""
    share = target.cast(logs.dtype)
    if checked.smoothing:
        share = share * (1.0 - checked.smoothing) + checked.smoothing / checked.classes
    costs = logs * share
    if weight is not None:
        costs = costs * _by_class(weight, logs, checked.axis)
    return apply_reduction(-costs.reduce_sum([checked.axis]), checked.reduction)


@functional
def cross_entropy(
    x: Tensor,
    target: Tensor,
    reduction: str = "mean",
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    axis: int = -1,
) -> Tensor:
    """`-log softmax(x)[target]`: scores x with the classes along `axis`, class numbers target.

    A float target in the shape of x contains the probability of each class instead. Targets equal
    to `ignore_index` are ignored; any other target that is not a class stops the run with
    GatherIndexOutOfBounds. `label_smoothing` distributes this fraction of each target evenly over
    all classes, and `weight` is a weight for each class."""
    checked = check_classes(
        x, target, weight, axis, reduction, ignore_index, label_smoothing, probabilities=True
    )
    return capture(capture_cross_entropy, checked, ensure_tensor("x", x), target, weight)
