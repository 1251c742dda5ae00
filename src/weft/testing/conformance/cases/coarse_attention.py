"""weft.attention and the flash attention ops: masks, dropout, shared heads, caches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from weft.foundation.dtypes import F32, SI32, SI64, DType
from weft.testing.conformance.case import Case, Trial, Wanted, exactly
from weft.testing.conformance.cases.common import (
    Array,
    Dims,
    apply,
    case,
    defined,
    near,
    trial,
    work_dtype,
)
from weft.testing.conformance.data import sample
from weft.testing.conformance.oracles import attention as oracle
from weft.testing.conformance.oracles import philox
from weft.testing.conformance.oracles.attention import Rules
from weft.testing.conformance.oracles.normalisation import causal, rounding
from weft.testing.conformance.oracles.rounding import nearest, wide

DROPOUT = 0.25
SEED, OFFSET = 7, 3


def cases() -> Iterator[Case]:
    """Every combination that changes the formula, on every dtype."""
    for dtype in defined("weft.attention"):
        for name in _ATTENTIONS:
            make = partial(_attention, dtype, name)
            yield case("weft.attention", dtype, name, trial=make)
    for row, make_flash in (
        ("byteir.flash_attn_fwd", _forward),
        ("byteir.flash_attn_bwd", _backward),
        ("byteir.flash_attn_kvcache", _make_cached),
    ):
        for dtype in defined(row):
            for name in _FLASH:
                yield case(row, dtype, name, trial=partial(make_flash, dtype, name))


def _draw_dropout(shape: tuple[int, ...], seed: int, offset: int) -> Array:
    """The factor of each weight under dropout."""
    unit = philox.uniform(shape, F32, seed, offset)
    return np.where(unit < DROPOUT, 0.0, 1 / (1 - DROPOUT))


def _rules_in(dtype: DType, rules: Rules) -> Rules:
    """The rules of the plain evaluation."""
    return replace(rules, step=rounding(work_dtype(dtype)), weights=rounding(dtype))


def _as_double(*arrays: Array) -> list[Array]:
    return [a.astype(np.float64) for a in arrays]


# -- weft.attention ------------------------------------------------------------------------------

_ATTENTIONS = (
    *("dropout-mask", "plain", "causal", "mask", "scale", "shared-heads", "longer-keys"),
    *("dropout", "other-depth", "dynamic", "empty"),
)


def _attention(dtype: DType, name: str) -> Trial:
    batch, heads, rows, depth = (0 if name == "empty" else 2), 4, 5, 4
    columns = 7 if name in ("longer-keys", "dropout-mask") else rows
    own = 2 if name in ("shared-heads", "longer-keys") else heads
    q = sample(dtype, (batch, heads, rows, depth), "q", scale=1.0)
    k = sample(dtype, (batch, own, columns, depth), "k", scale=1.0)
    v = sample(dtype, (batch, own, columns, 3 if name == "other-depth" else depth), "v", scale=1.0)
    hidden = name in ("causal", "longer-keys", "dynamic")
    scale = 0.3 if name in ("scale", "dynamic") else depth**-0.5
    inputs = [q, k, v]
    dims: list[Dims] | None = None
    weights = (batch, heads, rows, columns)
    rules = Rules(scale, mask=causal(rows, columns) if hidden else None)
    if name.startswith("dropout"):
        inputs.append(np.array([SEED, OFFSET], np.int64))
        rules = replace(rules, kept=_draw_dropout(weights, SEED, OFFSET))
    if name.endswith("mask"):
        inputs.append(sample(dtype, (heads, 1, columns), "mask"))
        rules = replace(rules, mask=wide(inputs[-1]))
    if name == "dynamic":
        dims = [["?B", "?H", "?S", "?D"]] * 3
    exact = oracle.forward(rules, wide(q), wide(k), wide(v))
    plain = oracle.forward(_rules_in(dtype, rules), *_as_double(q, k, v))
    build = apply(
        "weft.attention", inputs, dims=dims, causal=hidden,
        scale=scale if name in ("scale", "dynamic") else None,
        dropout=DROPOUT if name.startswith("dropout") else 0.0,
        heads=heads if name == "shared-heads" else None,
        algo_set=["online_softmax"] if name == "causal" else None,
    )  # fmt: skip
    work = work_dtype(dtype)
    want = [near(exact[0], plain[0], dtype, work), near(exact[1], plain[1], work, work)]
    return trial(build, inputs, *want)


# -- flash attention -----------------------------------------------------------------------------

_FLASH = ("plain", "causal", "shared-heads", "dropout", "dynamic", "empty")
_SCALE = 0.4


def _swap_heads(x: Array) -> Array:
    return np.swapaxes(x, 1, 2)


def _flash_inputs(dtype: DType, name: str) -> tuple[Array, Array, Array]:
    """q, k and v with heads third."""
    batch, rows, heads, depth = (0 if name == "empty" else 2), 5, 4, 3
    own = 2 if name == "shared-heads" else heads
    columns = rows if name == "dynamic" else 6
    q = sample(dtype, (batch, rows, heads, depth), "q", scale=1.0)
    k, v = (sample(dtype, (batch, columns, own, depth), key, scale=1.0) for key in "kv")
    return q, k, v


def _flash_rules(q: Array, k: Array, name: str, seed: int, offset: int) -> Rules:
    batch, rows, heads, _ = q.shape
    hidden = causal(rows, k.shape[1]) if name in ("causal", "dynamic") else None
    weights = (batch, heads, rows, k.shape[1])
    kept = _draw_dropout(weights, seed, offset) if name == "dropout" else None
    return Rules(_SCALE, mask=hidden, kept=kept)


def _attention_attributes(name: str) -> dict[str, Any]:
    dropout = DROPOUT if name == "dropout" else 0.0
    hidden = name in ("causal", "dynamic")
    return {"dropout_p": dropout, "softmax_scale": _SCALE, "causal": hidden}


def _forward(dtype: DType, name: str) -> Trial:
    q, k, v = _flash_inputs(dtype, name)
    rules, work = _flash_rules(q, k, name, SEED, 0), work_dtype(dtype)
    exact = oracle.forward(rules, *(wide(_swap_heads(a)) for a in (q, k, v)))
    plain = oracle.forward(_rules_in(dtype, rules), *_as_double(*map(_swap_heads, (q, k, v))))
    shown = name in ("causal", "dropout")
    symbols: Dims = ["?B", "?S", "?H", "?D"]
    build = apply(
        "byteir.flash_attn_fwd", [q, k, v], dims=[symbols] * 3 if name == "dynamic" else None,
        return_softmax=shown, **_attention_attributes(name),
    )  # fmt: skip
    weights = near(exact[2], plain[2], dtype, work)
    want = [
        near(_swap_heads(exact[0]), _swap_heads(plain[0]), dtype, work),
        near(exact[1], plain[1], work, work),
        weights if shown else exactly(np.zeros((0,), dtype.numpy)),
        exactly(np.array([SEED, 0], np.int64)),
    ]
    return trial(build, [q, k, v], *want, seed=SEED)


def _backward(dtype: DType, name: str) -> Trial:
    q, k, v = _flash_inputs(dtype, name)
    rules, work = _flash_rules(q, k, name, SEED, OFFSET), work_dtype(dtype)
    narrow = _as_double(*map(_swap_heads, (q, k, v)))
    out, lse, _ = oracle.forward(_rules_in(dtype, rules), *narrow)
    out, lse = nearest(out, dtype), nearest(lse, work)
    dout = sample(dtype, _swap_heads(out).shape, "dout", scale=1.0)
    given = [_swap_heads(a) for a in (q, k, v)]
    exact = oracle.backward(rules, *map(wide, (*given, out, lse, _swap_heads(dout))))
    plain = oracle.backward(
        _rules_in(dtype, rules), *_as_double(*given, out, lse, _swap_heads(dout))
    )
    state = np.array([SEED, OFFSET], np.int64)
    inputs = [dout, q, k, v, np.ascontiguousarray(_swap_heads(out)), lse, state]
    rows: Dims = ["?B", "?S", "?H", "?D"]
    dims: list[Dims] | None = [*[rows] * 5, ["?B", "?H", "?S"], [2]] if name == "dynamic" else None
    build = apply("byteir.flash_attn_bwd", inputs, dims=dims, **_attention_attributes(name))
    heads = [(_swap_heads(a), _swap_heads(b)) for a, b in zip(exact[:3], plain[:3], strict=True)]
    want = [near(a, b, dtype, work) for a, b in heads]
    want += [near(exact[3], plain[3], work, work), near(*heads[0], work, work)]
    return trial(build, inputs, *want)


def _make_cached(dtype: DType, name: str) -> Trial:
    q, k, v = _flash_inputs(dtype, name)
    new = 5
    k, v = k[:, :new], v[:, :new]
    room = (q.shape[0], 12, *k.shape[2:])
    caches = [sample(dtype, room, key, scale=1.0) for key in ("kcache", "vcache")]
    indices = SI32 if name == "causal" else SI64
    lengths = np.array([3, 7][: q.shape[0]], indices.numpy)
    inputs = [q, *caches, k, v, lengths]
    after = [_append_rows(cache, rows, lengths) for cache, rows in zip(caches, (k, v), strict=True)]
    hidden = name in ("causal", "dynamic")
    rules, work = (
        Rules(_SCALE, mask=_make_mask(q, new, room[1], lengths, hidden)),
        work_dtype(dtype),
    )
    given = [_swap_heads(a) for a in (q, *after)]
    exact = oracle.forward(rules, *map(wide, given))
    plain = oracle.forward(_rules_in(dtype, rules), *_as_double(*given))
    results = 2 if name == "plain" else 4
    new_rows: Dims = ["?B", 5, "?H", "?D"]
    dims: list[Dims] | None = None
    if name == "dynamic":
        dims = [new_rows, *[["?B", "?M", "?H", "?D"]] * 2, new_rows, new_rows, ["?B"]]
    build = apply(
        "byteir.flash_attn_kvcache", inputs, dims=dims, softmax_scale=_SCALE, causal=hidden,
        results=results,
    )  # fmt: skip
    want: list[Wanted] = [
        near(_swap_heads(exact[0]), _swap_heads(plain[0]), dtype, work),
        near(exact[1], plain[1], work, work),
        *map(exactly, after),
    ]
    return trial(build, inputs, *want[:results])


def _append_rows(cache: Array, rows: Array, lengths: Array) -> Array:
    result = cache.copy()
    for batch, length in enumerate(lengths):
        result[batch, length : length + rows.shape[1]] = rows[batch]
    return result


def _make_mask(q: Array, new: int, room: int, lengths: Array, hidden: bool) -> Array:
    """What each row may see of the cache: 0, or -inf."""
    mask = np.full((q.shape[0], 1, q.shape[1], room), -np.inf)
    for batch, length in enumerate(lengths):
        end = int(length) + new
        for row in range(q.shape[1]):
            last = end - q.shape[1] + row + 1 if hidden else end
            mask[batch, 0, row, :last] = 0.0
    return mask
