"""Activations, losses, pooling and indexing with their options, against torch: results and
gradients of the first argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from tests.support.tensors import Array, data
from weft import functional

torch = pytest.importorskip("torch", reason="torch is not installed: make test-torch installs it")
T = torch.nn.functional
F: Any = functional

Case = tuple[list[Any], Callable[..., Any], Callable[..., Any]]
"""Arrays, the call in Weft, the call in torch."""

X = data((4, 6), scale=3.0)
Y = data((4, 6), seed=1)
IMAGE = data((2, 3, 7, 8))
CLASSES = np.array([0, 3, 5, 2])
SIGNS = np.sign(data((4, 6), seed=2)).astype(np.float32)
PLACES = np.array([[0, 2, 1], [3, 3, 0]])
SHARES = (np.abs(Y) / np.abs(Y).sum(-1, keepdims=True)).astype(np.float32)
WEIGHT = np.abs(data((6,), seed=3))


def same(name: str, *rest: Any, **more: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    return (
        lambda *x: getattr(F, name)(*x, *rest, **more),
        lambda *x: getattr(T, name)(*x, *rest, **more),
    )


def activations() -> dict[str, Case]:
    plain = ("celu", "hardshrink", "hardtanh", "softshrink", "softsign", "tanhshrink")
    found: dict[str, Case] = {name: ([X], *same(name)) for name in plain}
    return found | {
        "celu 2": ([X], *same("celu", 2.0)),
        "threshold": ([X], *same("threshold", 0.1, 2.0)),
        "softmin": ([X], lambda x: F.softmin(x), lambda x: T.softmin(x, -1)),
        "quick_gelu": ([X], F.quick_gelu, lambda x: x * torch.sigmoid(1.702 * x)),
        "prelu": ([X, WEIGHT], *same("prelu")),
        "normalize": ([X], *same("normalize")),
        "normalize 3": ([X], lambda x: F.normalize(x, 3, 0), lambda x: T.normalize(x, 3, 0)),
        "local_response_norm": ([IMAGE], *same("local_response_norm", 2)),
        "pixel_unshuffle": ([data((2, 3, 4, 6))], *same("pixel_unshuffle", 2)),
        "channel_shuffle": ([data((2, 6, 3, 3))], *same("channel_shuffle", 3)),
    }


def losses() -> dict[str, Case]:
    classes, weight = torch.tensor(CLASSES), torch.tensor(WEIGHT)
    smooth = {"label_smoothing": 0.3}
    return {
        "shares": ([X, SHARES], *same("cross_entropy")),
        "shares smooth": ([X, SHARES], *same("cross_entropy", **smooth)),
        "classes weighed": (
            [X],
            lambda x: F.cross_entropy(x, CLASSES, weight=weft.asarray(WEIGHT), **smooth),
            lambda x: T.cross_entropy(x, classes, weight, **smooth),
        ),
        "nll weighed": (
            [X],
            lambda x: F.nll_loss(x, CLASSES, weight=weft.asarray(WEIGHT), ignore_index=5),
            lambda x: T.nll_loss(x, classes, weight, ignore_index=5),
        ),
        "pos_weight": (
            [X, SHARES],
            lambda x, y: F.binary_cross_entropy_with_logits(x, y, pos_weight=weft.asarray(WEIGHT)),
            lambda x, y: T.binary_cross_entropy_with_logits(x, y, pos_weight=weight),
        ),
        "bce weighed": (
            [SHARES, np.abs(Y) / 4],
            lambda x, y: F.binary_cross_entropy(x, y, weight=weft.asarray(WEIGHT)),
            lambda x, y: T.binary_cross_entropy(x, y, weight=weight),
        ),
        "cosine_similarity": ([X, Y], *same("cosine_similarity")),
        "pairwise_distance": ([X, Y], *same("pairwise_distance")),
        "hinge_embedding_loss": ([X, SIGNS], *same("hinge_embedding_loss")),
        "margin_ranking_loss": ([X, Y, SIGNS], *same("margin_ranking_loss", 0.3)),
        "cosine_embedding_loss": ([X, Y, SIGNS[:, 0]], *same("cosine_embedding_loss", 0.1)),
        "triplet": ([X, Y, X[::-1].copy()], *same("triplet_margin_loss", swap=True)),
        "soft_margin_loss": ([X, SIGNS], *same("soft_margin_loss")),
        "multi_margin_loss": (
            [X],
            lambda x: F.multi_margin_loss(x, CLASSES),
            lambda x: T.multi_margin_loss(x, classes),
        ),
        "multilabel_margin_loss": (
            [X],
            lambda x: F.multilabel_margin_loss(x, _labels()),
            lambda x: T.multilabel_margin_loss(x, torch.tensor(_labels())),
        ),
        "multilabel_soft": ([X, SHARES], *same("multilabel_soft_margin_loss")),
        "poisson": ([X, np.abs(Y) * 5], *same("poisson_nll_loss", full=True)),
        "gaussian": ([X, Y, np.abs(Y) + 1], *same("gaussian_nll_loss", full=True)),
    }  # fmt: skip


def _labels() -> Array:
    return np.array([[1, 3, -1, 2, 0, 0], [-1] * 6, [0, 1, 2, 3, 4, 5], [5, -1, 1, 1, 1, 1]])


def windows() -> dict[str, Case]:
    places = torch.tensor(PLACES)
    return {
        "unfold": ([IMAGE], *same("unfold", (2, 3), 1, 1, 2)),
        "fold": ([data((2, 12, 9))], *same("fold", (4, 4), (2, 2))),
        "unpool": (
            [IMAGE],
            lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2),
            lambda x: T.max_unpool2d(*T.max_pool2d(x, 2, return_indices=True), 2),
        ),
        "conv without batch": ([IMAGE[0], data((4, 3, 3, 3))], *same("conv2d")),
        "conv cut": (
            [IMAGE, data((4, 3, 3, 3))],
            lambda x, w: F.conv2d(x, w, padding=[(-1, 0), (1, -2)]),
            lambda x, w: T.conv2d(T.pad(x, (1, -2, -1, 0)), w),
        ),
        "pool without batch": ([IMAGE[0]], *same("max_pool2d", 2)),
        "attention without batch": (
            [data((2, 5, 4)), data((2, 6, 4), seed=1), data((2, 6, 3), seed=2)],
            F.attention,
            T.scaled_dot_product_attention,
        ),
        "pad cut": (
            [IMAGE],
            lambda x: F.pad(x, [(0, 0), (0, 0), (-1, 2), (1, -3)], "reflect"),
            lambda x: T.pad(x, (1, -3, -1, 2), mode="reflect"),
        ),
        **{mode: ([IMAGE], *same("interpolate", (5, 11), mode=mode)) for mode in (
            "nearest-exact", "bicubic", "area"
        )},
        "gather less": (
            [X], lambda x: F.gather(x, PLACES, 0), lambda x: x.gather(0, places)
        ),
        **{f"scatter {ours} {self}": (
            [X, Y],
            lambda x, y, ours=ours, self=self: F.scatter(
                x, PLACES, y[:2, :3], 0, reduce=ours, include_self=self
            ),
            lambda x, y, theirs=theirs, self=self: x.scatter_reduce(
                0, places, y[:2, :3], theirs, include_self=self
            ),
        ) for ours, theirs in (("prod", "prod"), ("mean", "mean"), ("max", "amax"), ("add", "sum"))
          for self in (True, False)},
    }  # fmt: skip


CASES = activations() | losses() | windows()


@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients(name: str) -> None:
    arrays, ours, theirs = CASES[name]
    first = torch.tensor(np.asarray(arrays[0]), requires_grad=True)
    wanted = theirs(first, *map(torch.tensor, arrays[1:]))
    found = ours(*map(weft.asarray, arrays))
    np.testing.assert_allclose(found.numpy(), wanted.detach().numpy(), rtol=2e-5, atol=2e-6)
    seed = data(tuple(wanted.shape), seed=9)
    slope = torch.autograd.grad(wanted, first, torch.tensor(seed))[0].numpy()
    rest = [weft.asarray(a) for a in arrays[1:]]
    grad = weft.grad(lambda x: weft.sum(ours(x, *rest) * weft.asarray(seed)))
    np.testing.assert_allclose(grad(weft.asarray(arrays[0])).numpy(), slope, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic", "nearest"])
def test_bytes_are_rounded_once(mode: str) -> None:
    x = np.random.default_rng(0).integers(0, 256, (1, 2, 9, 9)).astype(np.uint8)
    found = F.interpolate(weft.asarray(x), (6, 13), mode=mode).numpy()
    wide = T.interpolate(torch.tensor(x).float(), (6, 13), mode=mode).numpy()
    assert found.dtype == np.uint8
    assert np.abs(found - np.clip(wide, 0, 255)).max() <= 0.501


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_places_between_two_elements_are_rounded_as_in_torch(mode: str) -> None:
    """New elements that begin just where an old one does."""
    for old, sizes in ((2, (49, 61, 82, 94)), (7, (98, 121)), (31, (47, 97))):
        x = np.arange(old, dtype=np.float32)[None, None]
        for size in sizes:
            wanted = T.interpolate(torch.tensor(x), size, mode=mode).numpy()
            found = F.interpolate(weft.asarray(x), size, mode=mode).numpy()
            np.testing.assert_array_equal(found, wanted, f"{old} to {size}")


def test_positions_of_the_largest() -> None:
    for padding, dilation, ceil in ((0, 1, False), (1, 2, False), (1, 1, True)):
        more = {"padding": padding, "dilation": dilation, "ceil_mode": ceil}
        values, places = F.max_pool2d(weft.asarray(IMAGE), 3, 2, return_indices=True, **more)
        wanted = T.max_pool2d(torch.tensor(IMAGE), 3, 2, return_indices=True, **more)
        np.testing.assert_array_equal(values.numpy(), wanted[0].numpy())
        np.testing.assert_array_equal(places.numpy(), wanted[1].numpy())
