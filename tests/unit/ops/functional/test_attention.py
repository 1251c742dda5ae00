"""Attention against a loop over batches, heads and queries, and what comes with it: rotary
positions, caches of keys and values, embeddings."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import weft
from tests.support.cases import each, one_in
from tests.support.tensors import DTYPES, Array, agrees, data, wide
from weft import functional
from weft.foundation.dtypes import DType
from weft.ops.session import Handle, Session

F: Any = functional
"""Arrays and wrong arguments are tried too, which the types would not allow."""


def loop_attention(
    q: Array, k: Array, v: Array, mask: Array | None, causal: bool, scale: float
) -> Array:
    """One query at a time, in f64."""
    batch, heads, queries, _ = q.shape
    shared, keys, size = v.shape[1:]
    out = np.zeros((batch, heads, queries, size))
    full = (batch, heads, queries, keys)
    added = np.zeros(full)
    if mask is not None:
        shift = np.where(mask, 0.0, -np.inf) if mask.dtype == np.bool_ else wide(mask)
        added = np.broadcast_to(shift, full)
    for b, h, i in np.ndindex(batch, heads, queries):
        group = h * shared // heads
        scores = wide(k)[b, group] @ wide(q)[b, h, i] * scale + added[b, h, i]
        if causal:
            scores[max(i + keys - queries + 1, 0) :] = -np.inf
        weights = np.exp(scores - scores.max())
        out[b, h, i] = weights / weights.sum() @ wide(v)[b, group]
    return out


@dataclass(frozen=True)
class Setting:
    q: tuple[int, int, int, int] = (2, 4, 5, 8)
    kv_heads: int = 4
    keys: int = 5
    value_size: int = 8
    mask: str = ""
    mask_shape: tuple[int, ...] = ()
    causal: bool = False
    scale: float | None = None

    def arrays(self, dtype: DType) -> tuple[Array, Array, Array, Array | None]:
        batch, _, _, depth = self.q
        k = data((batch, self.kv_heads, self.keys, depth), dtype, 1)
        v = data((batch, self.kv_heads, self.keys, self.value_size), dtype, 2)
        mask: Array | None = None
        if self.mask == "float":
            mask = data(self.mask_shape, dtype, 3)
        if self.mask == "bool":
            mask = data(self.mask_shape, "f32", 3) > -0.5
            mask[..., 0] = True  # no row is without keys
        return data(self.q, dtype, 0), k, v, mask


SETTINGS = {
    "plain": Setting(),
    "causal": Setting(causal=True),
    "one query, cached keys": Setting(q=(1, 2, 1, 4), kv_heads=2, keys=9, causal=True),
    "causal, more keys": Setting(q=(1, 2, 3, 4), kv_heads=1, keys=7, causal=True),
    "grouped heads": Setting(kv_heads=2),
    "one key head": Setting(kv_heads=1, causal=True),
    "another value size": Setting(value_size=3),
    "float mask": Setting(mask="float", mask_shape=(2, 1, 5, 5)),
    "mask of rank 2": Setting(mask="float", mask_shape=(5, 5)),
    "boolean mask": Setting(mask="bool", mask_shape=(4, 1, 5)),
    "boolean mask, causal": Setting(mask="bool", mask_shape=(2, 4, 5, 5), causal=True),
    "scale": Setting(scale=0.25),
    "more than one block": Setting(q=(1, 2, 3, 4), kv_heads=2, keys=300, causal=True),
    "a block and a mask": Setting(q=(1, 1, 2, 4), kv_heads=1, keys=130, mask="bool",
                                  mask_shape=(130,)),
    "no queries": Setting(q=(1, 2, 0, 4), kv_heads=2),
    "no batch": Setting(q=(0, 2, 3, 4), kv_heads=2),
}  # fmt: skip


@each("dtype", DTYPES)
@each("implementation", F.implementations("attention"))
@each("name", SETTINGS)
def test_attention(name: str, implementation: str, dtype: DType) -> None:
    setting = SETTINGS[name]
    q, k, v, mask = setting.arrays(dtype)
    scale = 1 / math.sqrt(setting.q[3]) if setting.scale is None else setting.scale
    given = None if mask is None else weft.asarray(mask)
    tensors = [weft.asarray(x) for x in (q, k, v)]
    with F.overrides({"attention": f"force={implementation}"}):
        result = F.attention(*tensors, given, causal=setting.causal, scale=setting.scale)
    agrees(result, loop_attention(q, k, v, mask, setting.causal, scale), dtype, ulps=16)


@pytest.mark.parametrize("more", ["", "causal", "mask", "segments"])
def test_dropped_weights_are_those_of_dropout(more: str) -> None:
    q, k, v = (weft.asarray(data((2, 4, 6, 8), "f32", seed)) for seed in range(3))
    segments = weft.asarray(np.asarray([0, 0, 1, 1, 1, 1], np.int32))
    seen = {
        "causal": np.tri(6, dtype=np.bool_),
        "mask": np.arange(36).reshape(6, 6) % 5 > 0,
        "segments": np.equal.outer(segments.numpy(), segments.numpy()),
    }.get(more, np.ones((6, 6), np.bool_))
    given = weft.asarray(seen) if more == "mask" else None
    numbers = segments if more == "segments" else None
    drawn = {"dropout": 0.25, "seed": 5, "offset": np.int64(9)}
    found = F.attention(q, k, v, given, causal=more == "causal", segments=numbers, **drawn)
    scores = weft.where(weft.asarray(seen), q @ k.mT * 8**-0.5, float("-inf"))
    weights = F.dropout(F.softmax(scores, axis=-1), 0.25, seed=5, offset=9)
    np.testing.assert_allclose(found.numpy(), (weights @ v).numpy(), atol=1e-6)


LENGTHS = (3, 1, 140, 6)
"""Of sequences side by side; together longer than a block of keys."""


def packed_attention(q: Array, k: Array, v: Array, causal: bool) -> Array:
    """Every sequence by itself."""
    parts = []
    for n, end in zip(LENGTHS, np.cumsum(LENGTHS), strict=True):
        own = slice(end - n, end)
        parts.append(loop_attention(q[:, :, own], k[:, :, own], v[:, :, own], None, causal, 0.5))
    return np.concatenate(parts, 2)


@pytest.mark.parametrize("implementation", F.implementations("attention"))
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("of", ["one vector", "a pair", "each batch", "a mask too"])
def test_sequences_side_by_side(of: str, causal: bool, implementation: str) -> None:
    total = sum(LENGTHS)
    q, k, v = (data((2, 2, total, 4), "f32", seed) for seed in range(3))
    offsets = np.cumsum((0, *LENGTHS)).astype(np.int32)
    vector = F.segments_of(offsets, total)
    segments = {"a pair": (vector, vector), "each batch": weft.stack([vector, vector + 1])}
    mask = weft.zeros((total, total)) if of == "a mask too" else None
    with F.overrides({"attention": f"force={implementation}"}):
        tensors = [weft.asarray(x) for x in (q, k, v)]
        given = segments.get(of, vector)
        found = F.attention(*tensors, mask, causal=causal, scale=0.5, segments=given)
    agrees(found, packed_attention(q, k, v, causal), "f32", ulps=16)


def test_segments_of_offsets() -> None:
    found = F.segments_of(weft.asarray(np.asarray([0, 2, 2, 5])), 7).numpy()
    np.testing.assert_array_equal(found, [0, 0, 2, 2, 2, 3, 3])


def test_gradients_of_sequences_side_by_side() -> None:
    total = sum(LENGTHS)
    q, k, v, back = (weft.asarray(data((1, 2, total, 4), "f32", seed)) for seed in range(4))
    offsets = [0, *np.cumsum(LENGTHS)]
    vector = F.segments_of(weft.asarray(np.asarray(offsets)), total)

    def whole(q: Any, k: Any, v: Any) -> Any:
        return (F.attention(q, k, v, causal=True, segments=vector) * back).sum()

    def apart(q: Any, k: Any, v: Any) -> Any:
        parts = [
            F.attention(*(x[:, :, start:end] for x in (q, k, v)), causal=True)
            for start, end in itertools.pairwise(offsets)
        ]
        return (weft.concat(parts, axis=2) * back).sum()

    found, wanted = (weft.grad(f, argnums=(0, 1, 2))(q, k, v) for f in (whole, apart))
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), atol=1e-5)


@pytest.mark.parametrize("low", [float(np.finfo(np.float32).min), -1e9])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("spelled", [False, True])
def test_gradients_of_rows_of_low_masks(low: float, causal: bool, spelled: bool) -> None:
    """They are those of a softmax of equal scores: a log-sum-exp has no digits for their count."""
    seen = np.tri(6, dtype=bool) if causal else np.ones((6, 6), bool)
    flat = np.asarray([0, 1, 0, 1, 1, 0], bool)[:, None]
    mask = np.where(flat | (np.arange(6) > 4), np.float32(low), np.float32(0))
    arrays = [data((1, 2, 6, 4), "f32", seed) for seed in range(4)]

    def mixed(q: Any, k: Any, v: Any) -> Any:
        if not spelled:
            return F.attention(q, k, v, weft.asarray(mask), causal=causal, scale=0.5)
        scores = q @ k.mT * 0.5 + weft.asarray(mask)
        return F.softmax(weft.where(weft.asarray(seen), scores, -math.inf), axis=-1) @ v

    q, k, v, back = map(weft.asarray, arrays)
    _, pull = weft.vjp(mixed, q, k, v)
    scores = wide(arrays[0]) @ np.swapaxes(wide(arrays[1]), -1, -2) * 0.5 + mask
    scores = np.where(seen, np.where(flat, low, scores), -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    dp = wide(arrays[3]) @ np.swapaxes(wide(arrays[2]), -1, -2)
    ds = p * (dp - (p * dp).sum(-1, keepdims=True)) * 0.5
    left = ((ds, 1), (np.swapaxes(ds, -1, -2), 0), (np.swapaxes(p, -1, -2), 3))
    for found, (factor, other) in zip(pull(back), left, strict=True):
        want = factor @ wide(arrays[other])
        np.testing.assert_allclose(found.numpy(), want, atol=1e-5)


@pytest.mark.parametrize("implementation", F.implementations("attention"))
def test_a_query_of_a_sequence_without_keys_is_zero(implementation: str) -> None:
    x = weft.asarray(data((1, 1, 2, 4)))
    of_queries, of_keys = (weft.asarray(np.asarray(n, np.int32)) for n in ([0, 3], [0, 0]))
    with F.overrides({"attention": f"force={implementation}"}):
        found = F.attention(x, x, x, segments=(of_queries, of_keys)).numpy()
    assert (found[0, 0, 1] == 0).all()
    assert (found[0, 0, 0] != 0).all()


@pytest.mark.parametrize("implementation", F.implementations("attention"))
def test_a_row_that_sees_nothing_is_zero(implementation: str) -> None:
    x = weft.asarray(data((1, 1, 2, 4)))
    mask = weft.asarray(np.asarray([[True, False], [False, False]]))
    with F.overrides({"attention": f"force={implementation}"}):
        found = F.attention(x, x, x, mask).numpy()
    np.testing.assert_allclose(found[0, 0, 0], x.numpy()[0, 0, 0], rtol=1e-6)
    np.testing.assert_array_equal(found[0, 0, 1], 0.0)


def _hiding(kind: str, keys: int) -> Array:
    """Masks that hide everything from some query, with and without a causal one."""
    seen = np.ones((2, 1, 12, keys), np.bool_)
    if kind == "left-padded":
        seen = np.ones((2, 1, 1, keys), np.bool_)
        seen[0, :, :, :4] = False
        return seen
    seen[0, :, :, :5] = False
    seen[1, 0, 3] = False
    return np.where(seen, 0.0, -np.inf) if kind == "float" else seen


def _by_hand(x: Sequence[Array], mask: Array, causal: bool, g: Array) -> list[Array]:
    """The result and the cotangents of q, k and v: a sum over keys that are seen, in f64."""
    q, k, v = x
    shown = mask if mask.dtype == np.bool_ else mask == 0
    seen = np.broadcast_to(shown, (*q.shape[:3], k.shape[2]))
    if causal:
        rows, columns = q.shape[2], k.shape[2]
        seen = seen & np.tri(rows, columns, columns - rows, dtype=np.bool_)
    scale = 1 / math.sqrt(q.shape[3])
    powers = np.where(seen, np.exp(q @ k.swapaxes(2, 3) * scale), 0.0)
    total = powers.sum(-1, keepdims=True)
    weights = powers / np.where(total == 0, 1.0, total)
    inner = g @ v.swapaxes(2, 3)
    scores = weights * (inner - (inner * weights).sum(-1, keepdims=True)) * scale
    turned = (scores.swapaxes(2, 3), weights.swapaxes(2, 3))
    return [weights @ v, scores @ k, turned[0] @ q, turned[1] @ g]


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("keys", one_in(2, [12, 7]))
@pytest.mark.parametrize("kind", ["boolean", "float", "left-padded"])
@pytest.mark.parametrize("implementation", F.implementations("attention"))
def test_gradients_pass_by_rows_that_see_nothing(
    implementation: str, kind: str, keys: int, causal: bool, backend: str
) -> None:
    source = np.random.default_rng(5)
    arrays = [source.standard_normal((2, 3, n, 16)) for n in (12, keys, keys)]
    g = source.standard_normal((2, 3, 12, 16))
    mask = _hiding(kind, keys)
    wanted = _by_hand(arrays, mask, causal, g)

    def weighed(q: Any, k: Any, v: Any) -> Any:
        return weft.sum(F.attention(q, k, v, weft.asarray(mask), causal=causal) * weft.asarray(g))

    with weft.graph(backend=backend), F.overrides({"attention": f"force={implementation}"}):
        tensors = [weft.asarray(x) for x in arrays]
        result = F.attention(*tensors, weft.asarray(mask), causal=causal)
        found = [result, *weft.grad(weighed, (0, 1, 2))(*tensors)]
        for ours, want in zip(found, wanted, strict=True):
            np.testing.assert_allclose(np.asarray(ours), want, rtol=1e-9, atol=1e-12)


def test_a_formula_that_is_found_to_be_attention_keeps_its_nan() -> None:
    x = weft.asarray(data((1, 1, 2, 4)))
    mask = weft.asarray(np.asarray([[0.0, -np.inf], [-np.inf, -np.inf]], np.float32))

    def by_hand(q: Any) -> Any:
        scores = q @ weft.matrix_transpose(x) * 0.5 + mask
        return F.softmax(scores) @ x

    result, pull = weft.vjp(by_hand, x)
    np.testing.assert_array_equal(np.asarray(result), np.asarray(by_hand(x)))
    assert np.isnan(np.asarray(result)[0, 0, 1]).all()
    assert np.isfinite(np.asarray(result)[0, 0, 0]).all()
    pull(x)


ALONE: dict[str, Callable[..., Any]] = {
    "weft.attention": lambda s, q, k, v, causal: s.emit("weft.attention", q, k, v, causal=causal)[
        0
    ],
    "byteir.flash_attn_fwd": lambda s, q, k, v, causal: _flash(s, q, k, v, causal),
    **{
        name: lambda s, q, k, v, causal, name=name: _forced(s, q, k, v, causal, name)
        for name in F.implementations("attention")
    },
}
"""Every way to say attention, on handles of shape [B, H, S, D]."""


def _flash(s: Session, q: Handle, k: Handle, v: Handle, causal: bool) -> Handle:
    turned = [x.transpose([0, 2, 1, 3]) for x in (q, k, v)]
    found = s.emit(
        "byteir.flash_attn_fwd", *turned, dropout_p=0.0, softmax_scale=0.5, causal=causal,
        return_softmax=False,
    )  # fmt: skip
    return found[0].transpose([0, 2, 1, 3])


def _forced(s: Session, q: Handle, k: Handle, v: Handle, causal: bool, name: str) -> Handle:
    with F.overrides({"attention": f"force={name}"}):
        tensor = F.attention(*[s.export(x) for x in (q, k, v)], causal=causal)
    return s.import_(tensor)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("way", ALONE)
def test_all_ways_agree_where_a_query_sees_nothing(way: str, backend: str) -> None:
    q, k, v = (weft.asarray(data((1, 1, n, 4), seed=n), device=backend) for n in (4, 2, 2))
    empty = k[:, :, :0]
    session = Session.of(q)

    def attend(keys: Any, values: Any, causal: bool) -> Array:
        handles = [session.import_(x) for x in (q, keys, values)]
        return np.asarray(session.export(ALONE[way](session, *handles, causal)))

    np.testing.assert_array_equal(attend(empty, empty, False), np.zeros((1, 1, 4, 4)))
    hidden = attend(k, v, True)
    np.testing.assert_array_equal(hidden[0, 0, :2], 0.0)
    assert np.isfinite(hidden[0, 0, 2:]).all()


def test_arrays_are_taken_as_tensors() -> None:
    x = data((1, 1, 2, 4))
    agrees(F.attention(x, x, x), loop_attention(x, x, x, None, False, 0.5))


# -- the cache -----------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [2, -2, 0])
@pytest.mark.parametrize("position", [0, 1])
@pytest.mark.parametrize("kind", ["number", "si32", "si64"])
def test_update_cache(axis: int, position: int, kind: str) -> None:
    cache = data((3, 2, 4, 5))
    shape = [3, 2, 4, 5]
    shape[axis] = 2
    new = data(tuple(shape), seed=1)
    where: Any = (
        position
        if kind == "number"
        else weft.asarray(position, dtype=getattr(weft, "int32" if kind == "si32" else "int64"))
    )
    expected = cache.copy()
    np.moveaxis(expected, axis, 0)[position : position + 2] = np.moveaxis(new, axis, 0)
    found = F.update_cache(weft.asarray(cache), weft.asarray(new), where, axis)
    np.testing.assert_array_equal(found.numpy(), expected)


@pytest.mark.parametrize("position", [-1, 3, np.int64(4)])
def test_a_number_that_leaves_the_cache_is_an_error(position: Any) -> None:
    cache, new = weft.zeros((1, 4)), weft.ones((1, 2))
    with pytest.raises(weft.SpecViolation, match=r"\[update_cache\].*positions run from 0 to 2"):
        F.update_cache(cache, new, position, axis=1)


def test_a_tensor_that_leaves_the_cache_is_clamped() -> None:
    found = F.update_cache(weft.zeros((1, 4)), weft.ones((1, 2)), weft.asarray(9), axis=1)
    assert found.tolist() == [[0.0, 0.0, 1.0, 1.0]]


def test_decoding_with_a_cache_is_attention_over_everything() -> None:
    q, k, v = (data((1, 2, 6, 4), seed=seed) for seed in range(3))
    keys, values = weft.zeros((1, 2, 6, 4)), weft.zeros((1, 2, 6, 4))
    rows = []
    for i in range(6):
        keys = F.update_cache(keys, weft.asarray(k[:, :, i : i + 1]), i)
        values = F.update_cache(values, weft.asarray(v[:, :, i : i + 1]), i)
        seen = weft.asarray(np.arange(6) <= i)
        rows.append(F.attention(weft.asarray(q[:, :, i : i + 1]), keys, values, seen))
    agrees(weft.concat(rows, axis=2), loop_attention(q, k, v, None, True, 0.5))


# -- positions and tables ------------------------------------------------------------------------


def rotated(x: Array, positions: Array, base: float, interleaved: bool) -> Array:
    """Pairs as complex numbers, turned by multiplication."""
    half = x.shape[-1] // 2
    first = x[..., 0::2] if interleaved else x[..., :half]
    second = x[..., 1::2] if interleaved else x[..., half:]
    angles = wide(positions)[:, None] * base ** (-2 * np.arange(half) / x.shape[-1])
    turned = (wide(first) + 1j * wide(second)) * np.exp(1j * angles)
    out = np.zeros(x.shape)
    if interleaved:
        out[..., 0::2], out[..., 1::2] = turned.real, turned.imag
    else:
        out[..., :half], out[..., half:] = turned.real, turned.imag
    return out


@each("dtype", DTYPES)
@each("interleaved", [False, True])
@each("shape", [(5, 6), (2, 3, 5, 8), (2, 0, 4)])
def test_rotary_embedding(shape: tuple[int, ...], interleaved: bool, dtype: DType) -> None:
    x = data(shape, dtype)
    positions = np.arange(shape[-2]) * 3 + 1
    found = F.rotary_embedding(
        weft.asarray(x), weft.asarray(positions), base=500.0, interleaved=interleaved
    )
    agrees(found, rotated(x, positions, 500.0, interleaved), dtype, ulps=16)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("indices", [[1, 0, 3], [[2, 2], [0, 1]], 3, []])
def test_embedding(indices: Any, dtype: DType) -> None:
    table = data((4, 3), dtype)
    rows = np.asarray(indices, np.int64)
    found = F.embedding(weft.asarray(rows), weft.asarray(table))
    np.testing.assert_array_equal(found.numpy(), table[rows])
