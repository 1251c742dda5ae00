"""Coarse ops against PyTorch, their gradients included, over their attributes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import weft
from tests.support import Array
from weft.foundation.dtypes import as_dtype
from weft.ptir import Builder
from weft.ptir.gradient import vjp

torch: Any = pytest.importorskip("torch", reason="the oracle is PyTorch: pip install torch")


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


def agree(
    name: str,
    theirs: Callable[..., Any],
    inputs: Sequence[Array],
    *,
    element: int | None = None,
    rounding: float = 1e-10,
    **attrs: Any,
) -> None:
    """One result, and its gradient with respect to every float operand."""
    b = Builder()
    parameters = [b.param(as_dtype(a.dtype), a.shape) for a in inputs]
    result = b.emit(name, *parameters, **attrs)
    program = b.build(result if element is None else result[element])
    floats = [i for i, a in enumerate(inputs) if a.dtype.kind == "f"]
    tensors = [torch.tensor(a, requires_grad=a.dtype.kind == "f") for a in inputs]
    wanted = theirs(*tensors)
    cotangent = normal(*wanted.shape, seed=99)
    wanted.backward(torch.tensor(cotangent))
    found, *gradients = weft.run(vjp(program, floats), [*inputs, cotangent])
    np.testing.assert_allclose(found, wanted.detach().numpy(), rtol=rounding, atol=rounding)
    for index, gradient in zip(floats, gradients, strict=True):
        np.testing.assert_allclose(
            gradient, tensors[index].grad.numpy(), rtol=10 * rounding, atol=10 * rounding
        )


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_softmax(axis: int) -> None:
    x = normal(3, 4, 5)
    agree("byteir.softmax", lambda t: torch.softmax(t, axis), [x], axis=axis)
    agree("byteir.log_softmax", lambda t: torch.log_softmax(t, axis), [x], axis=axis)


@pytest.mark.parametrize("first", [0, 1, 2])
def test_layer_norm(first: int) -> None:
    x = normal(2, 3, 4)
    shape, axes = x.shape[first:], list(range(first, 3))
    inputs = [x, normal(*shape, seed=1), normal(*shape, seed=2)]

    def theirs(t: Any, w: Any, c: Any) -> Any:
        return torch.nn.functional.layer_norm(t, shape, w, c, 1e-3)

    agree("byteir.layer_norm", theirs, inputs, epsilon=1e-3, axis=axes)


@pytest.mark.parametrize("axis", [0, 1])
def test_l2_norm(axis: int) -> None:
    def theirs(t: Any) -> Any:
        return torch.nn.functional.normalize(t, dim=axis, eps=1e-3)

    agree(
        "byteir.l2_norm", theirs, [normal(3, 4)], epsilon=1e-3, axis=[axis], eps_outside_sqrt=True
    )


@pytest.mark.parametrize("form", ["none", "tanh"])
def test_gelu(form: str) -> None:
    def theirs(t: Any) -> Any:
        return torch.nn.functional.gelu(t, approximate=form)

    agree("byteir.gelu", theirs, [normal(30) * 2], approximate=form)


def test_top_k() -> None:
    x = np.random.default_rng(4).permutation(60).reshape(3, 4, 5).astype(np.float64)
    for axis in range(3):
        agree(
            "byteir.top_k", lambda t, axis=axis: torch.topk(t, 2, axis).values, [x], element=0,
            axis=[axis], k=2,
        )  # fmt: skip


def test_repeat() -> None:
    counts = np.array([2, 0, 3])
    agree(
        "byteir.repeat", lambda t, n: torch.repeat_interleave(t, n, 0), [normal(3, 4), counts],
        length=5,
    )  # fmt: skip


@pytest.mark.parametrize(("size", "corners"), [*itertools.product([(7, 5), (3, 2)], [False, True])])
def test_resize(size: tuple[int, int], corners: bool) -> None:
    x, target = normal(1, 2, 4, 4), np.array([1, 2, *size])

    def theirs(t: Any, _: Any) -> Any:
        return torch.nn.functional.interpolate(t, size, mode="bilinear", align_corners=corners)

    agree(
        "byteir.resize", theirs, [x, target], target_mode="size", mode="linear",
        shape=[1, 2, *size],
        coordinate_transformation_mode="align_corners" if corners else "pytorch_half_pixel",
    )  # fmt: skip


def test_resize_to_the_nearest() -> None:
    def theirs(t: Any, _: Any) -> Any:
        return torch.nn.functional.interpolate(t, (8, 6), mode="nearest")

    agree(
        "byteir.resize", theirs, [normal(1, 2, 4, 4), np.array([1, 2, 8, 6])], target_mode="size",
        mode="nearest", shape=[1, 2, 8, 6], coordinate_transformation_mode="asymmetric",
    )  # fmt: skip


CONVOLUTIONS = [
    {"stride": 1, "padding": 0, "dilation": 1, "groups": 1},
    {"stride": (2, 1), "padding": (1, 2), "dilation": 1, "groups": 1},
    {"stride": 1, "padding": 1, "dilation": (1, 2), "groups": 2},
    {"stride": 2, "padding": 0, "dilation": 1, "groups": 4},
]


@pytest.mark.parametrize("options", CONVOLUTIONS, ids=str)
def test_convolution(options: dict[str, Any]) -> None:
    groups = options["groups"]
    inputs = [normal(2, 4, 7, 6), normal(8, 4 // groups, 3, 2, seed=1), normal(8, seed=2)]

    def pair(value: Any) -> list[int]:
        return list(value) if isinstance(value, tuple) else [value, value]

    def theirs(t: Any, w: Any, c: Any) -> Any:
        return torch.nn.functional.conv2d(t, w, c, **options)

    agree(
        "weft.conv", theirs, inputs, layout="NCHW", groups=groups, stride=pair(options["stride"]),
        dilation=pair(options["dilation"]), pad=pair(options["padding"]) * 2,
    )  # fmt: skip


@pytest.mark.parametrize(("causal", "masked"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("heads", [2, 4])
def test_attention(causal: bool, masked: bool, heads: int) -> None:
    q = normal(2, 4, 5, 6)
    k, v = (normal(2, heads, 5, 6, seed=seed) for seed in (1, 2))
    inputs = [q, k, v, *([normal(5, 5, seed=3)] if masked else [])]

    def theirs(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, mask, is_causal=causal, enable_gqa=heads != 4
        )

    agree("weft.attention", theirs, inputs, element=0, causal=causal)


def test_the_log_sum_exp_of_attention() -> None:
    q, k, v = (normal(1, 2, 4, 3, seed=seed) for seed in range(3))

    def theirs(q: Any, k: Any, v: Any) -> Any:
        return torch.logsumexp(q @ k.transpose(-1, -2) * 0.5, -1) + 0 * v.sum()

    agree("weft.attention", theirs, [q, k, v], element=1, scale=0.5)
