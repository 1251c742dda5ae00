"""Library forms: the few subgraphs that PTIR producers write the same way, so that backends and
rewrite rules find them. Each function emits one, in exactly the order shown in its docstring.

The forms are functions of values, whoever writes the program: the builder, a session or a rule.
Statistics and softmax of floats under 32 bits are computed in f32, with a cast
before and a cast back after; f64 stays f64.
"""

from __future__ import annotations

import math
from typing import TypeVar

from weft.foundation.axes import normalise_axis
from weft.foundation.dtypes import F32, F64, SI32, DType, as_dtype
from weft.foundation.errors import UserError
from weft.ptir.types import Dim, Shape, Symbol
from weft.ptir.written import Emits, Symbolic

V = TypeVar("V", bound=Symbolic)
_FLAT = -(2.0**28)
"""Numbers of f32 below lie 32 apart and more."""


def _compute_dtype(dtype: DType, form: str) -> DType:
    """The dtype in which a form computes."""
    if not dtype.is_float:
        raise UserError(f"{form} takes floats, not {dtype}")
    return F64 if dtype is F64 else F32


def _reduce_axis(kind: str, x: V, axis: int) -> V:
    """A reduction over one axis, which stays as 1, in the dtype of x throughout."""
    return x.apply(
        f"reduce_{kind}", axes=[axis], keepdims=True, accum_dtype=x.dtype, out_dtype=x.dtype
    )


def softmax(x: V, axis: int = -1) -> V:
    """The stable softmax along `axis`: reduce_max, broadcast_to, sub, exp, reduce_sum,
    broadcast_to, div."""
    z = x.cast(_compute_dtype(x.dtype, "softmax"))
    _, e, total = exponentials(z, normalise_axis(axis, x.rank))
    return (e / total.broadcast_to(z.shape)).cast(x.dtype)


def exponentials(z: V, axis: int) -> tuple[V, V, V]:
    """What a softmax divides: the largest element along `axis`, the exponentials of the differences
    to it, and their sum. The logarithm of the sum plus the largest is the log-sum-exp."""
    largest = _reduce_axis("max", z, axis)
    e = (z - largest.broadcast_to(z.shape)).apply("exp")
    return largest, e, _reduce_axis("sum", e, axis)


def gelu(x: V) -> V:
    """`0.5 * x * (1 + erf(x / sqrt(2)))`."""
    inner = (x / math.sqrt(2.0)).apply("erf")
    return (x * 0.5) * (inner + 1.0)


def silu(x: V) -> V:
    """`x / (1 + exp(-x))`."""
    return x / ((-x).apply("exp") + 1.0)


def causal_mask(b: Emits[V], rows: Dim, columns: Dim, dtype: DType | str = F32) -> V:
    """The additive mask `[rows, columns]` that lets row i see columns 0 .. i + columns - rows: 0
    there and -Inf elsewhere. The last row sees everything. iota, iota, compare, select."""
    last, column = _last_seen(b, rows, columns)
    seen = column <= last
    zero, hidden = (seen.full(n, seen.shape, as_dtype(dtype)) for n in (0.0, -math.inf))
    return seen.apply("select", zero, hidden)


def _last_seen(b: Emits[V], rows: Dim, columns: Dim) -> tuple[V, V]:
    """For each place of a causal mask the last column that its row sees, and its own column."""
    row, column = (b.emit("iota", shape=(rows, columns), dtype=SI32, axis=axis) for axis in (0, 1))
    if rows != columns:
        if isinstance(rows, Symbol) or isinstance(columns, Symbol):
            raise UserError(
                f"a causal mask of {rows} rows and {columns} columns needs their difference, and "
                "dynamic dims have none; build the mask from an input instead"
            )
        row = row + (columns - rows)
    return row, column


def attention(
    q: V,
    k: V,
    v: V,
    *,
    mask: V | None = None,
    causal: bool = False,
    scale: float | None = None,
    opened: bool = False,
) -> V:
    """`softmax(q k^T * scale + mask) v` for q, k and v of shape [B, H, S, D].

    Scores and softmax are f32 (f64 for f64 operands); the weights are cast to the dtype of v before
    the second product, which accumulates in f32 and gives the dtype of q. `mask` is additive and is
    broadcast to the scores [B, H, Sq, Sk]; `causal` adds a `causal_mask`, aligned at the bottom
    right. `scale` is 1 / sqrt(D) unless given. A row from which the masks hide everything is 0;
    with `opened` the mask is known to hide everything from no row, and nothing is done for such."""
    for value, name in ((q, "q"), (k, "k"), (v, "v")):
        if value.rank != 4:
            raise UserError(f"attention takes {name} of shape [B, H, S, D], not rank {value.rank}")
    scores, blind = attention_scores(q, k, mask=mask, causal=causal, scale=scale, opened=opened)
    weights = softmax(scores).cast(v.dtype)
    return unseen(attention_values(weights, v, q.dtype), blind, 0.0)


def attention_scores(
    q: V, k: V, *, mask: V | None, causal: bool, scale: float | None, opened: bool = False
) -> tuple[V, V | None]:
    """`q k^T * scale + mask`, in f32 at least: what an attention takes the softmax of. And which
    rows the masks let see nothing, as i1 with a last axis of 1, or None where there is none such:
    these see something after all here, so that a softmax and its gradient are finite, and what
    becomes of them is to be replaced."""
    wide = _compute_dtype(q.dtype, "attention")
    scores = _multiply_matrices(q, k.transpose([0, 1, 3, 2]), wide, wide)
    scores = scores * (default_scale(q.shape[-1]) if scale is None else scale)
    rows, columns = scores.shape[-2:]
    blind = None
    if mask is not None:
        mask = mask.cast(wide)
        if not opened:
            mask, blind = _open_mask(mask, rows, columns, causal)
        scores = scores + mask.broadcast_to(scores.shape)
    if causal:
        hidden = causal_mask(q.emitter, rows, columns, wide)
        if has_early_rows(rows, columns):
            row = q.emitter.emit("iota", shape=(rows, 1), dtype=SI32, axis=0)
            early = row < int(rows) - int(columns)
            hidden = unseen(hidden, early, 0.0)
            blind = early if blind is None else blind
        scores = scores + hidden.broadcast_to(scores.shape)
    return scores, blind


def has_early_rows(rows: Dim, columns: Dim) -> bool:
    """Whether a causal mask has rows before the first column."""
    return isinstance(rows, int) and isinstance(columns, int) and rows > columns


def _shown_mask(mask: V, rows: Dim, columns: Dim, causal: bool) -> tuple[V, V]:
    """A mask with its row axis where that counts, and what of it each row is shown."""
    dims = broadcast_dims(mask.shape, (rows, columns) if causal else (1,))
    whole = mask.broadcast_to(dims)
    if not causal:
        return whole, whole
    # The other way round than a causal mask has it: each kernel computes its own.
    last, column = _last_seen(mask.emitter, rows, columns)
    seen = (last >= column).broadcast_to(dims)
    return whole, seen.apply("select", whole, mask.full(-math.inf, dims))


def _open_mask(mask: V, rows: Dim, columns: Dim, causal: bool) -> tuple[V, V]:
    """A mask that hides nothing from the rows that would see nothing, and which rows these are."""
    whole, shown = _shown_mask(mask, rows, columns, causal)
    blind = _reduce_axis("max", shown, shown.rank - 1).apply("compare", -math.inf, op="equal")
    return unseen(whole, blind, 0.0), blind


def flat_rows(mask: V, rows: Dim, columns: Dim, *, causal: bool) -> V:
    """What a row of powers of scores, less their log-sum-exp, adds up to, with a last axis of 1: 1,
    but where its masks are all so low that a log-sum-exp has no digits for the logarithm of how
    many of them are the largest. Sums with such masks have none for the scores either."""
    _, shown = _shown_mask(mask, rows, columns, causal)
    top = _reduce_axis("max", shown, shown.rank - 1)
    start = unseen(top, top.apply("compare", -math.inf, op="equal"), 0.0)
    powers = (shown - start.broadcast_to(shown.shape)).apply("exp")
    total = _reduce_axis("sum", powers, shown.rank - 1).apply("maximum", 1.0)
    return unseen(total, top.apply("compare", _FLAT, op="greater"), 1.0)


def unseen(x: V, blind: V | None, value: float) -> V:
    """`x`, and a number in the rows that see nothing."""
    if blind is None:
        return x
    number = x.like(value)
    return blind.broadcast_to(x.shape).apply("select", number, x)


def broadcast_dims(left: Shape, right: Shape) -> Shape:
    """The shape that both broadcast to, where each dim of one is 1 or equals the other's."""
    rank = max(len(left), len(right))
    padded = [(*[1] * (rank - len(shape)), *shape) for shape in (left, right)]
    return tuple(b if a == 1 else a for a, b in zip(*padded, strict=True))


def attention_values(weights: V, v: V, dtype: DType) -> V:
    """The values in proportion to the weights, both of one dtype, accumulated in f32 at least."""
    return _multiply_matrices(weights, v, _compute_dtype(v.dtype, "attention"), dtype)


def default_scale(depth: Dim) -> float:
    """What scores are multiplied by unless told otherwise."""
    if isinstance(depth, Symbol) or depth == 0:
        raise UserError(f"attention over a last axis of size {depth} needs its scale to be given")
    return 1.0 / math.sqrt(depth)


def _multiply_matrices(lhs: V, rhs: V, accum: DType, out: DType) -> V:
    return lhs.apply(
        "dot_general", rhs, batch_lhs=[0, 1], batch_rhs=[0, 1], contract_lhs=[3],
        contract_rhs=[2], accum_dtype=accum, out_dtype=out,
    )  # fmt: skip


def layer_norm(x: V, gamma: V, beta: V, *, epsilon: float, feature_axis: int = -1) -> V:
    """The op `layer_norm` in ops that every PTIR implementation knows, equal up to rounding:
    reduce_sum, div, broadcast_to, sub for the differences to the mean; mul, reduce_sum, div for
    their variance; add epsilon, rsqrt, broadcast_to, mul; then gamma and beta."""
    z = x.cast(_compute_dtype(x.dtype, "layer_norm"))
    axis = normalise_axis(feature_axis, x.rank, "feature_axis")
    count = x.shape[axis]
    if isinstance(count, Symbol):
        raise UserError(f"layer_norm over the dynamic dim {count} cannot be written as simpler ops")
    mean = _reduce_axis("sum", z, axis) / float(max(count, 1))
    centred = z - mean.broadcast_to(z.shape)
    variance = _reduce_axis("sum", centred * centred, axis) / float(max(count, 1))
    factor = (variance + epsilon).apply("rsqrt")
    normal = centred * factor.broadcast_to(z.shape)
    scaled = normal * spread_feature(gamma, z, axis)
    return (scaled + spread_feature(beta, z, axis)).cast(x.dtype)


def spread_feature(parameter: V, x: V, axis: int) -> V:
    """A rank-1 parameter laid along one axis of x and repeated over the others."""
    column = [*parameter.shape, *[1] * (x.rank - 1 - axis)]
    return parameter.cast(x.dtype).apply("reshape", new_shape=column).broadcast_to(x.shape)
