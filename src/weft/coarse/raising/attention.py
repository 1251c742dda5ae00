"""Raising of attention: two products with a softmax between them, the scale and the masks wherever
they stand.

    scores = factor * (q . k) + masks       factors on q, k, the product, or before a mask
    result = softmax(scores) . v

Masks are added, or select what is hidden; one that turns out to be the causal mask becomes the
attribute. Tensors without a head or batch axis get one of extent 1. Keys and values that repeat
heads are taken before they do. Where masks show every row its own column, no row is looked for that
sees nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from weft.coarse.attention import ATTENDED
from weft.coarse.raising.matched import Matched
from weft.coarse.raising.rows import find_softmax
from weft.coarse.raising.search import Search, View
from weft.foundation.dtypes import I1, DType
from weft.foundation.numeric import wide_dtype
from weft.ptir import library
from weft.ptir.ir import Instruction, Operand, Ref
from weft.ptir.ops.contraction import DotGeneral
from weft.ptir.ops.elementwise import Compare, CompareFn
from weft.ptir.ops.movement import Iota, Transpose
from weft.ptir.ops.reduction import Reduce
from weft.ptir.term import Term
from weft.ptir.types import Shape


@dataclass
class _Scores:
    """What is known about the scores so far."""

    factor: float = 1.0
    masks: list[tuple[float, Operand]] = field(default_factory=list)
    """Added, each with a factor."""
    hidden: list[Operand] = field(default_factory=list)
    """Truth values; where one is false the score is -inf."""


@dataclass(frozen=True)
class _Wiring:
    """How the op is written: which operands are what."""

    scale: float
    causal: bool
    factors: tuple[float, ...]
    """Those of the masks."""
    turn_keys: bool
    """Whether the keys come as [..., D, S]."""
    scores: Shape
    dtype: DType
    opened: bool
    """Whether every row is known to see something."""
    zero: bool
    """Whether rows that see nothing are 0."""


def attention(view: View, root: Instruction) -> Matched | None:
    """`softmax(q k^T * scale + masks) v`, or 0 in the rows that see nothing."""
    if root.op.mnemonic == "select":
        return _with_blind_rows(view, root)
    search = Search(view)
    readers = [view.definitions.get(number) for number in view.readers.get(root.id, ())]
    reader = readers[0] if len(readers) == 1 else None
    is_rest = reader is not None and reader.op.mnemonic == "select"
    if reader is not None and is_rest and _with_blind_rows(view, reader) is not None:
        # It is all of it but for the rows that see nothing.
        return None
    return _attention(search, root, None)


def _with_blind_rows(view: View, root: Instruction) -> Matched | None:
    """An attention that is 0 in the rows that see nothing; these are shown something inside."""
    blind, number, inner = root.operands
    made = view.definition(inner)
    if view.number(number) != 0.0 or made is None or made.op.mnemonic != "dot_general":
        return None
    search = Search(view)
    search.inside.append(root.id)
    return _attention(search, made, _before_broadcast(view, blind))


def _attention(search: Search, root: Instruction, blind: Operand | None) -> Matched | None:
    view = search.view
    second = _match_product(search, Ref(root.id))
    out = view.tensor(Ref(root.id))
    if second is None or out is None or second.turned:
        return None
    found = find_softmax(search, search.cast_of(second.lhs))
    shape = None if found is None else view.shape(found[0])
    if found is None or shape is None or found[1] != len(shape) - 1:
        return None
    parts = _Scores()
    first = _first_product(search, found[0], parts)
    if first is None:
        return None
    return _match_attention(search, first, second, parts, shape, out.dtype, blind)


# -- products ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Product:
    """A matrix product over the last axes of both sides, for every index of the axes before."""

    lhs: Operand
    rhs: Operand
    turned: bool
    """Whether rhs is [..., columns, depth] rather than [..., depth, columns]."""


def _match_product(search: Search, operand: Operand) -> _Product | None:
    definition = search.take(operand, "dot_general")
    if definition is None or not isinstance(definition.op, DotGeneral):
        return None
    op, (lhs, rhs) = definition.op, definition.operands
    left, right, out = (search.view.tensor(o) for o in (lhs, rhs, operand))
    if left is None or right is None or out is None or left.dtype not in ATTENDED:
        return None
    batch = tuple(range(left.rank - 2))
    last = left.rank - 1
    if (op.batch_lhs, op.batch_rhs) != (batch, batch) or op.contract_lhs != (last,):
        return None
    if right.rank != left.rank or left.rank > 4 or op.contract_rhs not in ((last,), (last - 1,)):
        return None
    wide = wide_dtype(left.dtype)
    if op.accum_dtype not in (None, wide) or out.dtype not in (left.dtype, wide):
        return None
    return _Product(lhs, rhs, op.contract_rhs == (last,))


def _first_product(search: Search, operand: Operand, parts: _Scores) -> _Product | None:
    """The product of q and k behind factors, added masks and selections."""
    factor, operand = search.scaled(operand)
    definition = search.view.definition(operand)
    if definition is None or factor <= 0.0:
        return None
    parts.factor *= factor
    name = definition.op.mnemonic
    if name == "dot_general":
        kind = search.view.tensor(operand)
        narrow = kind is None or kind.dtype is not wide_dtype(kind.dtype)
        return None if narrow else _match_product(search, operand)
    if name == "cast":
        return None
    if name == "select":
        search.inside.append(definition.id)
        seen, inner, hidden = definition.operands
        if search.view.number(hidden) != -math.inf:
            return None
        parts.hidden.append(seen)
        return _first_product(search, inner, parts)
    if name != "add":
        return None
    search.inside.append(definition.id)
    for inner, mask in (definition.operands, definition.operands[::-1]):
        before = (parts.factor, list(parts.masks), list(parts.hidden))
        found = search.first(partial(_take_mask, search, inner, mask, parts))
        if found is not None:
            return found
        parts.factor, parts.masks, parts.hidden = before
    return None


def _take_mask(search: Search, inner: Operand, mask: Operand, parts: _Scores) -> _Product | None:
    # Factors that are still to come belong to the product alone.
    parts.masks.append((parts.factor, mask))
    return _first_product(search, inner, parts)


# -- putting it together -------------------------------------------------------------------------


def _match_attention(
    search: Search,
    first: _Product,
    second: _Product,
    parts: _Scores,
    shape: Shape,
    dtype: DType,
    blind: Operand | None,
) -> Matched | None:
    q_factor, q = search.scaled(first.lhs)
    k_factor, k = search.scaled(first.rhs)
    turn = not first.turned
    if turn:
        k, turn = _undo_transpose(search, k)
        more, k = search.scaled(k)
        k_factor *= more
    kinds = [search.view.tensor(o) for o in (q, k, second.rhs)]
    if any(kind is None or kind.dtype is not dtype for kind in kinds):
        return None
    heads = [k] if turn else [_undo_sharing(search, k, shape)]
    heads.append(_undo_sharing(search, second.rhs, shape))
    if search.view.shape(heads[0]) is None or not _same_heads(search.view, heads):
        heads = [k, second.rhs]
    causal, masks = _masks(search.view, parts, shape)
    hidden = [(math.inf, seen) for seen in parts.hidden if not _is_causal(search.view, seen, shape)]
    causal = causal or len(hidden) < len(parts.hidden)
    masks += hidden
    if blind is not None:
        shown = [_before_opened(search.view, m, blind, shape, causal=causal) for _, m in masks]
        if len(masks) != 1 or shown[0] is None:
            return None
        masks = [(masks[0][0], shown[0])]
    scale = parts.factor * q_factor * k_factor
    opened = bool(masks) and all(sees_itself(search.view, mask, shape) for _, mask in masks)
    factors = tuple(f for f, _ in masks)
    wiring = _Wiring(scale, causal, factors, turn, shape, dtype, opened, blind is not None)
    operands = (q, *heads, *(_before_broadcast(search.view, mask) for _, mask in masks))
    return Matched(operands, frozenset(search.inside), partial(_write_attention, wiring))


def _undo_transpose(search: Search, k: Operand) -> tuple[Operand, bool]:
    """The keys before their last two axes were exchanged, and whether they still are."""
    definition = search.view.definition(k)
    if definition is None or not isinstance(definition.op, Transpose):
        return k, True
    rank = len(definition.op.perm)
    if definition.op.perm != (*range(rank - 2), rank - 1, rank - 2):
        return k, True
    search.inside.append(definition.id)
    return definition.operands[0], False


def _undo_sharing(search: Search, x: Operand, scores: Shape) -> Operand:
    """Keys or values before their heads were repeated; themselves where they were not."""
    mark = len(search.inside)
    outer = search.take(x, "reshape")
    copies = search.take(outer.operands[0], "broadcast_to") if outer is not None else None
    inner = search.take(copies.operands[0], "reshape") if copies is not None else None
    if inner is not None and copies is not None and len(scores) == 4:
        source = inner.operands[0]
        own, one, many = (search.view.shape(o) for o in (source, Ref(inner.id), Ref(copies.id)))
        if own is not None and len(own) == 4 and one is not None and many is not None:
            batch, heads, rows, depth = own
            spread = len(many) == 5 and many[:2] == (batch, heads) and many[3:] == (rows, depth)
            if spread and one == (batch, heads, 1, rows, depth):
                return source
    del search.inside[mark:]
    return x


def _same_heads(view: View, heads: Sequence[Operand]) -> bool:
    shapes = [view.shape(o) for o in heads]
    return all(s is not None and s[:-2] == (shapes[0] or ())[:-2] for s in shapes)


# -- masks ---------------------------------------------------------------------------------------


def _masks(view: View, parts: _Scores, scores: Shape) -> tuple[bool, list[tuple[float, Operand]]]:
    """Whether one of the added masks is causal, and the others."""
    others = [(f, m) for f, m in parts.masks if not _is_causal(view, m, scores)]
    return len(others) < len(parts.masks), others


def _before_broadcast(view: View, mask: Operand) -> Operand:
    definition = view.definition(mask)
    if definition is not None and definition.op.mnemonic == "broadcast_to":
        return definition.operands[0]
    return mask


def _is_causal(view: View, mask: Operand, scores: Shape) -> bool:
    """Whether a mask hides exactly what lies in the future, the last row seeing everything."""
    rows, columns = scores[-2:]
    if not isinstance(rows, int) or not isinstance(columns, int):
        return False
    shape, ahead = view.shape(_before_broadcast(view, mask)), columns_ahead(view, mask)
    if ahead is not None and shape is not None and shape[-2:] == (rows, columns):
        return ahead == columns - rows
    found = view.array(_before_broadcast(view, mask))
    if found is None or found.ndim < 2 or found.shape[-2:] != (rows, columns):
        return False
    seen = np.tri(rows, columns, columns - rows, dtype=np.bool_)
    wanted = seen if found.dtype == np.bool_ else np.where(seen, 0.0, -np.inf)
    return bool(np.array_equal(found, np.broadcast_to(wanted, found.shape)))


def columns_ahead(view: View, mask: Operand) -> int | None:
    """The n for which a mask, of truth values or to be added, hides exactly the columns more than n
    behind their row, told by how it counts both: however large it is."""
    mask = _before_broadcast(view, mask)
    made = view.definition(mask)
    if made is not None and made.op.mnemonic == "select":
        seen, shown, hidden = made.operands
        if (view.number(shown), view.number(hidden)) != (0.0, -math.inf):
            return None
        return columns_ahead(view, seen)
    if made is None or not isinstance(made.op, Compare):
        return None
    kinds = {CompareFn.LESS_EQUAL: 0, CompareFn.LESS: 1}
    sides, op = list(made.operands), made.op.op
    if op in (CompareFn.GREATER_EQUAL, CompareFn.GREATER):
        sides = sides[::-1]
        op = CompareFn.LESS_EQUAL if op is CompareFn.GREATER_EQUAL else CompareFn.LESS
    column, row = (_find_counting_axis(view, side) for side in sides)
    if op not in kinds or column is None or row is None or (column[0], row[0]) != (-1, -2):
        return None
    return row[1] - column[1] - kinds[op]


def _find_counting_axis(view: View, operand: Operand) -> tuple[int, int] | None:
    """The axis, from the last one on, that an operand counts along, and what it begins with."""
    made, shape = view.definition(operand), view.shape(operand)
    if made is None or shape is None:
        return None
    if isinstance(made.op, Iota):
        return made.op.axis - len(shape), 0
    inner = _find_counting_axis(view, made.operands[0]) if made.operands else None
    before = view.shape(made.operands[0]) if made.operands else None
    if inner is None or before is None:
        return None
    axis, start = inner
    match made.op.mnemonic:
        case "cast":
            return inner
        case "add" | "sub" as name:
            number = view.number(made.operands[1])
            if number is None or not number.is_integer():
                return None
            return axis, start + int(number if name == "add" else -number)
        case "broadcast_to":
            return inner if before[axis] == shape[axis] else None
        case "reshape":
            wide = [place - len(shape) for place, size in enumerate(shape) if size != 1]
            alone = len(wide) == 1 and before[axis] == shape[wide[0]]
            return (wide[0], start) if alone else None
    return None


def _before_opened(
    view: View, mask: Operand, blind: Operand, scores: Shape, *, causal: bool
) -> Operand | None:
    """A mask before it was opened to `blind` rows, if these are those that it, and the causal mask
    beside it, let see nothing."""
    opened = view.definition(_before_broadcast(view, mask))
    if opened is None or opened.op.mnemonic != "select":
        return None
    pred, shown, inner = opened.operands
    if _before_broadcast(view, pred) != blind or view.number(shown) != 0.0:
        return None
    made = view.definition(blind)
    if made is None or not isinstance(made.op, Compare) or made.op.op is not CompareFn.EQUAL:
        return None
    largest, lowest = view.definition(made.operands[0]), view.number(made.operands[1])
    if largest is None or largest.op.mnemonic != "reduce_max" or lowest != -math.inf:
        return None
    source = largest.operands[0]
    rank = len(view.shape(source) or ())
    if not isinstance(largest.op, Reduce) or tuple(largest.op.axes) != (rank - 1,):
        return None
    seen = view.definition(source)
    if causal:
        if seen is None or seen.op.mnemonic != "select":
            return None
        pred, source, hidden = seen.operands
        if view.number(hidden) != -math.inf or not _is_causal(view, pred, scores):
            return None
    same = _before_broadcast(view, source) == _before_broadcast(view, inner)
    return inner if same else None


def sees_itself(view: View, mask: Operand, scores: Shape) -> bool:
    """Whether a mask of as many rows as columns is known to show every row its own column: it
    compares the same integers along both."""
    rows, columns = scores[-2:]
    mask = _before_broadcast(view, mask)
    made = view.definition(mask)
    while made is not None and made.op.mnemonic == "reshape":
        made = view.definition(made.operands[0])
    if made is not None and made.op.mnemonic == "select":
        seen, shown, _ = made.operands
        made = view.definition(seen) if view.number(shown) == 0.0 else None
    if made is None or not isinstance(made.op, Compare) or rows != columns:
        return False
    sides = [_laid_out(view, operand) for operand in made.operands]
    (one, across), (other, along) = sides
    if one != other or made.op.op is not CompareFn.EQUAL:
        return False
    kind = view.tensor(one)
    pair = {across[-2:], along[-2:]} == {(rows, 1), (1, columns)} and across[:-2] == along[:-2]
    return kind is not None and kind.dtype.is_integer and pair


def _laid_out(view: View, operand: Operand) -> tuple[Operand, Shape]:
    """What an operand is before it was laid out, and its shape before it was repeated."""
    operand = _before_broadcast(view, operand)
    shape = view.shape(operand) or ()
    made = view.definition(operand)
    while made is not None and made.op.mnemonic == "reshape":
        operand = made.operands[0]
        made = view.definition(operand)
    return operand, shape


# -- writing -------------------------------------------------------------------------------------


def _write_attention(wiring: _Wiring, values: Sequence[Term]) -> Term:
    q, k, v, *masks = values
    if wiring.turn_keys:
        k = k.matrix_transpose()
    four = [x.reshape(_with_heads(x.shape, 4 - x.rank)) for x in (q, k, v)]
    pairs = zip(wiring.factors, masks, strict=True)
    added = [_additive(mask, factor, wiring) for factor, mask in pairs]
    mask = _add_masks(added, wiring) if added else None
    both = q.emitter.emit(
        "weft.attention", *four, *([] if mask is None else [mask]), causal=wiring.causal,
        scale=wiring.scale, dropout=0.0, opened=wiring.opened,
    )  # fmt: skip
    out = both[0]
    sure = wiring.opened or wiring.zero
    if (added and not sure) or (wiring.causal and library.has_early_rows(*wiring.scores[-2:])):
        out = as_written(out, both[1])
    return out.reshape((*wiring.scores[:-1], v.shape[-1]))


def as_written(out: Term, lse: Term) -> Term:
    """The result with NaN in rows that see nothing: the op gives 0, the formula divides 0 by 0."""
    blind = lse.reshape((*lse.shape, 1)).compare(-math.inf, "equal")
    nothing = out.like(math.nan)
    return nothing.where(blind.broadcast_to(out.shape), out)


def _with_heads(shape: Shape, missing: int) -> Shape:
    """A shape with batch and head axes of extent 1 where these are missing."""
    return (*shape[:-2], *[1] * missing, *shape[-2:])


def _additive(mask: Term, factor: float, wiring: _Wiring) -> Term:
    """A mask to add, in the dtype of the operands where that holds it, laid out for four axes."""
    rank = len(wiring.scores)
    full = (*[1] * (rank - mask.rank), *mask.shape)
    laid = mask.reshape(full).reshape(_with_heads(full, 4 - rank))
    if laid.dtype is I1:
        return hiding(laid, -math.inf, wiring.dtype)
    return laid if factor == 1.0 else laid * factor


def hiding(seen: Term, hidden: float, dtype: DType) -> Term:
    """An i1 mask as one to add: a number where nothing is seen."""
    zero = seen.full(0.0, seen.shape, dtype)
    return zero.where(seen, seen.full(hidden, seen.shape, dtype))


def _add_masks(masks: Sequence[Term], wiring: _Wiring) -> Term:
    if len(masks) == 1:
        return masks[0]
    full: Shape = (*wiring.scores[:-2], *[1] * (4 - len(wiring.scores)), *wiring.scores[-2:])
    wide = wide_dtype(wiring.dtype)
    first, *others = [mask.cast(wide).broadcast_to(full) for mask in masks]
    return sum(others, first)
