"""Raising of attention whose axes stand in any order, as einsums and `jax.nn.dot_product_attention`
write it.

    weights = softmax(factor * dot_general(q, k) + masks)        axes in one order, or another
    result  = dot_general(weights, v), or dot_general(v, weights)

Every axis is named by the axis of the weights that it is: `batch` are those that both products have
in common, `columns` is the one that is summed over, and of those that only queries have, the first
is `rows` and the others are `groups` of heads that share keys. Where a mask writes a large negative
number instead of -inf, it is added: a score beside it is lost in rounding. Sizes must be known.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

import numpy as np

from weft.coarse.attention import ATTENDED
from weft.coarse.raising.attention import as_written, columns_ahead, hiding
from weft.coarse.raising.matched import Matched
from weft.coarse.raising.rows import find_softmax
from weft.coarse.raising.search import MOST_STEPS, Search, View
from weft.foundation.dtypes import I1, DType
from weft.foundation.numeric import wide_dtype
from weft.ptir.ir import Instruction, Operand, Ref
from weft.ptir.ops.contraction import DotGeneral
from weft.ptir.ops.movement import BroadcastTo, Reshape, Transpose
from weft.ptir.term import Term
from weft.ptir.types import Shape, TensorType

Axes: TypeAlias = tuple[int, ...]
"""Axes of a tensor by name: which axis of the weights each one is."""
DEPTH = -1
"""The name of the axis that only the values have."""
ONCE = -2
"""The name of an axis of extent 1 along which a mask is repeated."""
LOWEST_SCORE = -1e30
"""A mask with this number or less hides a score: no score beside it is left after rounding."""


@dataclass(frozen=True)
class _Side:
    """One side of a product, and which of its axes are what."""

    operand: Operand
    batch: Axes
    contract: Axes
    free: Axes


@dataclass(frozen=True)
class _Mask:
    operand: Operand
    axes: Axes
    factor: float
    """Of a mask that is added."""
    hidden: float = 0.0
    """What a score is where a mask of truth values is false."""


@dataclass
class _Scores:
    factor: float = 1.0
    masks: list[_Mask] = field(default_factory=list)


@dataclass(frozen=True)
class _Wiring:
    """How the op is written: names of axes, and how the operands are turned."""

    sizes: tuple[int, ...]
    batch: Axes
    groups: Axes
    rows: Axes
    columns: int
    result: Axes
    turns: tuple[Axes, Axes, Axes]
    scale: float
    causal: bool
    masks: tuple[_Mask, ...]
    dtype: DType

    @property
    def lead(self) -> Axes:
        """The axes that are one batch axis for the op."""
        return self.batch[:-1] or self.batch

    @property
    def heads(self) -> Axes:
        """The axes that are the heads of the keys."""
        return self.batch[len(self.lead) :]

    def extent(self, axes: Axes) -> int:
        return math.prod(self.sizes[axis] for axis in axes)


def turned_attention(view: View, root: Instruction) -> Matched | None:
    """`softmax(q k^T * scale + masks) v` with the axes of both products in any order."""
    sides = _product_sides(view, root)
    if sides is None:
        return None
    for weights, values in (sides, sides[::-1]):
        search = Search(view)
        search.inside.append(root.id)
        found = _match_turned(search, root, weights, values)
        if found is not None:
            return found
    return None


def _product_sides(view: View, root: Instruction) -> tuple[_Side, _Side] | None:
    if not isinstance(root.op, DotGeneral):
        return None
    op, (lhs, rhs) = root.op, root.operands
    left, right = view.tensor(lhs), view.tensor(rhs)
    out = view.tensor(Ref(root.id))
    if (
        out is None
        or left is None
        or right is None
        or left.dtype not in ATTENDED
        or left.dtype != right.dtype
    ):
        return None
    wide = wide_dtype(left.dtype)
    if op.accum_dtype not in (None, wide) or out.dtype not in (left.dtype, wide):
        return None
    return (
        _side(lhs, op.batch_lhs, op.contract_lhs, left.rank),
        _side(rhs, op.batch_rhs, op.contract_rhs, right.rank),
    )


def _side(operand: Operand, batch: Axes, contract: Axes, rank: int) -> _Side:
    free = tuple(axis for axis in range(rank) if axis not in (*batch, *contract))
    return _Side(operand, tuple(batch), tuple(contract), free)


def _match_turned(
    search: Search, root: Instruction, weights: _Side, values: _Side
) -> Matched | None:
    view = search.view
    if len(weights.contract) != 1 or len(values.free) != 1:
        return None
    found = find_softmax(search, search.cast_of(weights.operand))
    if found is None or found[1] != weights.contract[0]:
        return None
    sizes = view.shape(found[0])
    parts = _Scores()
    first = None
    if sizes is not None and all(isinstance(size, int) for size in sizes):
        first = _first_product(search, found[0], tuple(range(len(sizes))), parts)
    both = None if first is None else _queries_and_keys(view, *first, weights)
    if both is None or sizes is None:
        return None
    (queries, named), keys = both
    kinds = [view.tensor(o) for o in (queries.operand, keys.operand, values.operand)]
    out = view.tensor(Ref(root.id))
    if out is None or any(k is None or k.dtype is not out.dtype or not k.is_static for k in kinds):
        return None
    wiring = _make_wiring(sizes, out, root, parts, (queries, named), keys, (weights, values))
    wiring = _with_masks(view, wiring, parts)
    operands = (queries.operand, keys.operand, values.operand, *(m.operand for m in wiring.masks))
    return Matched(operands, frozenset(search.inside), partial(_write_attention, wiring))


def _first_product(
    search: Search, operand: Operand, axes: Axes, parts: _Scores
) -> tuple[Instruction, Axes] | None:
    """The product of queries and keys behind factors, masks and turns, and its axes by name."""
    for _ in range(MOST_STEPS):
        factor, operand = search.scaled(operand)
        parts.factor *= factor
        definition = search.view.definition(operand)
        if definition is None or factor <= 0.0:
            return None
        if isinstance(definition.op, DotGeneral):
            kind = search.view.tensor(operand)
            narrow = kind is None or kind.dtype is not wide_dtype(kind.dtype)
            search.inside.append(definition.id)
            return None if narrow else (definition, axes)
        if isinstance(definition.op, Transpose):
            axes = _before_turn(axes, definition.op.perm)
            operand = definition.operands[0]
        elif definition.op.mnemonic == "select":
            seen, operand, hidden = definition.operands
            number = search.view.number(hidden)
            if number is None or number > LOWEST_SCORE:
                return None
            parts.masks.append(_Mask(seen, axes, 1.0, number))
        elif definition.op.mnemonic == "add":
            search.inside.append(definition.id)
            return _take_summand(search, definition, axes, parts)
        else:
            return None
        search.inside.append(definition.id)
    return None


def _take_summand(
    search: Search, definition: Instruction, axes: Axes, parts: _Scores
) -> tuple[Instruction, Axes] | None:
    """One operand of a sum is a mask, the other leads to the product."""
    before = replace(parts, masks=list(parts.masks))
    for inner, mask in (definition.operands, definition.operands[::-1]):
        parts.masks.append(_Mask(mask, axes, parts.factor))
        found = search.first(partial(_first_product, search, inner, axes, parts))
        if found is not None:
            return found
        parts.factor, parts.masks = before.factor, list(before.masks)
    return None


def _before_turn(axes: Axes, perm: Sequence[int]) -> Axes:
    found = dict(zip(perm, axes, strict=True))
    return tuple(found[axis] for axis in range(len(perm)))


def _queries_and_keys(
    view: View, first: Instruction, axes: Axes, weights: _Side
) -> tuple[tuple[_Side, dict[int, int]], _Side] | None:
    """The sides of the first product, those of the queries with the place of every axis; the axes
    of the keys are in the order of the weights' batch axes."""
    sides = _product_sides(view, first)
    if sides is None or any(len(side.contract) != 1 for side in sides):
        return None
    batch = axes[: len(sides[0].batch)]
    if sorted(batch) != sorted(weights.batch):
        return None
    names = [_axes_by_name(sides[0], axes, len(batch))]
    names.append(_axes_by_name(sides[1], axes, len(batch) + len(sides[0].free)))
    for q, k in ((0, 1), (1, 0)):
        if len(sides[k].free) == 1 and weights.contract[0] in names[k]:
            keys = replace(sides[k], batch=tuple(names[k][name] for name in weights.batch))
            return (sides[q], names[q]), keys
    return None


def _axes_by_name(side: _Side, axes: Axes, start: int) -> dict[int, int]:
    """Where the axes with these names are."""
    found = dict(zip(axes, side.batch, strict=False))
    return found | dict(zip(axes[start:], side.free, strict=False))


def _make_wiring(
    sizes: Shape,
    out: TensorType,
    root: Instruction,
    parts: _Scores,
    queries: tuple[_Side, dict[int, int]],
    keys: _Side,
    second: tuple[_Side, _Side],
) -> _Wiring:
    weights, values = second
    extents = tuple(int(size) for size in sizes if isinstance(size, int))
    side, places = queries
    free = sorted(weights.free, key=lambda name: places[name])
    rows = tuple(([name for name in free if extents[name] > 1] or free)[:1])
    groups = tuple(name for name in free if name not in rows)
    turns = (
        (*(places[name] for name in (*weights.batch, *groups, *rows)), *side.contract),
        (*keys.batch, *keys.free, *keys.contract),
        (*values.batch, *values.contract, *values.free),
    )
    ends = (weights.free, (DEPTH,))
    left, right = ends if root.operands[0] == weights.operand else ends[::-1]
    result = (*weights.batch, *left, *right)
    return _Wiring(
        extents, weights.batch, groups, rows, weights.contract[0], result, turns,
        parts.factor, False, (), out.dtype,
    )  # fmt: skip


# -- masks ---------------------------------------------------------------------------------------


def _with_masks(view: View, wiring: _Wiring, parts: _Scores) -> _Wiring:
    masks = [_before_repeats(view, mask) for mask in parts.masks]
    others = [mask for mask in masks if not _is_causal(view, mask, wiring)]
    return replace(wiring, causal=len(others) < len(masks), masks=tuple(others))


def _before_repeats(view: View, mask: _Mask) -> _Mask:
    """The mask before it was repeated, turned and given axes of extent 1."""
    operand, axes = mask.operand, mask.axes
    for _ in range(MOST_STEPS):
        definition = view.definition(operand)
        outer = view.shape(operand)
        inner = None if definition is None else view.shape(definition.operands[0])
        if definition is None or outer is None or inner is None:
            break
        if isinstance(definition.op, Transpose):
            axes = _before_turn(axes, definition.op.perm)
        elif isinstance(definition.op, BroadcastTo):
            aligned = axes[len(outer) - len(inner) :]
            axes = tuple(ONCE if n == 1 else name for n, name in zip(inner, aligned, strict=True))
        elif isinstance(definition.op, Reshape) and _sizes_above_one(inner) == _sizes_above_one(
            outer
        ):
            left = iter([name for n, name in zip(outer, axes, strict=True) if n != 1])
            axes = tuple(ONCE if n == 1 else next(left) for n in inner)
        elif definition.op.mnemonic == "bitwise_and":
            others = [o for o in definition.operands if view.number(o) != 1.0]
            if len(others) != 1 or view.shape(others[0]) != outer:
                break
            operand = others[0]
            continue
        else:
            break
        operand = definition.operands[0]
    return replace(mask, operand=operand, axes=axes)


def _sizes_above_one(shape: Shape) -> list[object]:
    return [size for size in shape if size != 1]


def _is_causal(view: View, mask: _Mask, wiring: _Wiring) -> bool:
    """Whether a mask hides exactly what lies in the future. Every row then sees something, so that
    it does not matter which number hides the others."""
    order = (*wiring.rows, wiring.columns)
    named = [name for name in mask.axes if name != ONCE]
    if sorted(named) != sorted(order) or len(order) != 2:
        return False
    count, columns = (wiring.sizes[name] for name in order)
    ahead = columns_ahead(view, mask.operand) if mask.axes[-2:] == order else None
    if ahead is not None and count <= columns:
        return ahead == columns - count
    found = view.array(mask.operand) if count <= columns else None
    if found is None:
        return False
    flat = found.reshape([n for n, name in zip(found.shape, mask.axes, strict=True) if name >= 0])
    seen = np.tri(count, columns, columns - count, dtype=np.bool_)
    wanted = seen if found.dtype == np.bool_ else np.where(seen, 0.0, -np.inf)
    return bool(np.array_equal(flat if named == list(order) else flat.T, wanted))


# -- writing -------------------------------------------------------------------------------------


def _write_attention(wiring: _Wiring, values: Sequence[Term]) -> Term:
    q, k, v = (x.transpose(turn) for x, turn in zip(values[:3], wiring.turns, strict=True))
    lead, heads = wiring.extent(wiring.lead), wiring.extent(wiring.heads)
    rows, columns = wiring.extent(wiring.rows), wiring.sizes[wiring.columns]
    shared = heads * wiring.extent(wiring.groups)
    q = q.reshape((lead, shared, rows, q.shape[-1]))
    k, v = (x.reshape((lead, heads, columns, x.shape[-1])) for x in (k, v))
    pairs = zip(wiring.masks, values[3:], strict=True)
    masks = [_additive(wiring, mask, value) for mask, value in pairs]
    both = q.emitter.emit(
        "weft.attention", q, k, v, *_total(masks, wiring.dtype), causal=wiring.causal,
        scale=wiring.scale, dropout=0.0,
    )  # fmt: skip
    blind = any(mask.hidden == -math.inf or not mask.hidden for mask in wiring.masks)
    out = as_written(both[0], both[1]) if blind else both[0]
    now = (*wiring.batch, *wiring.groups, *wiring.rows)
    out = out.reshape((*(wiring.sizes[name] for name in now), v.shape[-1]))
    return out.transpose([(*now, DEPTH).index(name) for name in wiring.result])


def _additive(wiring: _Wiring, mask: _Mask, value: Term) -> Term:
    """A mask to add, laid out as the scores of the op are."""
    parts = (wiring.lead, (*wiring.heads, *wiring.groups), wiring.rows, (wiring.columns,))
    order = [name for part in parts for name in part]
    single = [place for place, name in enumerate(mask.axes) if name == ONCE]
    places = [mask.axes.index(name) for name in order if name in mask.axes]
    laid = value.transpose((*single, *places))
    whole = [tuple(_mask_extents(wiring, mask, part)) for part in parts]
    present = [wiring.sizes[name] if name in mask.axes else 1 for name in order]
    laid = laid.reshape(present).broadcast_to([size for part in whole for size in part])
    laid = laid.reshape([math.prod(part) for part in whole])
    if laid.dtype is not I1:
        return laid if mask.factor == 1.0 else laid * mask.factor
    dtype = wide_dtype(wiring.dtype) if math.isfinite(mask.hidden) else wiring.dtype
    return hiding(laid, mask.hidden, dtype)


def _mask_extents(wiring: _Wiring, mask: _Mask, part: Axes) -> Iterator[int]:
    """The extents of axes that become one: all repeated where one of them is not."""
    some = any(name in mask.axes for name in part)
    return (wiring.sizes[name] if some else 1 for name in part)


def _total(masks: Sequence[Term], dtype: DType) -> list[Term]:
    if len(masks) <= 1:
        return list(masks)
    full = tuple(max(sizes) for sizes in zip(*(mask.shape for mask in masks), strict=True))
    first, *others = [mask.cast(wide_dtype(dtype)).broadcast_to(full) for mask in masks]
    return [sum(others, first)]
