"""Scaled dot-product attention: the formulas of its result and of its gradient, and the op.

Both formulas take heads second, `[B, H, S, D]`. Queries may have more heads than keys and values
(grouped-query attention): then consecutive query heads share one. The forward formula is the
library form, so compilers find an attention in it. The backward formula never sees the weights of
the forward pass: it computes them again from the scores and their log-sum-exp.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from weft.coarse.rules import check_algorithms, check_probability, check_scale, same_type
from weft.foundation.dtypes import BF16, F16, F32, F64, SI64
from weft.foundation.numeric import wide_dtype
from weft.ptir import library
from weft.ptir.autodiff.definitions import definition, known_number
from weft.ptir.composite import Composite
from weft.ptir.ir import Operand
from weft.ptir.op import Op, coarse_op
from weft.ptir.ops.elementwise import BinaryFn, Cast, ElementwiseBinary, Select
from weft.ptir.ops.movement import BroadcastTo, Reshape
from weft.ptir.ops.random import STATE
from weft.ptir.rules import (
    invalid_attribute,
    rank_is,
    same_dim,
    same_dtype,
    show,
    violation,
)
from weft.ptir.schema import Bool, Float, ListOf, Maybe, String, Usize, attr
from weft.ptir.tape import Tape
from weft.ptir.term import Cotangents, Parts, Pullback, Term
from weft.ptir.types import Dim, Shape, Symbol, TensorType, TupleType, ValueType, symbols_of

ATTENDED = frozenset({F16, BF16, F32, F64})
"""What attention is defined for."""
ALGORITHMS = ("online_softmax", "streaming_softmax_2pass")


@dataclass(frozen=True)
class Setting:
    """What an attention does besides multiplying."""

    scale: float
    causal: bool = False
    dropout: float = 0.0
    mask: Term | None = None
    state: Term | None = None
    """Where the dropped weights come from; only with dropout."""
    opened: bool = False
    """Whether the masks hide everything from no row."""

    def kept(self, weights: Term) -> Term:
        """Weights, or their cotangents, with the dropped ones 0 and the others larger for it."""
        if self.state is None or self.dropout == 0.0:
            return weights
        unit = self.state.philox_uniform(shape=weights.shape, dtype=F32)
        keeps = unit.compare(self.dropout, "greater_equal")
        return (weights * (1.0 / (1.0 - self.dropout))).where(keeps)


def shared_heads(x: Term, heads: Dim) -> Term:
    """Keys or values with every head repeated for each query head that it serves."""
    batch, own, rows, depth = x.shape
    if own == heads:
        return x
    if isinstance(own, Symbol) or isinstance(heads, Symbol):
        raise violation("DynamicDimensionMismatch", f"{heads} query heads cannot share {own}")
    # Head h of keys serves the query heads h * n to h * n + n - 1.
    one = x.reshape((batch, own, 1, rows, depth))
    copies = one.broadcast_to((batch, own, heads // own, rows, depth))
    return copies.reshape((batch, heads, rows, depth))


def attend(q: Term, k: Term, v: Term, setting: Setting) -> tuple[Term, Term, Term]:
    """The result `[B, H, Sq, D]`, the log-sum-exp of the scores `[B, H, Sq]`, and the weights after
    dropout `[B, H, Sq, Sk]`."""
    heads = q.shape[1]
    scores, blind = _scores(q, shared_heads(k, heads), setting)
    largest, powers, total = library.exponentials(scores, 3)
    weights = setting.kept(powers / total.broadcast_to(scores.shape))
    values = shared_heads(v, heads)
    out = library.attention_values(weights.cast(v.dtype), values, q.dtype)
    lse = library.unseen(largest + total.log(), blind, -math.inf)
    results = (library.unseen(x, blind, 0.0) for x in (out, weights))
    return next(results), lse.reshape(scores.shape[:3]), next(results)


def _scores(q: Term, k: Term, setting: Setting) -> tuple[Term, Term | None]:
    return library.attention_scores(
        q,
        k,
        mask=setting.mask,
        causal=setting.causal,
        scale=setting.scale,
        opened=setting.opened,
    )


@dataclass(frozen=True)
class Back:
    """The cotangents of an attention."""

    q: Term
    """In the dtype that is computed in, `[B, H, Sq, D]`."""
    k: Term
    v: Term
    scores: Term
    """`[B, H, Sq, Sk]`."""
    rows: Term
    """The inner product of each result row with its cotangent, `[B, H, Sq]`."""


def attend_backward(
    q: Term,
    k: Term,
    v: Term,
    out: Term,
    lse: Term,
    dout: Term,
    setting: Setting,
    dlse: Term | None = None,
    dweights: Term | None = None,
) -> Back:
    """The cotangents of q, k, v and the scores, from those of the result, the log-sum-exp and the
    weights after dropout. What is dropped is drawn again: a truth for every weight would have to
    wait in memory."""
    if setting.state is not None:
        setting = replace(setting, state=setting.state.barrier(dout))
    heads, wide = q.shape[1], wide_dtype(q.dtype)
    keys, values = shared_heads(k, heads), shared_heads(v, heads)
    scores, blind = _scores(q, keys, setting)
    lse_column = lse.cast(wide).reshape((*scores.shape[:3], 1))
    # The weights of a row that sees nothing are 0: exp(scores - inf).
    lse_column = library.unseen(lse_column, blind, math.inf)
    weights = (scores - lse_column.broadcast_to(scores.shape)).exp()
    if setting.mask is not None and not setting.opened and not _only_hides(setting.mask):
        sides = scores.shape[-2:]
        sums = library.flat_rows(setting.mask.cast(wide), *sides, causal=setting.causal)
        weights = weights * (sums.like(1.0) / sums).broadcast_to(scores.shape)
    rows = (dout.cast(wide) * out.cast(wide)).sum([3])
    dropped, dproduct, offset = (
        setting.kept(weights),
        _multiply_heads(dout, values, (3,), (3,)),
        rows,
    )
    if dweights is not None:
        dproduct = dproduct + dweights.cast(wide)
        offset = offset + (dweights.cast(wide) * dropped).sum([3])
    if dlse is not None:
        offset = offset - dlse.cast(wide)
    # ds = p (dp - sum p dp) along each row, and sum p dp is dout times out, so that no second way
    # through the keys is needed. The log-sum-exp has the slope p in s, which its cotangent adds.
    column = offset.reshape((*scores.shape[:3], 1)).broadcast_to(scores.shape)
    dscores = weights * (setting.kept(dproduct) - column)
    narrow = dscores.cast(q.dtype)
    return Back(
        _multiply_heads(narrow, keys, (3,), (2,)) * setting.scale,
        _shared_product(narrow, q, k.shape[1]) * setting.scale,
        _shared_product(dropped.cast(v.dtype), dout, v.shape[1]),
        dscores,
        rows,
    )


def _only_hides(mask: Term) -> bool:
    """Whether a mask is known to have no numbers but 0 and -inf."""
    if not isinstance(mask.emitter, Tape):
        return False
    made = {instruction.id: instruction for instruction in mask.emitter.body}

    def hides(operand: Operand) -> bool:
        if known_number(operand, made) in (0.0, -math.inf):
            return True
        found = definition(operand, made)
        if found is None:
            return False
        match found.op:
            case Cast() | Reshape() | BroadcastTo():
                return hides(found.operands[0])
            case Select():
                return all(map(hides, found.operands[1:]))
            case ElementwiseBinary(fn=BinaryFn.ADD):
                return all(map(hides, found.operands))
        return False

    return hides(mask.emitter.operand(mask))


def _multiply_heads(lhs: Term, rhs: Term, left: tuple[int, ...], right: tuple[int, ...]) -> Term:
    """A product over some axes of each side, for every head, in f32 at least."""
    wide = wide_dtype(lhs.dtype)
    heads = ([0, 1], [0, 1])
    return lhs.dot(rhs, (left, right), heads, accum_dtype=wide, out_dtype=wide)


def _shared_product(weights: Term, rows: Term, heads: Dim) -> Term:
    """The sum over queries of weights times their rows, `[B, heads, Sk, D]`; query heads that share
    a head of keys are parts of one sum."""
    batch, own, queries, keys = weights.shape
    if own == heads or isinstance(own, Symbol) or isinstance(heads, Symbol):
        return _multiply_heads(weights, rows, (2,), (2,))
    group = (batch, heads, own // heads, queries)
    parts = weights.reshape((*group, keys)), rows.reshape((*group, rows.shape[3]))
    return _multiply_heads(*parts, (2, 3), (2, 3))


# -- type rules ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """Which axis of q, k and v is which."""

    heads: int
    rows: int

    def check(self, op: Op, q: TensorType, k: TensorType, v: TensorType) -> None:
        """q, k and v fit together."""
        for kind, name in ((q, "q"), (k, "k"), (v, "v")):
            rank_is(kind, 4, f"{name} of {op.mnemonic}")
            same_dtype(q, kind, f"q and {name} of {op.mnemonic}")
            same_dim(q.shape[0], kind.shape[0], f"q and {name} differ in batch")
        same_dim(q.shape[3], k.shape[3], "q and k differ in depth")
        for axis, what in ((self.heads, "heads"), (self.rows, "rows")):
            same_dim(k.shape[axis], v.shape[axis], f"k and v differ in {what}")
        self._check_groups(op, q.shape[self.heads], k.shape[self.heads])

    def _check_groups(self, op: Op, queries: Dim, keys: Dim) -> None:
        if queries == keys:
            return
        if isinstance(queries, Symbol) or isinstance(keys, Symbol):
            same_dim(queries, keys, "q and k differ in heads")
        elif not keys or queries % keys:
            raise violation(
                "ShapeMismatch",
                f"the {queries} heads of q cannot share the {keys} heads of k in {op.mnemonic}",
            )


HEADS_SECOND = Layout(heads=1, rows=2)
HEADS_THIRD = Layout(heads=2, rows=1)


def check_causal(op: Op, causal: bool, rows: Dim, columns: Dim) -> None:
    """A causal mask needs the difference of its sides."""
    dynamic = isinstance(rows, Symbol) or isinstance(columns, Symbol)
    if causal and dynamic and rows != columns:
        same_dim(rows, columns, f"a causal {op.mnemonic} has sides of unknown difference")


# -- the op --------------------------------------------------------------------------------------


@coarse_op("weft.attention.v1", "weft.attention")
class Attention(Composite):
    """`softmax(q k^T * scale + mask) v` for q, k and v of shape `[B, H, S, D]`, and the log-sum-exp
    of the scores, `[B, H, Sq]`.

    Queries may have a multiple of the heads of keys and values; consecutive ones then share a head.
    `heads`, if given, is the number of heads of the queries. The depth of v may differ. `mask` is
    added to the scores and broadcast to `[B, H, Sq, Sk]`; `causal` hides column j from row i where
    j > i + Sk - Sq. `scale` is 1 / sqrt(D) unless given. With `dropout`, and only then, the fourth
    operand is the state (seed, offset) of `philox_uniform`: a weight whose f32 uniform is below
    `dropout` becomes 0, the others are divided by 1 - dropout.

    Scores, softmax and log-sum-exp are f32 (f64 for f64); the weights are rounded to the dtype of v
    before the second product, which accumulates in f32. If the masks hide every key from a row, its
    result is 0, its log-sum-exp -inf and its cotangents 0; `opened` promises that there is no such
    row, so that no check is needed. Keys that are hidden may be left out: NaN and infinities that
    they and their values hold need not reach the result. `algo_set` names the algorithms that a
    compiler may choose from (`online_softmax`, `streaming_softmax_2pass`); it does not change the
    meaning."""

    operands = ("q", "k", "v", "state?", "mask?")
    dtypes = {
        "q": ATTENDED,
        "k": ATTENDED,
        "v": ATTENDED,
        "state": frozenset({SI64}),
        "mask": ATTENDED,
    }

    heads: int | None = attr(Maybe(Usize()), default=None)
    causal: bool = attr(Bool(), default=False)
    scale: float | None = attr(Maybe(Float()), default=None)
    dropout: float = attr(Float(), default=0.0)
    algo_set: tuple[str, ...] | None = attr(Maybe(ListOf(String())), default=None)
    opened: bool = attr(Bool(), default=False)

    @property
    def _names(self) -> tuple[str, ...]:
        return ("q", "k", "v", "state", "mask") if self.dropout else ("q", "k", "v", "mask")

    def operand_name(self, index: int) -> str:
        return self._names[index]

    def check_arity(self, count: int) -> None:
        check_probability(self, self.dropout, "dropout")
        most = len(self._names)
        if not most - 1 <= count <= most:
            names = ", ".join(self._names)
            raise violation(
                "ArityMismatch",
                f"{self.mnemonic} with dropout {self.dropout} takes operands ({names}?) but got "
                f"{count}",
            )

    def infer(self, *types: TensorType) -> ValueType:
        q, k, v, *_ = types
        HEADS_SECOND.check(self, q, k, v)
        check_scale(self, self.scale, "scale")
        check_algorithms(self, self.algo_set, ALGORITHMS)
        self._check_sizes(q, k)
        for index, kind in enumerate(types[3:], 3):
            if self.operand_name(index) == "mask":
                self._check_mask(kind, (*q.shape[:3], k.shape[2]))
            else:
                same_type(kind, STATE, "the state of dropout")
        out = q.with_shape((*q.shape[:3], v.shape[3]))
        return TupleType((out, TensorType(wide_dtype(q.dtype), q.shape[:3])))

    def _check_sizes(self, q: TensorType, k: TensorType) -> None:
        check_causal(self, self.causal, q.shape[2], k.shape[2])
        if self.heads is not None:
            same_dim(q.shape[1], self.heads, f"the heads of q are not those of {self.mnemonic}")
        if self.scale is None and q.shape[3] in (0, *symbols_of(q)):
            raise invalid_attribute(
                f"{self.mnemonic} over a depth of {q.shape[3]} has no scale", "give one"
            )

    def _check_mask(self, mask: TensorType, scores: Shape) -> None:
        last = scores[max(len(scores) - mask.rank, 0) :]
        fits = mask.rank <= len(scores) and all(
            a in (1, b) for a, b in zip(mask.shape, last, strict=True)
        )
        if not fits:
            raise violation(
                "BroadcastDimsInvalid",
                f"the mask {show(mask.shape)} does not broadcast to the scores {show(scores)}",
            )

    def setting(self, q: Term, *rest: Term) -> Setting:
        """What this attention does, with the operands after v."""
        scale = library.default_scale(q.shape[3]) if self.scale is None else self.scale
        state = rest[0] if self.dropout else None
        mask = rest[-1] if len(rest) > (state is not None) else None
        return Setting(scale, self.causal, self.dropout, mask, state, self.opened)

    def decompose(self, *operands: Term) -> Parts:
        q, k, v, *rest = operands
        out, lse, _ = attend(q, k, v, self.setting(q, *rest))
        return out, lse

    def vjp(self, at: Pullback) -> Cotangents:
        q, k, v, *rest = at.operands
        setting = self.setting(q, *rest)
        out, lse = (at.result[index] for index in range(2))
        dout, dlse = at.of_elements[0], at.cotangents[1]
        back = attend_backward(q, k, v, out, lse, dout, setting, dlse)
        found: list[Term | None] = [x.cast(q.dtype) for x in (back.q, back.k, back.v)]
        if self.dropout:
            found.append(None)
        if setting.mask is not None:
            mask = setting.mask
            found.append(back.scores.reduced_to(mask.shape).cast(mask.dtype))
        return found
