"""Scaled dot-product attention: masks, causal order, grouped heads, and a cache of keys and values.

Two implementations compute it: the canonical composition, which the compiler finds and fuses, and
`streaming`, which walks over blocks of keys with a running maximum and sum, so that no matrix of
all scores ever exists, on any backend.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from weft.foundation.dims import Dim
from weft.foundation.dtypes import FLOATS, I1, INDICES, DType
from weft.foundation.errors import OutOfRange, SpecViolation
from weft.foundation.numeric import wide_dtype
from weft.ops.arithmetic import broadcasts, listed
from weft.ops.array.manipulation import reshape
from weft.ops.functional.capture import capture
from weft.ops.functional.checks import (
    Checked,
    ensure_axis_in_bounds,
    ensure_dtype,
    ensure_known,
    ensure_rank,
    ensure_same_backend,
    ensure_same_dtype,
    ensure_tensor,
    wrong_value,
)
from weft.ops.functional.registry import functional, implements
from weft.ops.functional.stochastic import random_state
from weft.ops.session import Handle, Session
from weft.ops.tensor import Tensor, from_array
from weft.ptir import library

BLOCK = 128
"""How many keys the streaming implementation takes at a time."""


@dataclass(frozen=True)
class AttentionChecked(Checked):
    """q [B, H, Sq, D], k [B, Hk, Sk, D], v [B, Hk, Sk, Dv], Hk a divisor of H."""

    scale: float
    causal: bool
    groups: int
    """How many heads of q share one head of k and v."""
    opened: bool
    """Whether every query sees itself."""
    dropout: float = 0.0
    """The share of weights that are dropped."""


def check_attention(
    q: Any, k: Any, v: Any, mask: Any, causal: Any, scale: Any, segments: Sequence[Any] = ()
) -> AttentionChecked:
    query, key, value = ensure_tensor("q", q), ensure_tensor("k", k), ensure_tensor("v", v)
    for name, tensor in (("q", query), ("k", key), ("v", value)):
        ensure_rank(name, tensor, 4, "(batch, heads, positions, size)")
        ensure_dtype(name, tensor, FLOATS, "floats")
        ensure_same_dtype("q", query, name, tensor)
        ensure_same_backend("q", query, name, tensor)
    batch, heads, queries, depth = query.shape
    _agree(query, key, value, batch, depth)
    groups = _heads_per_key(query, key)
    if mask is not None:
        _check_mask(ensure_tensor("mask", mask), (batch, heads, queries, key.shape[2]))
    if segments:
        _check_segments("queries", segments[0], batch, queries)
        _check_segments("keys", segments[-1], batch, key.shape[2])
    if scale is None:
        size = ensure_known("the size of a head", depth)
        scale = 1.0 / math.sqrt(size) if size else 1.0
    if not isinstance(scale, int | float):
        raise wrong_value("scale", scale, "it must be a number")
    # With one numbering for queries and keys, position i is in its own segment; a mask could hide
    # it.
    opened = len(segments) == 1 and mask is None
    return AttentionChecked(float(scale), bool(causal), groups, opened)


def _agree(query: Tensor, key: Tensor, value: Tensor, batch: Dim, depth: Dim) -> None:
    same_batch = key.shape[0] == batch == value.shape[0]
    if not same_batch or key.shape[3] != depth or key.shape[1:3] != value.shape[1:3]:
        raise SpecViolation(
            "ShapeMismatch",
            f"q {listed(query.shape)}, k {listed(key.shape)} and v {listed(value.shape)} do not "
            "belong together",
            "q is (B, H, Sq, D), k (B, Hk, Sk, D) and v (B, Hk, Sk, Dv)",
        )


def _heads_per_key(query: Tensor, key: Tensor) -> int:
    heads = ensure_known("the number of heads", query.shape[1])
    shared = ensure_known("the number of key heads", key.shape[1])
    if shared == 0 or heads % shared:
        raise SpecViolation(
            "ShapeMismatch",
            f"q {listed(query.shape)} has {heads} heads and k {listed(key.shape)} has {shared}",
            "the heads of q must be a multiple of those of k",
        )
    return heads // shared


def _check_mask(mask: Tensor, scores: tuple[Dim, ...]) -> None:
    ensure_dtype("mask", mask, {*FLOATS, I1}, "floats or booleans")
    if not broadcasts(mask.shape, scores):
        raise SpecViolation(
            "BroadcastDimsInvalid",
            f"the mask {listed(mask.shape)} does not broadcast to the scores {listed(scores)}",
            "a boolean mask says what may be seen, a float mask is added to the scores",
        )


def _check_segments(name: str, given: Any, batch: Dim, length: Dim) -> None:
    tensor = ensure_tensor("segments", given)
    ensure_dtype("segments", tensor, INDICES, "integers (si32 or si64)")
    if tensor.shape not in ((length,), (1, length), (batch, length)):
        raise SpecViolation(
            "ShapeMismatch",
            f"segments {listed(tensor.shape)} do not number the {name}, ({batch}, {length})",
            "give a number for each position, or for each position of each batch",
        )


def _repeat_heads(x: Handle, groups: int) -> Handle:
    """Every head of k or v `groups` times in a row."""
    if groups == 1:
        return x
    batch, heads, positions, depth = x.shape
    assert isinstance(heads, int)
    parted = x.reshape((batch, heads, 1, positions, depth))
    return parted.broadcast_to((batch, heads, groups, positions, depth)).reshape(
        (batch, heads * groups, positions, depth)
    )


def _additive(s: Session, mask: Handle | None, dtype: DType) -> Handle | None:
    """A mask of rank 4 to be added: 0 where a boolean mask holds and -Inf elsewhere."""
    if mask is None:
        return None
    if mask.dtype is I1:
        seen, hidden = (s.full(x, dtype, mask.shape) for x in (0.0, -math.inf))
        mask = s.select(mask, seen, hidden)
    return mask.reshape(((1,) * (4 - mask.rank)) + mask.shape)


def _same_segment(s: Session, queries: Handle, keys: Handle) -> Handle:
    """Whether query i and key j are in the same segment, `[1 or B, 1, Sq, Sk]`."""
    numbers = (queries, keys)
    batch = max(x.shape[0] if x.rank == 2 else 1 for x in numbers)
    shape = (batch, 1, queries.shape[-1], keys.shape[-1])
    sides = []
    for x, axis in zip(numbers, (2, 3), strict=True):
        laid = [x.shape[0] if x.rank == 2 else 1, 1, 1, 1]
        laid[axis] = x.shape[-1]
        sides.append(x.reshape(laid).broadcast_to(shape))
    return sides[0].compare("equal", sides[1])


def _segment_mask(s: Session, seen: Handle, mask: Handle | None, dtype: DType) -> Handle:
    """What is added: -Inf between segments, the mask inside of them."""
    hidden = s.full(-math.inf, dtype, seen.shape)
    if mask is None:
        return s.select(seen, s.full(0.0, dtype, seen.shape), hidden)
    shape = library.broadcast_dims(mask.shape, seen.shape)
    laid = (x.broadcast_to(shape) for x in (seen, mask.cast(dtype), hidden))
    return s.select(*laid)


def capture_attention(
    s: Session,
    checked: AttentionChecked,
    q: Handle,
    k: Handle,
    v: Handle,
    mask: Handle | None,
    state: Handle | None,
    *segments: Handle,
) -> Handle:
    wide = wide_dtype(q.dtype)
    mask = _additive(s, mask, wide)
    if segments:
        mask = _segment_mask(s, _same_segment(s, segments[0], segments[-1]), mask, wide)
    if state is not None:
        masks = () if mask is None else (mask,)
        settings = {"causal": checked.causal, "scale": checked.scale, "opened": checked.opened}
        given = (q, k, v, state, *masks)
        return s.emit("weft.attention", *given, dropout=checked.dropout, **settings)[0]
    return library.attention(
        q,
        _repeat_heads(k, checked.groups),
        _repeat_heads(v, checked.groups),
        mask=mask,
        causal=checked.causal,
        scale=checked.scale,
        opened=checked.opened,
    )


@functional
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    segments: Tensor | tuple[Tensor, Tensor] | None = None,
    dropout: float = 0.0,
    seed: Any = None,
    offset: Any = 0,
) -> Tensor:
    """`softmax(q k^T * scale + mask) v` for q [B, H, Sq, D] and k, v [B, Hk, Sk, D], or all of them
    without B, or without B and H.

    Hk may be a divisor of H: then groups of heads share keys and values. A boolean mask is true
    where a query may attend to a key, a float mask is added to the scores; both broadcast to [B, H,
    Sq, Sk]. With `causal`, query i attends to keys up to i + Sk - Sq. Scores and softmax are f32
    (f64 for f64). If masks hide every key from a query, its result is 0, and so are the gradients
    through it; without keys (Sk = 0) all results are 0.

    `segments`, integers [S] or [B, S], packs sequences of different lengths: a position attends
    only to positions with the same number. A pair of such arrays gives the numbers of queries and
    of keys. No mask of [Sq, Sk] is stored; on a GPU, blocks of keys that are hidden from all
    queries of a tile are not loaded. `segments_of` computes the numbers from offsets.

    With `dropout`, this fraction of the weights is set to 0 and the others are divided by `1 -
    dropout`. Seed and offset determine which weights, as in `F.dropout`; no mask is stored."""
    drawn = (dropout, seed, offset)
    return _attend_in_batch(capture_attention, q, k, v, mask, causal, scale, segments, drawn)


def _attend_in_batch(
    emit: Any, q: Any, k: Any, v: Any, mask: Any, causal: bool, scale: float | None, segments: Any,
    drawn: tuple[Any, Any, Any],
) -> Tensor:  # fmt: skip
    """q, k and v without batch, or without heads too, are a batch of one, with one head."""
    if segments is None:
        segments = ()
    elif not isinstance(segments, tuple):
        segments = (segments,)
    elif len(segments) != 2:
        raise wrong_value("segments", segments, "a pair has those of queries and those of keys")
    tensors = [ensure_tensor(name, x) for name, x in (("q", q), ("k", k), ("v", v))]
    rank = tensors[0].ndim
    if rank not in (2, 3) or any(x.ndim != rank for x in tensors):
        checked = check_attention(q, k, v, mask, causal, scale, segments)
        checked, state = _with_dropout(checked, *drawn)
        return capture(emit, checked, *tensors, mask, state, *segments)
    query, key, value = (reshape(x, (*(1,) * (4 - rank), *x.shape)) for x in tensors)
    checked = check_attention(query, key, value, mask, causal, scale, segments)
    checked, state = _with_dropout(checked, *drawn)
    found = capture(emit, checked, query, key, value, mask, state, *segments)
    return reshape(found, found.shape[4 - rank :])


def _with_dropout(
    checked: AttentionChecked, rate: Any, seed: Any, offset: Any
) -> tuple[AttentionChecked, Tensor | None]:
    """What was checked, with the rate, and the state that what is dropped is drawn from."""
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < 1:
        raise wrong_value("dropout", rate, "it must be a number from 0 on, less than 1")
    if rate == 0:
        return checked, None
    if seed is None:
        raise wrong_value("seed", seed, "dropout draws from a seed; give one for every step")
    return replace(checked, dropout=float(rate)), random_state(seed, offset)


def _streams(
    q: Any,
    k: Any,
    v: Any,
    mask: Any = None,
    *,
    causal: bool = False,
    scale: Any = None,
    segments: Any = None,
    dropout: Any = 0.0,
    seed: Any = None,
    offset: Any = 0,
) -> bool:
    return (
        dropout == 0
        and isinstance(k, Tensor)
        and 2 <= k.ndim <= 4
        and all(isinstance(d, int) for d in k.shape)
    )


def _block_scores(
    s: Session,
    checked: AttentionChecked,
    q: Handle,
    keys: Handle,
    mask: Handle | None,
    start: int,
    columns: int,
) -> Handle:
    """The scores of all queries against one block of keys."""
    wide = wide_dtype(q.dtype)
    scores = q.dot_general(
        keys, contract=([3], [3]), batch=([0, 1], [0, 1]), accum_dtype=wide, out_dtype=wide
    )
    scores = scores * checked.scale
    if mask is not None:
        full = mask.cast(wide).broadcast_to((*scores.shape[:3], columns))
        limits = [*scores.shape[:3], start + int(scores.shape[3])]
        scores = scores + full.slice([0, 0, 0, start], limits)  # type: ignore[arg-type]
    if checked.causal:
        scores = s.select(
            _find_seen(s, scores, start, columns), scores, s.full(-math.inf, wide, scores.shape)
        )
    return scores


def _find_seen(s: Session, scores: Handle, start: int, columns: int) -> Handle:
    """Whether query i may see key j: j <= i + columns - rows."""
    rows = scores.shape[2]
    assert isinstance(rows, int)
    row = s.iota("si32", scores.shape, 2) + (columns - rows)
    column = s.iota("si32", scores.shape, 3) + start
    return column.compare("less_equal", row)


def capture_streaming(
    s: Session,
    checked: AttentionChecked,
    q: Handle,
    k: Handle,
    v: Handle,
    mask: Handle | None,
    _: None,
    *segments: Handle,
) -> Handle:
    """Online softmax: after each block, old sums are scaled to the new maximum."""
    keys, values = _repeat_heads(k, checked.groups), _repeat_heads(v, checked.groups)
    added = _additive(s, mask, wide_dtype(q.dtype))
    wide = wide_dtype(q.dtype)
    columns = int(keys.shape[2])
    if columns == 0:
        return s.full(0.0, q.dtype, (*q.shape[:3], values.shape[3]))
    rows = (*q.shape[:3], 1)
    best, total = s.full(-math.inf, wide, rows), s.full(0.0, wide, rows)
    out = s.full(0.0, wide, (*q.shape[:3], values.shape[3]))
    for start in range(0, columns, BLOCK):
        stop = min(start + BLOCK, columns)
        scores = _block_scores(s, checked, q, _slice_rows(keys, start, stop), added, start, columns)
        if segments:
            of_keys = segments[-1]
            front = [0] * (of_keys.rank - 1), [*of_keys.shape[:-1]]
            block = of_keys.slice([*front[0], start], [*front[1], stop])  # type: ignore[list-item]
            seen = _same_segment(s, segments[0], block).broadcast_to(scores.shape)
            scores = s.select(seen, scores, s.full(-math.inf, wide, scores.shape))
        best, total, out = _fold_block(
            s, scores, _slice_rows(values, start, stop), best, total, out
        )
    one = s.full(1.0, wide, total.shape)
    # A row from which every key is hidden has the sum 0, and is 0 itself.
    divisor = s.select(total.compare("equal", 0.0), one, total)
    return s.cast(out / divisor.broadcast_to(out.shape), q.dtype)


def _slice_rows(x: Handle, start: int, stop: int) -> Handle:
    limits = [*x.shape[:2], stop, x.shape[3]]
    return x.slice([0, 0, start, 0], limits)  # type: ignore[arg-type]


def _fold_block(
    s: Session, scores: Handle, values: Handle, best: Handle, total: Handle, out: Handle
) -> tuple[Handle, Handle, Handle]:
    """One block of keys taken into the running maximum, sum and result."""
    wide = scores.dtype
    top = s.emit("maximum", best, scores.reduce_max([3], keepdims=True))
    # A row that has seen nothing yet has the maximum -Inf, and -Inf - -Inf is NaN.
    safe = s.select(top.compare("equal", -math.inf), s.full(0.0, wide, top.shape), top)
    weights = (scores - safe.broadcast_to(scores.shape)).exp()
    # exp(best - top): what was added up was exp(s - best), and exp(s - top) is that times this.
    # Where nothing was seen, it is exp(-Inf) = 0.
    shrink = (best - safe).exp()
    total = total * shrink + weights.reduce_sum([3], keepdims=True)
    part = weights.cast(values.dtype).dot_general(
        values, contract=([3], [2]), batch=([0, 1], [0, 1]), accum_dtype=wide, out_dtype=wide
    )
    return top, total, out * shrink.broadcast_to(out.shape) + part


@implements("attention", "streaming", _streams)
def attention_streaming(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    segments: Tensor | tuple[Tensor, Tensor] | None = None,
    dropout: float = 0.0,
    seed: Any = None,
    offset: Any = 0,
) -> Tensor:
    """The same, over blocks of keys."""
    drawn = (dropout, seed, offset)
    return _attend_in_batch(capture_streaming, q, k, v, mask, causal, scale, segments, drawn)


@dataclass(frozen=True)
class SegmentsChecked(Checked):
    """How many positions are numbered."""

    length: int


def capture_segments(s: Session, checked: SegmentsChecked, offsets: Handle) -> Handle:
    """How many offsets behind the first are not after a position."""
    count = int(offsets.shape[0])
    later = offsets.slice([1], [count])
    shape = (checked.length, count - 1)
    place = s.iota(offsets.dtype, shape, 0)
    begun = later.reshape((1, count - 1)).broadcast_to(shape).compare("less_equal", place)
    return begun.cast("si32").reduce_sum([1])


@functional
def segments_of(offsets: Tensor, length: int) -> Tensor:
    """For each of `length` positions the number of the sequence that contains it, [length].
    Sequence i begins at `offsets[i]`, the first one at 0, and the last offset is the end of the
    last sequence, as in `cu_seqlens` of other libraries. Positions after the end form one more
    sequence."""
    given = ensure_tensor("offsets", offsets)
    ensure_dtype("offsets", given, INDICES, "integers (si32 or si64)")
    ensure_rank("offsets", given, 1, "(one offset for each sequence, and the end)")
    if ensure_known("the number of offsets", given.shape[0]) == 0:
        raise wrong_value("offsets", given.shape, "the first sequence begins at 0")
    if not isinstance(length, int) or length < 0:
        raise wrong_value("length", length, "it must be a number of positions")
    return capture(capture_segments, SegmentsChecked(length), given)


@dataclass(frozen=True)
class CacheChecked(Checked):
    """Where the new entries go."""

    axis: int


def check_cache(cache: Any, new: Any, position: Any, axis: Any) -> CacheChecked:
    held, added = ensure_tensor("cache", cache), ensure_tensor("new", new)
    ensure_same_dtype("cache", held, "new", added)
    ensure_rank("new", added, held.ndim, "as the cache has")
    at = ensure_axis_in_bounds("cache", held, axis)
    rest = [(h, n) for i, (h, n) in enumerate(zip(held.shape, added.shape, strict=True)) if i != at]
    fits = ensure_known("new", added.shape[at]) <= ensure_known("the cache", held.shape[at])
    if not fits or any(h != n for h, n in rest):
        raise SpecViolation(
            "ShapeMismatch",
            f"new {listed(added.shape)} does not fit into the cache {listed(held.shape)}",
            f"all axes but axis {at} must be equal, and that one no longer than the cache's",
        )
    for dim in added.shape:
        ensure_known("an axis of new", dim)
    where = ensure_tensor("position", _check_position(position, held, added, at))
    ensure_dtype("position", where, INDICES, "integers (si32 or si64)")
    ensure_rank("position", where, 0, "(one number)")
    return CacheChecked(at)


def _check_position(position: Any, held: Tensor, added: Tensor, axis: int) -> Any:
    """A position that is written out must leave room for what is new; one that is a tensor is
    clamped when the program runs."""
    if isinstance(position, Tensor) or not hasattr(position, "__index__"):
        return position
    room = int(held.shape[axis]) - int(added.shape[axis])
    if not 0 <= operator.index(position) <= room:
        raise OutOfRange(
            "InvalidAttributeValue",
            f"new {listed(added.shape)} at position {position} of axis {axis} leaves the cache "
            f"{listed(held.shape)}",
            f"positions run from 0 to {room}",
        )
    return np.asarray(position, np.int32)


def capture_update_cache(
    s: Session, checked: CacheChecked, cache: Handle, new: Handle, position: Handle
) -> Handle:
    zero = s.scalar(0, position.dtype).reshape((1,))
    starts = [
        position.reshape((1,)) if axis == checked.axis else zero for axis in range(cache.rank)
    ]
    where = s.concat(starts, 0) if len(starts) > 1 else starts[0]
    return s.emit("dynamic_update_slice", cache, new, where, sizes=new.shape)


@functional
def update_cache(cache: Tensor, new: Tensor, position: Any, axis: int = 2) -> Tensor:
    """The cache with `new` written at `position` along `axis`: one dynamic_update_slice, which runs
    in place if the cache is donated or is state.

    It is an error if `position` is a number that leaves no room for `new`. The value of a tensor is
    known only when the program runs; it is clamped so that `new` lies inside the cache."""
    checked = check_cache(cache, new, position, axis)
    if not isinstance(position, Tensor):
        position = from_array(np.asarray(position, np.int32))
    return capture(capture_update_cache, checked, ensure_tensor("cache", cache), new, position)
