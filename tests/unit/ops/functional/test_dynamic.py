"""Functional ops on a batch whose size is open: one trace, the results of the fixed sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from tests.support.tensors import data
from weft import functional as F


def t(*shape: int) -> Any:
    return weft.asarray(data(shape))


def ids(x: Any) -> Any:
    """Class numbers 0, 1 or 2 for every row."""
    return weft.astype(weft.remainder(weft.floor(x[:, 0] * 4.0), 3.0), weft.int64)


CALLS: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
    "softmax": (F.softmax, (3,)),
    "layer_norm": (lambda x: F.layer_norm(x, 3, t(3), t(3)), (3,)),
    "rms_norm": (lambda x: F.rms_norm(x, 3, t(3)), (3,)),
    "group_norm": (lambda x: F.group_norm(x, 2), (4, 3)),
    "batch_norm": (F.batch_norm, (4, 3)),
    "linear": (lambda x: F.linear(x, t(4, 3), t(4)), (3,)),
    "matmul": (lambda x: F.matmul(x, t(3, 2)), (2, 3)),
    "matmul of batches": (lambda x: F.matmul(x, x.mT), (2, 3)),
    "einsum": (lambda x: F.einsum("bij,bkj->bik", x, x), (2, 3)),
    "attention": (lambda x: F.attention(x, x, x, causal=True), (2, 3, 4)),
    "attention in groups": (lambda x: F.attention(x, x[:, :1], x[:, :1]), (2, 3, 4)),
    "conv2d": (lambda x: F.conv2d(x, t(4, 3, 3, 3), padding=1), (3, 6, 6)),
    "conv2d in groups": (lambda x: F.conv2d(x, t(4, 1, 3, 3), groups=4), (4, 6, 6)),
    "conv_transpose2d": (lambda x: F.conv_transpose2d(x, t(3, 4, 3, 3), padding=3), (3, 6, 6)),
    "max_pool2d": (lambda x: F.max_pool2d(x, 2), (3, 6, 6)),
    "avg_pool2d": (lambda x: F.avg_pool2d(x, 3, 1, 1, count_include_pad=False), (3, 6, 6)),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, 4), (3, 6, 6)),
    "cross_entropy": (lambda x: F.cross_entropy(x, ids(x)), (3,)),
    "mse_loss": (lambda x: F.mse_loss(x, x * 0.5), (3,)),
    "dropout": (lambda x: F.dropout(x, 0.5, seed=3), (3,)),
    "glu": (F.glu, (4,)),
    "rotary_embedding": (lambda x: F.rotary_embedding(x, weft.asarray([0, 5])), (2, 4)),
    "pad": (lambda x: F.pad(x, ((0, 0), (1, 2))), (4,)),
    "pad reflect": (lambda x: F.pad(x, ((0, 0), (1, 2)), "reflect"), (4,)),
    "interpolate": (lambda x: F.interpolate(x, 4, mode="linear"), (2, 6, 6)),
    "top_k": (lambda x: F.top_k(x, 2)[0], (4,)),
    "one_hot": (lambda x: F.one_hot(ids(x), 3), (1,)),
    "embedding": (lambda x: F.embedding(ids(x), t(3, 5)), (1,)),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), (4, 2, 3)),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_open_batch(name: str) -> None:
    function, rest = CALLS[name]
    jitted = weft.jit(lambda x: function(x), dynamic={0: {0: "B"}})
    for batch in (1, 5):
        x = weft.asarray(data((batch, *rest), seed=batch))
        found, expected = jitted(x).numpy(), function(x).numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    assert len(jitted.versions) == 1


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.pad(x, 1, "wrap"),
        lambda x: F.update_cache(x, x, 0, axis=1),
        lambda x: F.top_k(x, 1, axis=0)[0],
        lambda x: F.glu(x, axis=0),
    ],
)
def test_what_needs_the_size_has_it_exactly(function: Callable[[Any], Any]) -> None:
    """A size that a function needs is no longer open: each has a version of its own."""
    jitted = weft.jit(function, dynamic={0: {0: "B"}})
    for batch in (2, 4):
        found, expected = jitted(t(batch, 3)).numpy(), function(t(batch, 3)).numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    assert len(jitted.versions) == 2
