"""Coarse ops that ONNX does not have, against NumPy: repetition, random numbers, attention as
FlashAttention spells it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from tests.support.cases import each
from tests.support.random_oracle import scalar_normal, scalar_uniform
from weft.foundation.dtypes import F32, as_dtype
from weft.ptir import Builder

Array = NDArray[Any]
SCALE = 0.6


def ours(name: str, inputs: Sequence[Array], backend: str = "reference", **attrs: Any) -> Any:
    b = Builder()
    parameters = [b.param(as_dtype(a.dtype), a.shape) for a in inputs]
    return weft.run(b.build(b.emit(name, *parameters, **attrs)), inputs, backend=backend, seed=9)


def normal(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


@each("counts", [[2, 0, 3], [0, 0, 5], [1, 1, 1], [0, 0, 0]])
@each("dims", [(), (2,), (1, 3)])
def test_repeat(counts: list[int], dims: tuple[int, ...]) -> None:
    x = normal(3, *dims)
    for dtype in (np.int32, np.int64):
        given: NDArray[Any] = np.array(counts, dtype)
        (found,) = ours("byteir.repeat", [x, given], length=sum(counts))
        np.testing.assert_array_equal(found, np.repeat(x, counts, 0))


@pytest.mark.parametrize(("seed", "offset"), [(0, 0), (7, 3), (-1, (5 << 32) + 2)])
@pytest.mark.parametrize("dims", [(5,), (2, 3), (0, 2)])
def test_random_numbers(seed: int, offset: int, dims: tuple[int, ...]) -> None:
    key, stream, execution = seed % 2**64, offset & 0xFFFFFFFF, offset >> 32
    state = [np.array(seed), np.array(offset)]
    ends = [np.float32(-1.5), np.float32(2.25)]
    count = int(np.prod(dims))
    places = range(count)
    uniform = [scalar_uniform(key, stream, execution, i, F32) for i in places]
    drawn = [scalar_normal(key, stream, execution, i, F32) for i in places]
    given = [*map(np.asarray, ends), *state]
    (found,) = ours("byteir.rng_uniform", given, dims=list(dims))
    wide = float(ends[0]) + (float(ends[1]) - float(ends[0])) * np.array(uniform)
    np.testing.assert_array_equal(found, wide.astype(np.float32).reshape(dims))
    (found,) = ours("byteir.rng_normal", given, dims=list(dims))
    wide = float(ends[0]) + float(ends[1]) * np.array(drawn)
    np.testing.assert_allclose(found, wide.reshape(dims), rtol=1e-6, atol=1e-6)


# -- attention -----------------------------------------------------------------------------------


def weights(q: Array, k: Array, seen: Array) -> tuple[Array, Array]:
    """The weights [B, H, Sq, Sk] and the log-sum-exp, in f64."""
    keys = np.repeat(k, q.shape[2] // k.shape[2], 2).astype(np.float64)
    scores = np.einsum("bihd,bjhd->bhij", q.astype(np.float64), keys) * SCALE
    scores = np.where(seen, scores, -np.inf)
    top = scores.max(-1, keepdims=True)
    total = np.exp(scores - top).sum(-1, keepdims=True)
    return np.exp(scores - top) / total, (top + np.log(total))[..., 0]


def summed(p: Array, v: Array) -> Array:
    values = np.repeat(v, p.shape[1] // v.shape[2], 2).astype(np.float64)
    return np.asarray(np.einsum("bhij,bjhd->bihd", p, values))


def before(rows: int, columns: int, causal: bool) -> Array:
    seen = np.ones((rows, columns), bool)
    return np.tril(seen, columns - rows) if causal else seen


def close(found: Any, wanted: Any, dtype: Any) -> None:
    bound = 4e-3 if dtype is np.float16 else 2e-5
    np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=bound, atol=bound)


@pytest.mark.parametrize(("backend", "dtype"), [("reference", np.float16), ("cpu", np.float32)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", [1, 4])
def test_flash_attention(heads: int, causal: bool, backend: str, dtype: Any) -> None:
    q, k, v = (normal(2, *dims, 8, seed=i, dtype=dtype) for i, dims in enumerate(
        [(3, 4), (5, heads), (5, heads)]))  # fmt: skip
    attrs: Any = {
        "softmax_scale": SCALE,
        "causal": causal,
        "return_softmax": True,
        "dropout_p": 0.0,
    }
    out, lse, p, state = ours("byteir.flash_attn_fwd", [q, k, v], backend, **attrs)
    wanted, total = weights(q, k, before(3, 5, causal))
    close(out, summed(wanted, v), dtype)
    close(lse, total, np.float32)
    close(p, wanted, dtype)
    dout = normal(2, 3, 4, 8, seed=3, dtype=dtype)
    given = [dout, q, k, v, out, lse, state]
    del attrs["return_softmax"]
    found = ours("byteir.flash_attn_bwd", given, backend, **attrs)
    for got, want in zip(found, backward(dout, q, k, v, out, wanted), strict=True):
        close(got, want, dtype)


def backward(dout: Array, q: Array, k: Array, v: Array, out: Array, p: Array) -> list[Array]:
    group = q.shape[2] // k.shape[2]
    wide = [a.astype(np.float64) for a in (dout, q, k, v, out)]
    dout, q, k, v, out = wide
    rows = (dout * out).sum(-1).swapaxes(1, 2)
    by_weights = np.einsum("bihd,bjhd->bhij", dout, np.repeat(v, group, 2))
    by_scores = p * (by_weights - rows[..., None]) * SCALE
    dq = np.einsum("bhij,bjhd->bihd", by_scores, np.repeat(k, group, 2))
    dk = np.einsum("bhij,bihd->bjhd", by_scores, q)
    dv = np.einsum("bhij,bihd->bjhd", p, dout)
    shared = [a.reshape(*a.shape[:2], -1, group, a.shape[3]).sum(3) for a in (dk, dv)]
    return [dq, *shared, rows, dq]


def test_dropped_weights_are_those_that_the_output_has() -> None:
    q, k, v = (normal(1, 6, 2, 4, seed=seed) for seed in range(3))
    attrs: Any = {"softmax_scale": SCALE, "causal": False, "return_softmax": True, "dropout_p": 0.4}
    out, lse, p, state = ours("byteir.flash_attn_fwd", [q, k, v], **attrs)
    wanted, total = weights(q, k, before(6, 6, False))
    key, offset = (int(n) for n in state.astype(np.uint64))
    place = offset & 0xFFFFFFFF, offset >> 32
    kept = [scalar_uniform(key, *place, i, F32) >= np.float32(0.4) for i in range(p.size)]
    wanted = np.where(np.reshape(kept, p.shape), wanted / 0.6, 0)
    close(p, wanted, np.float32)
    close(out, summed(wanted, v), np.float32)
    close(lse, total, np.float32)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("results", [2, 4])
@pytest.mark.parametrize("lengths", [[0, 3], [4, 1]])
def test_attention_over_a_cache(lengths: list[int], results: int, causal: bool) -> None:
    q, k, v = normal(2, 2, 4, 3), normal(2, 2, 2, 3, seed=1), normal(2, 2, 2, 3, seed=2)
    caches = [normal(2, 6, 2, 3, seed=seed) for seed in (3, 4)]
    given = [q, *caches, k, v, np.array(lengths, np.int32)]
    attrs: Any = {"softmax_scale": SCALE, "causal": causal, "results": results}
    found = ours("byteir.flash_attn_kvcache", given, **attrs)
    full = [cache.copy() for cache in caches]
    for row, start in enumerate(lengths):
        end = start + 2
        full[0][row, start:end], full[1][row, start:end] = k[row], v[row]
        one = slice(row, row + 1)
        p, total = weights(q[one], full[0][one, :end], before(2, end, causal))
        close(found[0][one], summed(p, full[1][one, :end]), np.float32)
        close(found[1][one], total, np.float32)
    for got, want in zip(found[2:], full, strict=False):
        np.testing.assert_array_equal(got, want)
    assert len(found) == results
