"""Coarse ops, those with rules of their own and those whose gradient is that of their formula."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.derivatives.case import (
    Function,
    between,
    case,
    complex_normal,
    distinct,
    emitted,
    in_torch,
    normal,
    whole,
)


def element(number: int, name: str, **attrs: Any) -> Function:
    """One result of the op of that name, on all parameters."""
    return lambda b, *operands: b.emit(name, *operands, **attrs)[number]


dims: tuple[int, ...]
for row in ("softmax", "log_softmax"):
    for dims, axis in (((4,), 0), ((3, 4, 5), 0), ((3, 4, 5), 1), ((3, 4, 5), 2), ((2, 1, 3), 1)):
        case(
            f"byteir.{row}", emitted(f"byteir.{row}", axis=axis), normal(*dims),
            label=f"{len(dims)}-{dims[axis]}-{axis}",
            torch=lambda t, x, row=row, axis=axis: getattr(t, row)(x, axis),
        )  # fmt: skip
for dims in ((5,), (2, 1, 3), (2, 3, 1, 2)):
    rank = f"rank{len(dims)}"
    case("byteir.erf", emitted("byteir.erf"), normal(*dims), label=rank, torch=in_torch("erf"))
    terms = [normal(*dims, seed=seed) for seed in range(len(dims))]
    case(
        "byteir.addn", emitted("byteir.addn"), *terms, label=rank,
        torch=lambda t, *terms: t.stack(terms).sum(0),
    )  # fmt: skip
    for form in ("none", "tanh"):
        case(
            "byteir.gelu", emitted("byteir.gelu", approximate=form), normal(*dims) * 2,
            label=f"{form}-{rank}",
            torch=lambda t, x, form=form: t.nn.functional.gelu(x, approximate=form),
        )  # fmt: skip

# -- norms ---------------------------------------------------------------------------------------

NORMS: dict[str, dict[str, Any]] = {
    "": {},
    "statistics": {"results": 3},
    "outside": {"eps_outside_sqrt": True},
}
for label, attrs in NORMS.items():
    case(
        "byteir.layer_norm",
        emitted("byteir.layer_norm", epsilon=0.01, axis=[2, 1], **attrs),
        normal(2, 3, 2), normal(2, 3, seed=1), normal(2, 3, seed=2), label=label,
    )  # fmt: skip
for first in (0, 1, 2):
    features = (2, 3, 4)[first:]
    case(
        "byteir.layer_norm",
        emitted("byteir.layer_norm", epsilon=1e-3, axis=list(range(first, 3))),
        normal(2, 3, 4), normal(*features, seed=1), normal(*features, seed=2),
        label=f"from{first}",
        torch=lambda t, x, w, c: t.nn.functional.layer_norm(x, w.shape, w, c, 1e-3),
    )  # fmt: skip
case(
    "byteir.l2_norm", emitted("byteir.l2_norm", epsilon=1e-3, axis=[1], eps_outside_sqrt=False),
    normal(3, 4), label="inside",
)  # fmt: skip
for dims, axis in (((4,), 0), ((3, 4), 0), ((3, 4), 1), ((2, 1, 3, 2), 2)):
    case(
        "byteir.l2_norm",
        emitted("byteir.l2_norm", epsilon=1e-3, axis=[axis], eps_outside_sqrt=True),
        normal(*dims), label=f"rank{len(dims)}-{axis}",
        torch=lambda t, x, axis=axis: t.nn.functional.normalize(x, dim=axis, eps=1e-3),
    )  # fmt: skip

# -- positions -----------------------------------------------------------------------------------

for row in ("byteir.arg_max", "byteir.arg_min"):
    for dims, axis in (((4,), 0), ((3, 4), 1), ((2, 1, 3, 2), 2)):
        case(
            row, emitted(row, axis=axis, results=2, select_last_index=True), distinct(*dims),
            label=f"rank{len(dims)}",
            torch=lambda t, x, name=row[-3:], axis=axis: tuple(getattr(t, name)(x, axis)),
        )  # fmt: skip
for dims, axis in (((5,), 0), ((3, 4, 5), 0), ((3, 4, 5), 1), ((3, 4, 5), 2)):
    case(
        "byteir.top_k", element(0, "byteir.top_k", axis=[axis], k=2), distinct(*dims),
        label=f"rank{len(dims)}-{axis}",
        torch=lambda t, x, axis=axis: t.topk(x, 2, axis).values,
    )  # fmt: skip
for dims in ((3,), (3, 4), (3, 1, 2, 2)):
    case(
        "byteir.repeat", emitted("byteir.repeat", length=5), normal(*dims), np.array([2, 0, 3]),
        label=f"rank{len(dims)}", torch=lambda t, x, n: t.repeat_interleave(x, n, 0),
    )  # fmt: skip
for dims, axis in (((3,), 0), ((1, 3), 1), ((2, 1, 3, 2), 2)):
    case(
        "byteir.dequantize", emitted("byteir.dequantize", axis=axis, dtype="f64"),
        whole(100, *dims, dtype=np.int8), between(0.5, 2.0, 3), np.array([1, 2, 3], np.int8),
        wrt=[1], label=f"rank{len(dims)}",
        torch=lambda t, q, s, z, axis=axis: (
            (q.movedim(axis, -1).to(s.dtype) - z) * s
        ).movedim(-1, axis),
    )  # fmt: skip


def sampled(row: str, dims: Sequence[int]) -> Function:
    return lambda b, *ends: b.emit(row, *ends, b.literal(5), b.literal(7), dims=dims)


for row, second in (("byteir.rng_uniform", 3.0), ("byteir.rng_normal", 2.0)):
    for dims in ((5,), (2, 3), (2, 1, 3, 2)):
        case(row, sampled(row, dims), np.array(-1.0), np.array(second), label=f"rank{len(dims)}")

# -- images --------------------------------------------------------------------------------------


def resized(mode: str, coordinates: str, shape: Sequence[int]) -> Function:
    attrs = {"mode": mode, "coordinate_transformation_mode": coordinates, "shape": shape}
    return lambda b, x: b.emit(
        "byteir.resize", x, b.literal(list(shape)), target_mode="size", **attrs
    )


case("byteir.resize", resized("linear", "half_pixel", [1, 7, 6]), normal(1, 4, 3), label="linear")
case("byteir.resize", resized("nearest", "asymmetric", [1, 7, 6]), normal(1, 4, 3), label="nearest")
INTERPOLATIONS: list[tuple[str, str, tuple[int, int], dict[str, Any]]] = [
    ("linear", "pytorch_half_pixel", (7, 5), {"mode": "bilinear", "align_corners": False}),
    ("linear", "pytorch_half_pixel", (3, 2), {"mode": "bilinear", "align_corners": False}),
    ("linear", "align_corners", (7, 5), {"mode": "bilinear", "align_corners": True}),
    ("linear", "align_corners", (3, 2), {"mode": "bilinear", "align_corners": True}),
    ("nearest", "asymmetric", (8, 6), {"mode": "nearest"}),
]
for mode, coordinates, size, options in INTERPOLATIONS:
    case(
        "byteir.resize", resized(mode, coordinates, [1, 2, *size]), normal(1, 2, 4, 4),
        label=f"{coordinates}-{size[0]}x{size[1]}",
        torch=lambda t, x, size=size, o=options: t.nn.functional.interpolate(x, size, **o),
    )  # fmt: skip

# -- convolutions --------------------------------------------------------------------------------

case(
    "weft.conv",
    emitted("weft.conv", layout="NCHW", groups=2, pad=[1, 0, 0, 2], stride=[2, 1], dilation=[1, 2]),
    normal(1, 2, 5, 5), normal(4, 1, 3, 2, seed=1), normal(4, seed=2), label="groups",
)  # fmt: skip
case(
    "weft.conv", emitted("weft.conv", layout="NWC", stride=[3], pad=[3, 0]),
    normal(1, 7, 2), normal(2, 2, 3, seed=1), label="line",
)  # fmt: skip
case(
    "weft.conv", emitted("weft.conv", layout="NDHWC", stride=[1, 2, 1]),
    normal(1, 3, 4, 3, 1), normal(2, 2, 2, 1, 2, seed=1), label="volume",
)  # fmt: skip

CONVOLUTIONS: dict[str, tuple[tuple[int, int], tuple[int, int], tuple[int, int], int]] = {
    "plain": ((1, 1), (0, 0), (1, 1), 1),
    "strides": ((2, 1), (1, 2), (1, 1), 1),
    "two-groups": ((1, 1), (1, 1), (1, 2), 2),
    "by-channel": ((2, 2), (0, 0), (1, 1), 4),
}
for label, (stride, padding, dilation, groups) in CONVOLUTIONS.items():
    settings: dict[str, Any] = {"stride": stride, "dilation": dilation, "groups": groups}
    case(
        "weft.conv", emitted("weft.conv", layout="NCHW", pad=padding * 2, **settings),
        normal(2, 4, 7, 6), normal(8, 4 // groups, 3, 2, seed=1), normal(8, seed=2), label=label,
        torch=lambda t, x, w, c, p=padding, s=settings: t.nn.functional.conv2d(
            x, w, c, padding=p, **s
        ),
    )  # fmt: skip

# -- attention -----------------------------------------------------------------------------------


def dropped(b: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
    return b.emit("weft.attention", q, k, v, b.literal([5, 3]), mask, dropout=0.5)


def backward(dropout: float, causal: bool) -> Function:
    attrs = {"dropout_p": dropout, "softmax_scale": 0.6, "causal": causal}
    return lambda b, *operands: b.emit(
        "byteir.flash_attn_bwd", *operands, b.literal([5, 3]), **attrs
    )


def cached(lengths: list[int], causal: bool) -> Function:
    attrs = {"softmax_scale": 0.6, "causal": causal, "results": 4}
    return lambda b, *operands: b.emit(
        "byteir.flash_attn_kvcache", *operands, b.literal(lengths), **attrs
    )


def visible(t: Any, q: Any, k: Any, causal: bool) -> Any:
    """Which keys each row sees, counted from the last of both."""
    rows, columns = q.shape[1], k.shape[1]
    seen = t.ones(rows, columns, dtype=t.bool)
    return seen.tril(columns - rows) if causal else seen


def scores(q: Any, k: Any) -> Any:
    """[B, H, Sq, Sk] of rows before heads, with the scale of these cases."""
    keys = k.repeat_interleave(q.shape[2] // k.shape[2], 2)
    return q.transpose(1, 2) @ keys.permute(0, 2, 3, 1) * 0.6


def attended(t: Any, q: Any, k: Any, v: Any, seen: Any) -> tuple[Any, Any]:
    """The output by torch's attention, and the log-sum-exp."""
    turned = (x.transpose(1, 2) for x in (q, k, v))
    out = t.nn.functional.scaled_dot_product_attention(
        *turned, attn_mask=seen, scale=0.6, enable_gqa=True
    )
    hidden = scores(q, k).masked_fill(~seen, float("-inf"))
    return out.transpose(1, 2), t.logsumexp(hidden, -1)


def flash(t: Any, q: Any, k: Any, v: Any) -> tuple[Any, ...]:
    """No weights are asked for, and the state is the first one of the seed 0."""
    none, state = t.zeros(0, dtype=q.dtype), t.zeros(2, dtype=t.int64)
    return (*attended(t, q, k, v, visible(t, q, k, True)), none, state)


def flash_backward(causal: bool) -> Function:
    """The formula of FlashAttention, with output and log-sum-exp as inputs of their own."""

    def build(t: Any, dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any) -> tuple[Any, ...]:
        group = q.shape[2] // k.shape[2]
        seen = visible(t, q, k, causal)
        weights = (scores(q, k) - lse[..., None]).exp() * seen
        rows = (dout * out).sum(-1).transpose(1, 2)
        by_weights = t.einsum("bihd,bjhd->bhij", dout, v.repeat_interleave(group, 2))
        by_scores = weights * (by_weights - rows[..., None]) * 0.6
        dq = t.einsum("bhij,bjhd->bihd", by_scores, k.repeat_interleave(group, 2))
        dk = t.einsum("bhij,bihd->bjhd", by_scores, q)
        dv = t.einsum("bhij,bihd->bjhd", weights, dout)
        dk, dv = (x.unflatten(2, (-1, group)).sum(3) for x in (dk, dv))
        return dq, dk, dv, rows, dq

    return build


def flash_cached(lengths: list[int], causal: bool) -> Function:
    def build(t: Any, q: Any, kcache: Any, vcache: Any, k: Any, v: Any) -> tuple[Any, ...]:
        caches = [x.clone() for x in (kcache, vcache)]
        seen = t.zeros(len(lengths), 1, q.shape[1], kcache.shape[1], dtype=t.bool)
        for number, start in enumerate(lengths):
            end = start + k.shape[1]
            for cache, new in zip(caches, (k, v), strict=True):
                cache[number, start:end] = new[number]
            seen[number, 0, :, :end] = visible(t, q, caches[0][:, :end], causal)
        return (*attended(t, q, caches[0], caches[1], seen), *caches)

    return build


case(
    "weft.attention", emitted("weft.attention", causal=True),
    normal(1, 4, 3, 2), normal(1, 2, 4, 2, seed=1), normal(1, 2, 4, 3, seed=2), label="heads",
)  # fmt: skip
case(
    "weft.attention", dropped, normal(1, 2, 3, 2), normal(1, 2, 4, 2, seed=1),
    normal(1, 2, 4, 2, seed=2), normal(3, 4, seed=3), label="dropout",
)  # fmt: skip
for causal, masked, heads in itertools.product((False, True), (False, True), (2, 4)):
    if causal and masked:
        continue
    masks = [normal(5, 5, seed=3)] if masked else []
    case(
        "weft.attention", element(0, "weft.attention", causal=causal), normal(2, 4, 5, 6),
        normal(2, heads, 5, 6, seed=1), normal(2, heads, 5, 6, seed=2), *masks,
        label=f"{heads}-heads{'-causal' * causal}{'-masked' * masked}",
        torch=lambda t, *operands, c=causal, h=heads:
        t.nn.functional.scaled_dot_product_attention(*operands, is_causal=c, enable_gqa=h != 4),
    )  # fmt: skip
case(
    "weft.attention", element(1, "weft.attention", scale=0.5),
    *(normal(1, 2, 4, 3, seed=seed) for seed in range(3)), label="log-sum-exp",
    torch=lambda t, q, k, v: t.logsumexp(q @ k.transpose(-1, -2) * 0.5, -1),
)  # fmt: skip


def by_groups(t: Any, x: Any, weight: Any, ends: Sequence[int], turned: bool) -> Any:
    """The rows of each group times its matrix, and zeros after the last group."""
    found, start = [], 0
    for matrix, offset in zip(weight, ends, strict=True):
        end = max(start, min(offset, len(x)))
        found.append(x[start:end] @ (matrix.T if turned else matrix))
        start = end
    return t.cat([*found, x.new_zeros(len(x) - start, found[0].shape[1])])


def outer_of_groups(t: Any, x: Any, y: Any, ends: Sequence[int]) -> Any:
    """For each group the product of its rows, transposed, and its rows."""
    found, start = [], 0
    for offset in ends:
        end = max(start, min(offset, len(x)))
        found.append(x[start:end].T @ y[start:end])
        start = end
    return t.stack(found)


for inverse, divided, shape in (
    (False, False, (2, 32)),
    (True, True, (2, 32)),
    (False, False, (36,)),
):
    case(
        "weft.fourier", emitted("weft.fourier", inverse=inverse, divided=divided),
        complex_normal(*shape) * 0.1, label=f"{'inverse' * inverse}{shape[-1]}",
        torch=lambda t, x, inverse=inverse: t.fft.ifft(x) if inverse else t.fft.fft(x),
    )  # fmt: skip
for label, ends in (("", [2, 2, 5]), ("rest", [1, 3, 4]), ("out-of-order", [3, 1, 9])):
    for turned in (False, True):
        case(
            "weft.grouped_matmul", emitted("weft.grouped_matmul", transposed=turned),
            normal(5, 3), normal(3, 2, 3, seed=1) if turned else normal(3, 3, 2, seed=1),
            np.array(ends), label=f"{label}{'-transposed' * turned}",
            torch=lambda t, x, w, _, ends=ends, turned=turned: by_groups(t, x, w, ends, turned),
        )  # fmt: skip
    case(
        "weft.grouped_outer", emitted("weft.grouped_outer"), normal(5, 3), normal(5, 2, seed=1),
        np.array(ends), label=label,
        torch=lambda t, x, y, _, ends=ends: outer_of_groups(t, x, y, ends),
    )  # fmt: skip
for label, dropout, heads in (("", 0.0, 2), ("dropout", 0.3, 2), ("one-head", 0.0, 1)):
    case(
        "byteir.flash_attn_fwd",
        emitted(
            "byteir.flash_attn_fwd", dropout_p=dropout, softmax_scale=0.6, causal=not dropout,
            return_softmax=bool(dropout),
        ),
        normal(1, 3, 2 * heads, 2), normal(1, 4, heads, 2, seed=1), normal(1, 4, heads, 2, seed=2),
        label=label, torch=None if dropout else flash,
    )  # fmt: skip
for label, dropout, causal, batch in (
    ("dropout", 0.3, False, 1),
    ("causal", 0.0, True, 1),
    ("batch", 0.0, False, 2),
):
    case(
        "byteir.flash_attn_bwd", backward(dropout, causal), normal(batch, 2, 2, 2),
        normal(batch, 2, 2, 2, seed=1), normal(batch, 3, 1, 2, seed=2),
        normal(batch, 3, 1, 2, seed=3), normal(batch, 2, 2, 2, seed=4),
        normal(batch, 2, 2, seed=5), order=1, label=label,
        torch=None if dropout else flash_backward(causal),
    )  # fmt: skip
for label, lengths, causal in (
    ("causal", [1, 3], True),
    ("all", [2, 0], False),
    ("one", [2], True),
):
    batch = len(lengths)
    case(
        "byteir.flash_attn_kvcache", cached(lengths, causal), normal(batch, 2, 2, 2),
        normal(batch, 5, 1, 2, seed=1), normal(batch, 5, 1, 2, seed=2),
        normal(batch, 2, 1, 2, seed=3), normal(batch, 2, 1, 2, seed=4), order=1, label=label,
        torch=flash_cached(lengths, causal),
    )  # fmt: skip
