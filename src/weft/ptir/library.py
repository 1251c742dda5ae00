"""Library forms: the few subgraphs that PTIR producers write the same way, so that backends and
rewrite rules find them. Each function emits one, in exactly the order shown in its docstring.

The forms are written against an `Emitter`, which the builder is: `b.softmax(x)` calls
`softmax(b, x)`. Statistics and softmax of floats under 32 bits are computed in f32, with a cast
before and a cast back after; f64 stays f64.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, TypeVar

from weft.foundation.axes import normalise_axis
from weft.foundation.dtypes import F32, F64, DType
from weft.foundation.errors import UserError
from weft.ptir.types import Dim, Shape, Symbol


class Handle(Protocol):
    """A tensor value under construction."""

    @property
    def shape(self) -> Shape: ...

    @property
    def dtype(self) -> DType: ...

    @property
    def rank(self) -> int: ...


H = TypeVar("H", bound=Handle)


class Emitter(Protocol[H]):
    """What appends instructions: the op's name in text, its operands, its attributes by name.

    A Python number stands for a literal of the dtype of the first operand, broadcast to its shape.
    """

    def emit(self, name: str, *operands: Any, **attrs: Any) -> H: ...

    def cast(self, x: H, dtype: DType | str) -> H:
        """`x` itself where it has that dtype already."""
        ...

    def broadcast_to(self, x: H, dims: Iterable[Dim]) -> H: ...

    def literal(self, value: Any, dtype: DType | str) -> H: ...

    def iota(self, dtype: DType | str, dims: Iterable[Dim], axis: int) -> H: ...


def _wide(dtype: DType, form: str) -> DType:
    """The dtype in which a form computes."""
    if not dtype.is_float:
        raise UserError(f"{form} takes floats, not {dtype}")
    return F64 if dtype is F64 else F32


def _reduce(b: Emitter[H], kind: str, x: H, axis: int) -> H:
    """A reduction over one axis, which stays as 1, in the dtype of x throughout."""
    return b.emit(
        f"reduce_{kind}", x, axes=[axis], keepdims=True, accum_dtype=x.dtype, out_dtype=x.dtype
    )


def softmax(b: Emitter[H], x: H, axis: int = -1) -> H:
    """The stable softmax along `axis`: reduce_max, broadcast_to, sub, exp, reduce_sum,
    broadcast_to, div."""
    z = b.cast(x, _wide(x.dtype, "softmax"))
    _, e, total = exponentials(b, z, normalise_axis(axis, x.rank))
    return b.cast(b.emit("div", e, b.broadcast_to(total, z.shape)), x.dtype)


def exponentials(b: Emitter[H], z: H, axis: int) -> tuple[H, H, H]:
    """What a softmax divides: the largest element along `axis`, the exponentials of the differences
    to it, and their sum. The logarithm of the sum plus the largest is the log-sum-exp."""
    largest = _reduce(b, "max", z, axis)
    e = b.emit("exp", b.emit("sub", z, b.broadcast_to(largest, z.shape)))
    return largest, e, _reduce(b, "sum", e, axis)


def gelu(b: Emitter[H], x: H) -> H:
    """`0.5 * x * (1 + erf(x / sqrt(2)))`."""
    inner = b.emit("erf", b.emit("div", x, math.sqrt(2.0)))
    return b.emit("mul", b.emit("mul", x, 0.5), b.emit("add", inner, 1.0))


def silu(b: Emitter[H], x: H) -> H:
    """`x / (1 + exp(-x))`."""
    return b.emit("div", x, b.emit("add", b.emit("exp", b.emit("neg", x)), 1.0))


def causal_mask(b: Emitter[H], rows: Dim, columns: Dim, dtype: DType | str = F32) -> H:
    """The additive mask `[rows, columns]` that lets row i see columns 0 .. i + columns - rows: 0
    there and -Inf elsewhere. The last row sees everything. iota, iota, compare, select."""
    last, column = _last_seen(b, rows, columns)
    seen = b.emit("compare", column, last, op="less_equal")
    zero = b.broadcast_to(b.literal(0.0, dtype), [rows, columns])
    hidden = b.broadcast_to(b.literal(-math.inf, dtype), [rows, columns])
    return b.emit("select", seen, zero, hidden)


def _last_seen(b: Emitter[H], rows: Dim, columns: Dim) -> tuple[H, H]:
    """For each place of a causal mask the last column that its row sees, and its own column."""
    row = b.iota("si32", [rows, columns], 0)
    column = b.iota("si32", [rows, columns], 1)
    if rows != columns:
        if isinstance(rows, Symbol) or isinstance(columns, Symbol):
            raise UserError(
                f"a causal mask of {rows} rows and {columns} columns needs their difference, and "
                "dynamic dims have none; build the mask from an input instead"
            )
        row = b.emit("add", row, columns - rows)
    return row, column


def attention(
    b: Emitter[H],
    q: H,
    k: H,
    v: H,
    *,
    mask: H | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> H:
    """`softmax(q k^T * scale + mask) v` for q, k and v of shape [B, H, S, D].

    Scores and softmax are f32 (f64 for f64 operands); the weights are cast to the dtype of v before
    the second product, which accumulates in f32 and gives the dtype of q. `mask` is additive and is
    broadcast to the scores [B, H, Sq, Sk]; `causal` adds a `causal_mask`, aligned at the bottom
    right. `scale` is 1 / sqrt(D) unless given. A row from which the masks hide everything is 0."""
    for value, name in ((q, "q"), (k, "k"), (v, "v")):
        if value.rank != 4:
            raise UserError(f"attention takes {name} of shape [B, H, S, D], not rank {value.rank}")
    scores, blind = attention_scores(b, q, k, mask=mask, causal=causal, scale=scale)
    weights = b.cast(softmax(b, scores), v.dtype)
    return unseen(b, attention_values(b, weights, v, q.dtype), blind, 0.0)


def attention_scores(
    b: Emitter[H], q: H, k: H, *, mask: H | None, causal: bool, scale: float | None
) -> tuple[H, H | None]:
    """`q k^T * scale + mask`, in f32 at least: what an attention takes the softmax of. And which
    rows the masks let see nothing, as i1 with a last axis of 1, or None where there is none such:
    these see something after all here, so that a softmax and its gradient are finite, and what
    becomes of them is to be replaced."""
    wide = _wide(q.dtype, "attention")
    turned = b.emit("transpose", k, perm=[0, 1, 3, 2])
    scores = _product(b, q, turned, wide, wide)
    scores = b.emit("mul", scores, default_scale(q.shape[-1]) if scale is None else scale)
    rows, columns = scores.shape[-2:]
    blind = None
    if mask is not None:
        mask, blind = _opened(b, b.cast(mask, wide), rows, columns, causal)
        scores = b.emit("add", scores, b.broadcast_to(mask, scores.shape))
    if causal:
        hidden = causal_mask(b, rows, columns, wide)
        if has_early_rows(rows, columns):
            row = b.iota("si32", [rows, 1], 0)
            early = b.emit("compare", row, int(rows) - int(columns), op="less")
            hidden = unseen(b, hidden, early, 0.0)
            blind = early if blind is None else blind
        scores = b.emit("add", scores, b.broadcast_to(hidden, scores.shape))
    return scores, blind


def has_early_rows(rows: Dim, columns: Dim) -> bool:
    """Whether a causal mask has rows before the first column."""
    return isinstance(rows, int) and isinstance(columns, int) and rows > columns


def _opened(b: Emitter[H], mask: H, rows: Dim, columns: Dim, causal: bool) -> tuple[H, H]:
    """A mask that hides nothing from the rows that would see nothing, and which rows these are."""
    dims = broadcast_dims(mask.shape, (rows, columns) if causal else (1,))
    shown = whole = b.broadcast_to(mask, dims)
    if causal:
        # The other way round than a causal mask has it: each kernel computes its own.
        last, column = _last_seen(b, rows, columns)
        seen = b.broadcast_to(b.emit("compare", last, column, op="greater_equal"), dims)
        nothing = b.broadcast_to(b.literal(-math.inf, mask.dtype), dims)
        shown = b.emit("select", seen, whole, nothing)
    best = _reduce(b, "max", shown, shown.rank - 1)
    blind = b.emit("compare", best, -math.inf, op="equal")
    return unseen(b, whole, blind, 0.0), blind


def unseen(b: Emitter[H], x: H, blind: H | None, value: float) -> H:
    """`x`, and a number in the rows that see nothing."""
    if blind is None:
        return x
    number = b.broadcast_to(b.literal(value, x.dtype), x.shape)
    return b.emit("select", b.broadcast_to(blind, x.shape), number, x)


def broadcast_dims(left: Shape, right: Shape) -> Shape:
    """The shape that both broadcast to, where each dim of one is 1 or equals the other's."""
    rank = max(len(left), len(right))
    padded = [(*[1] * (rank - len(shape)), *shape) for shape in (left, right)]
    return tuple(b if a == 1 else a for a, b in zip(*padded, strict=True))


def attention_values(b: Emitter[H], weights: H, v: H, dtype: DType) -> H:
    """The values in proportion to the weights, both of one dtype, accumulated in f32 at least."""
    return _product(b, weights, v, _wide(v.dtype, "attention"), dtype)


def default_scale(depth: Dim) -> float:
    """What scores are multiplied by unless told otherwise."""
    if isinstance(depth, Symbol) or depth == 0:
        raise UserError(f"attention over a last axis of size {depth} needs its scale to be given")
    return 1.0 / math.sqrt(depth)


def _product(b: Emitter[H], lhs: H, rhs: H, accum: DType, out: DType) -> H:
    return b.emit(
        "dot_general", lhs, rhs, batch_lhs=[0, 1], batch_rhs=[0, 1], contract_lhs=[3],
        contract_rhs=[2], accum_dtype=accum, out_dtype=out,
    )  # fmt: skip


def layer_norm(
    b: Emitter[H], x: H, gamma: H, beta: H, *, epsilon: float, feature_axis: int = -1
) -> H:
    """The op `layer_norm` in ops that every PTIR implementation knows, equal up to rounding:
    reduce_sum, div, broadcast_to, sub for the differences to the mean; mul, reduce_sum, div for
    their variance; add epsilon, rsqrt, broadcast_to, mul; then gamma and beta."""
    z = b.cast(x, _wide(x.dtype, "layer_norm"))
    axis = normalise_axis(feature_axis, x.rank, "feature_axis")
    count = x.shape[axis]
    if isinstance(count, Symbol):
        raise UserError(f"layer_norm over the dynamic dim {count} cannot be written as simpler ops")
    mean = b.emit("div", _reduce(b, "sum", z, axis), float(max(count, 1)))
    centred = b.emit("sub", z, b.broadcast_to(mean, z.shape))
    squares = _reduce(b, "sum", b.emit("mul", centred, centred), axis)
    variance = b.emit("div", squares, float(max(count, 1)))
    factor = b.emit("rsqrt", b.emit("add", variance, epsilon))
    normal = b.emit("mul", centred, b.broadcast_to(factor, z.shape))
    scaled = b.emit("mul", normal, _along(b, gamma, z, axis))
    return b.cast(b.emit("add", scaled, _along(b, beta, z, axis)), x.dtype)


def _along(b: Emitter[H], parameter: H, x: H, axis: int) -> H:
    """A rank-1 parameter laid along one axis of x and repeated over the others."""
    column: Sequence[Dim] = [x.shape[axis], *[1] * (x.rank - 1 - axis)]
    wide = b.cast(parameter, x.dtype)
    return b.broadcast_to(b.emit("reshape", wide, new_shape=column), x.shape)
