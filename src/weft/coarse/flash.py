"""Attention as FlashAttention spells it: rows before heads, `[B, S, H, D]`, with the state of its
dropout and everything that the backward pass needs among the results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from weft.coarse.attention import (
    ATTENDED,
    HEADS_THIRD,
    Setting,
    attend,
    attend_backward,
    check_causal,
)
from weft.coarse.rules import check_probability, check_scale, result_count, same_type
from weft.foundation.dtypes import INDICES, SI64
from weft.foundation.numeric import wide_dtype
from weft.ptir.composite import Composite
from weft.ptir.op import Array, coarse_op
from weft.ptir.ops.random import STATE, Drawing, stream_attribute
from weft.ptir.rules import invalid_attribute, rank_is, same_dim, violation
from weft.ptir.schema import Bool, Float, Usize, attr
from weft.ptir.term import Cotangents, Parts, Pullback, Term
from weft.ptir.types import Shape, TensorType, TupleType, ValueType


def _swap_heads(x: Term) -> Term:
    """Heads before rows, or back."""
    return x.transpose((0, 2, 1, 3))


def _statistics(q: TensorType) -> TensorType:
    """One number for each row of each head."""
    batch, rows, heads, _ = q.shape
    return TensorType(wide_dtype(q.dtype), (batch, heads, rows))


@coarse_op("byteir.flash_attn_fwd")
class ByteirFlashAttnFwd(Composite, Drawing):
    """`softmax(q k^T * softmax_scale) v` for q, k and v of shape `[B, S, H, D]`; queries may have a
    multiple of the heads of keys and values. `causal` hides column j from row i where
    j > i + Sk - Sq.

    The results are the output, the log-sum-exp of the scores `[B, H, Sq]`, the weights after
    dropout `[B, H, Sq, Sk]` in the dtype of q with `return_softmax` (else a tensor of shape `[0]`),
    and the state si64[2] that determines the dropped weights. The state is that of a stream of the
    run, as `rng_state` gives it: a weight whose f32 uniform of `philox_uniform` is below
    `dropout_p` becomes 0, the others are divided by 1 - dropout_p. What is f32 here is f64 for f64
    operands."""

    operands = ("q", "k", "v")
    dtypes = {"q": ATTENDED, "k": ATTENDED, "v": ATTENDED}
    no_gradient = ""

    dropout_p: float = attr(Float())
    softmax_scale: float = attr(Float())
    causal: bool = attr(Bool())
    return_softmax: bool = attr(Bool())
    stream: int | None = stream_attribute()

    def infer(self, *types: TensorType) -> ValueType:
        q, k, v = types
        self.check_stream()
        HEADS_THIRD.check(self, q, k, v)
        check_scale(self, self.softmax_scale, "softmax_scale")
        check_probability(self, self.dropout_p, "dropout_p")
        check_causal(self, self.causal, q.shape[1], k.shape[1])
        out = q.with_shape((*q.shape[:3], v.shape[3]))
        statistics = _statistics(q)
        weights: Shape = (*statistics.shape, k.shape[1]) if self.return_softmax else (0,)
        return TupleType((out, statistics, q.with_shape(weights), STATE))

    def decompose(self, *operands: Term) -> Parts:
        q, k, v = map(_swap_heads, operands)
        state = q.emitter.emit("rng_state", stream=self.stream)
        setting = Setting(self.softmax_scale, self.causal, self.dropout_p, None, state)
        out, lse, weights = attend(q, k, v, setting)
        shown = weights.cast(q.dtype) if self.return_softmax else q.full(0, (0,))
        return _swap_heads(out), lse, shown, state

    def vjp(self, at: Pullback) -> Cotangents:
        q, k, v = map(_swap_heads, at.operands)
        out, lse, _, state = (at.result[index] for index in range(4))
        _, dlse, dweights, _ = at.cotangents
        setting = Setting(self.softmax_scale, self.causal, self.dropout_p, None, state)
        if not self.return_softmax:
            dweights = None
        dout = _swap_heads(at.of_elements[0])
        back = attend_backward(q, k, v, _swap_heads(out), lse, dout, setting, dlse, dweights)
        return [_swap_heads(x).cast(q.dtype) for x in (back.q, back.k, back.v)]


@coarse_op("byteir.flash_attn_bwd")
class ByteirFlashAttnBwd(Composite):
    """The cotangents of q, k and v in `byteir.flash_attn_fwd`, from that of its output and what it
    returned; weights are computed again, with the same dropout, from `rng_state`.

    The results are dq, dk and dv, the inner product of each output row with its cotangent
    `[B, H, Sq]`, and dq before it is rounded `[B, Sq, H, D]`; the last two are f32 (f64 for f64
    operands)."""

    operands = ("dout", "q", "k", "v", "out", "softmax_lse", "rng_state")
    dtypes = {
        **dict.fromkeys(("dout", "q", "k", "v", "out", "softmax_lse"), ATTENDED),
        "rng_state": frozenset({SI64}),
    }

    dropout_p: float = attr(Float())
    softmax_scale: float = attr(Float())
    causal: bool = attr(Bool())

    def infer(self, *types: TensorType) -> ValueType:
        dout, q, k, v, out, lse, state = types
        HEADS_THIRD.check(self, q, k, v)
        check_scale(self, self.softmax_scale, "softmax_scale")
        check_probability(self, self.dropout_p, "dropout_p")
        check_causal(self, self.causal, q.shape[1], k.shape[1])
        wanted = q.with_shape((*q.shape[:3], v.shape[3]))
        same_type(out, wanted, "the output")
        same_type(dout, wanted, "the cotangent of the output")
        same_type(lse, _statistics(q), "the log-sum-exp")
        same_type(state, STATE, "the state of dropout")
        return TupleType((q, k, v, _statistics(q), q.with_dtype(wide_dtype(q.dtype))))

    def decompose(self, *operands: Term) -> Parts:
        dout, q, k, v, out = map(_swap_heads, operands[:5])
        lse, state = operands[5:]
        setting = Setting(self.softmax_scale, self.causal, self.dropout_p, None, state)
        back = attend_backward(q, k, v, out, lse, dout, setting)
        dq = _swap_heads(back.q)
        dk, dv = (_swap_heads(x).cast(q.dtype) for x in (back.k, back.v))
        return dq.cast(q.dtype), dk, dv, back.rows, dq


@coarse_op("byteir.flash_attn_kvcache")
class ByteirFlashAttnKvcache(Composite):
    """Attention of new rows over a cache, after their keys and values have been written to it.

    `k` and `v` `[B, Snew, H, D]` are written to the caches `[B, Smax, H, D]` from row `seqlen_k[b]`
    on; a row beyond the cache is rejected when the program runs. Row i of q `[B, Sq, H, D]` then
    sees the first `seqlen_k[b] + Snew` rows of the cache, with `causal` only the first `seqlen_k[b]
    + Snew - Sq + i + 1` of them. The results are the output and the log-sum-exp of the scores `[B,
    H, Sq]`, and with 4 `results` (the declared type says how many) the two updated caches. Dtypes
    are those of `byteir.flash_attn_fwd`."""

    operands = ("q", "kcache", "vcache", "k", "v", "seqlen_k")
    dtypes = {
        **dict.fromkeys(("q", "kcache", "vcache", "k", "v"), ATTENDED),
        "seqlen_k": INDICES,
    }

    softmax_scale: float = attr(Float())
    causal: bool = attr(Bool())
    results: int = attr(Usize(), declared=True, default=2)

    @classmethod
    def declared_attributes(cls, output: ValueType) -> Mapping[str, Any]:
        return {"results": result_count(output, (2, 4), "byteir.flash_attn_kvcache")}

    def infer(self, *types: TensorType) -> ValueType:
        q, kcache, vcache, k, v, lengths = types
        HEADS_THIRD.check(self, q, kcache, vcache)
        HEADS_THIRD.check(self, q, k, v)
        check_scale(self, self.softmax_scale, "softmax_scale")
        for new, cache, name in ((k, kcache, "k"), (v, vcache, "v")):
            for axis, what in ((2, "heads"), (3, "depth")):
                difference = f"{name} and {name}cache differ in {what}"
                same_dim(new.shape[axis], cache.shape[axis], difference)
        rank_is(lengths, 1, "seqlen_k")
        same_dim(lengths.shape[0], q.shape[0], "seqlen_k and the batch of q differ in extent")
        if self.results not in (2, 4):
            raise invalid_attribute(f"{self.mnemonic} has 2 or 4 results, not {self.results}")
        found = (q.with_shape((*q.shape[:3], v.shape[3])), _statistics(q), kcache, vcache)
        return TupleType(found[: self.results])

    def check_values(self, *args: Array) -> None:
        room, new, lengths = args[1].shape[1], args[3].shape[1], args[5].astype(np.int64)
        bad = np.flatnonzero((lengths < 0) | (lengths + new > room))
        if bad.size:
            place = int(bad[0])
            raise violation(
                "ScatterIndexOutOfBounds",
                f"{new} rows from row {int(lengths[place])} on do not fit the {room} rows of the "
                f"cache, at position {place} of seqlen_k",
            )

    def decompose(self, *operands: Term) -> Parts:
        q, kcache, vcache, k, v, lengths = operands
        start = lengths.cast(SI64)
        keys, values = _write_rows(kcache, k, start), _write_rows(vcache, v, start)
        mask = self._mask(q, k, kcache, start)
        setting = Setting(self.softmax_scale, mask=mask)
        out, lse, _ = attend(
            _swap_heads(q),
            _swap_heads(keys),
            _swap_heads(values),
            setting,
        )
        return (_swap_heads(out), lse, keys, values)[: self.results]

    def _mask(self, q: Term, k: Term, cache: Term, start: Term) -> Term:
        """0 where a row of q may see a row of the cache and -inf elsewhere, `[B, 1, Sq, Smax]`."""
        shape = (q.shape[0], 1, q.shape[1], cache.shape[1])
        end = (start + k.extent(1, SI64).broadcast_to(start.shape)).reshape((q.shape[0], 1, 1, 1))
        seen = end.broadcast_to(shape)
        if self.causal:
            rows = q.extent(1, SI64).broadcast_to(shape)
            seen = seen - rows + start.counting(shape, 2) + 1
        visible = start.counting(shape, 3).compare(seen, "less")
        zero = start.full(0.0, shape, wide_dtype(q.dtype))
        return zero.where(visible, zero.like(-np.inf))


def _write_rows(cache: Term, new: Term, start: Term) -> Term:
    """The cache with new rows from `start` on."""
    first = start.reshape((new.shape[0], 1, 1, 1)).broadcast_to(new.shape)
    rows = first + start.counting(new.shape, 1)
    return cache.scatter_reduce(rows, new, axis=1, reduce="replace")
