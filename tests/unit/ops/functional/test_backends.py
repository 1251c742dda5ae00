"""Functional ops at the edges of their shapes, on the CPU and on the reference backend: no elements
at all, single ones, and sizes that no vector or tile divides. The reference is compared with
oracles by the other files here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import weft
from tests.support.tensors import data
from weft import functional

F: Any = functional
Case = tuple[Callable[..., Any], list[Any]]


def places(size: int, *shape: int) -> Any:
    return np.random.default_rng([size, *shape]).integers(0, max(size, 1), shape)


def along_axes() -> Iterator[tuple[str, Case]]:
    calls: dict[str, Callable[..., Any]] = {
        "gelu": F.gelu,
        "softmax": F.softmax,
        "log_softmax": lambda x: F.log_softmax(x, 0),
        "logsumexp": F.logsumexp,
        "layer_norm": F.layer_norm,
        "cumsum": lambda x: F.cumsum(x, -1),
        "sort": F.sort,
        "pad": lambda x: F.pad(x, 1),
        "var": lambda x: x.var(-1),
        "kl_div": lambda x: F.kl_div(x, weft.abs(x), "batchmean"),
    }
    for shape in [(1,), (0,), (3, 5), (2, 0, 3), (1, 257)]:
        for name, call in calls.items():
            yield f"{name} {shape}", (call, [data(shape)])


def classes() -> Iterator[tuple[str, Case]]:
    for rows, count in [(0, 3), (1, 1), (5, 7), (4, 129)]:
        inputs = [data((rows, count)), places(count, rows)]
        yield f"cross_entropy {rows} {count}", (F.cross_entropy, inputs)
        yield f"one_hot {rows} {count}", (lambda i, c=count: F.one_hot(i, c), inputs[1:])
        yield f"embedding {rows} {count}", (F.embedding, [places(5, rows), data((5, count))])


def products() -> Iterator[tuple[str, Case]]:
    for m, k, n in [(0, 3, 2), (3, 0, 2), (1, 1, 1), (5, 7, 3), (1, 129, 1), (33, 65, 31)]:
        yield f"matmul {m} {k} {n}", (F.matmul, [data((2, m, k)), data((k, n), seed=1)])
    for q, k, d in [(1, 1, 1), (5, 7, 3), (0, 3, 4), (3, 0, 4), (3, 131, 8)]:
        inputs = [data((1, 2, s, d), seed=s) for s in (q, k, k)]
        yield f"attention {q} {k} {d}", (lambda *x: F.attention(*x, causal=True), inputs)


def images() -> Iterator[tuple[str, Case]]:
    calls: dict[str, Callable[..., Any]] = {
        "conv2d": lambda x, w: F.conv2d(x, w, padding=1),
        "conv_transpose2d": lambda x, w: F.conv_transpose2d(x, w.permute_dims(1, 0, 2, 3)),
        "max_pool2d": lambda x, w: F.max_pool2d(x, 2, ceil_mode=True),
        "avg_pool2d": lambda x, w: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
        "adaptive_avg_pool2d": lambda x, w: F.adaptive_avg_pool2d(x, (2, 3)),
        "batch_norm": lambda x, w: F.batch_norm(x),
        "interpolate": lambda x, w: F.interpolate(x, (4, 3), mode="bilinear"),
    }
    for shape in [(1, 1, 2, 2), (0, 3, 5, 5), (2, 5, 9, 3)]:
        weight = data((3, shape[1], 2, 1))
        for name, call in calls.items():
            yield f"{name} {shape}", (call, [data(shape), weight])


CASES: dict[str, Case] = dict([*along_axes(), *classes(), *products(), *images()])


@pytest.mark.parametrize("name", CASES)
def test_the_cpu_agrees_with_the_reference(name: str) -> None:
    call, arrays = CASES[name]
    results = []
    for backend in ("reference", "cpu"):
        with weft.graph(backend=backend):
            results.append(np.asarray(call(*[weft.asarray(x) for x in arrays])))
    wanted, found = results
    assert found.shape == wanted.shape
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-6)
