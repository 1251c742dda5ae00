"""Functional ops against torch: same names, same arguments, same results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from tests.support.tensors import Array, data
from weft import functional as F

torch = pytest.importorskip("torch", reason="torch is not installed: make test-torch installs it")
T = torch.nn.functional

Case = tuple[list[Array], Callable[..., Any], Callable[..., Any]]
"""Arrays, the call in Weft, the call in torch."""


def both(name: str, *rest: Any, **settings: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The same call in both libraries: some tensors, then what is given here."""

    def call(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *tensors: function(*tensors, *rest, **settings)

    return call(getattr(F, name)), call(getattr(T, name))


def pointwise() -> dict[str, Case]:
    x = [data((5, 7), scale=3.0)]
    plain = ["relu", "relu6", "gelu", "silu", "softplus", "leaky_relu", "elu", "selu",
             "hardsigmoid", "hardswish", "mish", "sigmoid", "tanh"]  # fmt: skip
    cases: dict[str, Case] = {}
    for name in plain:
        other = getattr(T, name) if name not in ("sigmoid", "tanh") else getattr(torch, name)
        cases[name] = (x, getattr(F, name), other)
    cases |= {
        "gelu tanh": (x, lambda x: F.gelu(x, "tanh"), lambda x: T.gelu(x, approximate="tanh")),
        "log_sigmoid": (x, F.log_sigmoid, T.logsigmoid),
        "softmax": (x, lambda x: F.softmax(x, 0), lambda x: T.softmax(x, 0)),
        "log_softmax": (x, F.log_softmax, lambda x: T.log_softmax(x, -1)),
        "softplus 2": (x, lambda x: F.softplus(x, 2.0, 3.0), lambda x: T.softplus(x, 2.0, 3.0)),
        "glu": ([data((3, 6))], F.glu, T.glu),
    }
    return cases


def attentions() -> dict[str, Case]:
    q, k, v = data((2, 4, 5, 8)), data((2, 4, 5, 8), seed=1), data((2, 4, 5, 8), seed=2)
    few = [q, k[:, :2], v[:, :2]]
    mask = data((5, 5), seed=3)
    seen = mask > -1
    seen[:, 0] = True
    sdpa = T.scaled_dot_product_attention
    return {
        "attention": ([q, k, v], F.attention, sdpa),
        "attention causal": (
            [q, k, v],
            lambda q, k, v: F.attention(q, k, v, causal=True),
            lambda q, k, v: sdpa(q, k, v, is_causal=True),
        ),
        "attention mask": ([q, k, v, mask], F.attention, sdpa),
        "attention boolean mask": ([q, k, v, seen], F.attention, sdpa),
        "attention scale": (
            [q, k, v],
            lambda q, k, v: F.attention(q, k, v, scale=0.1),
            lambda q, k, v: sdpa(q, k, v, scale=0.1),
        ),
        "attention groups": (few, F.attention, lambda q, k, v: sdpa(q, k, v, enable_gqa=True)),
    }


def convolutions() -> dict[str, Case]:
    cases: dict[str, Case] = {}
    for n in (1, 2, 3):
        size = (6, 5, 4)[:n]
        x, w, b = data((2, 4, *size)), data((6, 2, *[2] * n), seed=1), data((6,), seed=2)
        settings: dict[str, Any] = {"stride": 2, "padding": 1, "dilation": 1, "groups": 2}
        name = f"conv{n}d"
        cases[name] = ([x, w, b], *both(name, **settings))
        w = data((4, 3, *[3] * n), seed=1)
        settings = {"stride": 2, "padding": 1, "output_padding": 1, "groups": 2}
        name = f"conv_transpose{n}d"
        cases[name] = ([x, w, b], *both(name, **settings))
    x, w = data((1, 2, 9)), data((3, 2, 3), seed=1)
    cases["conv1d same"] = ([x, w], *both("conv1d", padding="same", dilation=2))
    return cases


def pools() -> dict[str, Case]:
    cases: dict[str, Case] = {}
    for n in (1, 2, 3):
        x = [data((2, 3, *(7, 6, 5)[:n]))]
        cases[f"max_pool{n}d"] = (x, *both(f"max_pool{n}d", 3, 2, 1))
        cases[f"avg_pool{n}d"] = (x, *both(f"avg_pool{n}d", 3, 2, 1))
        cases[f"adaptive_max_pool{n}d"] = (x, *both(f"adaptive_max_pool{n}d", 3))
        cases[f"adaptive_avg_pool{n}d"] = (x, *both(f"adaptive_avg_pool{n}d", 2))
    x = [data((1, 2, 6, 6))]
    inside = both("avg_pool2d", 3, 2, 1, count_include_pad=False)
    cases["avg_pool2d without padding"] = (x, *inside)
    cases["max_pool2d dilated"] = (x, *both("max_pool2d", 2, 1, 0, 2))
    x = [data((1, 2, 7, 5))]
    for window, stride, padding in ((2, 2, 0), (3, 2, 1), (3, 4, 1), (2, 3, 0)):
        sizes = (window, stride, padding)
        for name in ("max_pool2d", "avg_pool2d"):
            calls = both(name, *sizes, ceil_mode=True)
            cases[f"{name} to the end {sizes}"] = (x, *calls)
        calls = both("avg_pool2d", *sizes, ceil_mode=True, count_include_pad=False)
        cases[f"avg_pool2d to the end without padding {sizes}"] = (x, *calls)
    return cases


def norms() -> dict[str, Case]:
    x, w, b = data((2, 4, 3, 5), scale=3.0), data((4,), seed=1), data((4,), seed=2)
    mean, var = data((4,), seed=3), np.abs(data((4,), seed=4))
    last = data((5,), seed=5)
    return {
        "layer_norm": (
            [x, last, last],
            lambda x, w, b: F.layer_norm(x, 5, w, b),
            lambda x, w, b: T.layer_norm(x, (5,), w, b),
        ),
        "layer_norm over two axes": (
            [x],
            lambda x: F.layer_norm(x, (3, 5)),
            lambda x: T.layer_norm(x, (3, 5)),
        ),
        "rms_norm": (
            [x, last],
            lambda x, w: F.rms_norm(x, 5, w, 1e-5),
            lambda x, w: T.rms_norm(x, (5,), w, 1e-5),
        ),
        "batch_norm inference": ([x, mean, var, w, b], F.batch_norm, T.batch_norm),
        "batch_norm training": (
            [x, w, b],
            lambda x, w, b: F.batch_norm(x, None, None, w, b),
            lambda x, w, b: T.batch_norm(x, None, None, w, b, training=True),
        ),
        "group_norm": (
            [x, w, b],
            lambda x, w, b: F.group_norm(x, 2, w, b),
            lambda x, w, b: T.group_norm(x, 2, w, b),
        ),
        "instance_norm": (
            [x, w, b],
            lambda x, w, b: F.instance_norm(x, w, b),
            lambda x, w, b: T.instance_norm(x, weight=w, bias=b),
        ),
    }


def losses() -> dict[str, Case]:
    x, y = data((4, 5)), data((4, 5), seed=1)
    p, q = (1 / (1 + np.exp(-a)) for a in (x, y))
    classes = np.asarray([1, 4, -100, 0])
    cases: dict[str, Case] = {}
    for reduction in ("mean", "sum", "none"):
        for name, arrays in {
            "mse_loss": [x, y], "l1_loss": [x, y], "huber_loss": [x, y],
            "smooth_l1_loss": [x, y], "binary_cross_entropy": [p, q],
            "binary_cross_entropy_with_logits": [x, q],
        }.items():  # fmt: skip
            cases[f"{name} {reduction}"] = (arrays, *both(name, reduction=reduction))
        for smoothing in (0.0, 0.3):
            calls = both("cross_entropy", reduction=reduction, label_smoothing=smoothing)
            cases[f"cross_entropy {reduction} {smoothing}"] = ([x, classes], *calls)
    for reduction in ("sum", "batchmean"):
        cases[f"kl_div {reduction}"] = ([np.log(p), q], *both("kl_div", reduction=reduction))
    return cases


def others() -> dict[str, Case]:
    x = data((1, 4, 4, 6))
    rows, table = np.asarray([[1, 2], [0, 3]]), data((4, 3))
    places = np.asarray([[0, 2, 1], [3, 0, 0]])
    values = data((2, 3), seed=1)
    return {
        "linear": ([data((2, 3, 4)), data((5, 4)), data((5,))], F.linear, T.linear),
        "matmul": ([data((2, 1, 3, 4)), data((5, 4, 2))], F.matmul, torch.matmul),
        "einsum": (
            [data((2, 3, 4, 5)), data((2, 6, 4, 5))],
            lambda a, b: F.einsum("bqhd,bkhd->bhqk", a, b),
            lambda a, b: torch.einsum("bqhd,bkhd->bhqk", a, b),
        ),
        "embedding": ([rows, table], F.embedding, T.embedding),
        "interpolate bilinear": ([x], *both("interpolate", size=(7, 5), mode="bilinear")),
        "logsumexp": ([x], lambda x: x.logsumexp((1, 3)), lambda x: x.logsumexp((1, 3))),
        "one_hot": (
            [rows],
            lambda x: F.one_hot(x, 4, dtype="si64"),
            lambda x: T.one_hot(x, 4),
        ),
        "gather": (
            [data((2, 4)), places],
            lambda x, i: F.gather(x, i, 1),
            lambda x, i: torch.gather(x, 1, i),
        ),
        "scatter_add": (
            [data((2, 4)), places, values],
            lambda x, i, u: F.scatter_add(x, i, u, 1),
            lambda x, i, u: torch.scatter_add(x, 1, i, u),
        ),
        "top_k": (
            [data((3, 7))],
            lambda x: F.top_k(x, 3)[0],
            lambda x: torch.topk(x, 3)[0],
        ),
        "pad": (
            [x],
            lambda x: F.pad(x, ((0, 0), (0, 0), (1, 2), (3, 0)), "reflect"),
            lambda x: T.pad(x, (3, 0, 1, 2), mode="reflect"),
        ),
        "pixel_shuffle": ([x], lambda x: F.pixel_shuffle(x, 2), lambda x: T.pixel_shuffle(x, 2)),
        "interpolate nearest": (
            [x],
            lambda x: F.interpolate(x, (7, 4)),
            lambda x: T.interpolate(x, (7, 4)),
        ),
        "interpolate linear": (
            [x],
            lambda x: F.interpolate(x, (7, 4), mode="linear"),
            lambda x: T.interpolate(x, (7, 4), mode="bilinear"),
        ),
        "interpolate corners": (
            [x],
            lambda x: F.interpolate(x, (7, 4), mode="linear", align_corners=True),
            lambda x: T.interpolate(x, (7, 4), mode="bilinear", align_corners=True),
        ),
        "interpolate by a factor": (
            [x],
            lambda x: F.interpolate(x, scale_factor=1.7, mode="linear"),
            lambda x: T.interpolate(x, scale_factor=1.7, mode="bilinear"),
        ),
    }


CASES: dict[str, Case] = {
    **pointwise(), **attentions(), **convolutions(), **pools(), **norms(), **losses(), **others(),
}  # fmt: skip
TOLERANCE = {"float32": 2e-5, "float16": 1e-2, "bfloat16": 6e-2}
NOT_IN_NARROW = {
    "binary_cross_entropy", "interpolate", "kl_div", "one_hot", "cross_entropy", "embedding",
    "avg_pool3d",
}  # fmt: skip
"""Torch has no kernel on the CPU, rounds more often than we do, or there is nothing to round."""


def as_torch(array: Array, dtype: str) -> Any:
    made = torch.from_numpy(np.array(array))
    return made.to(getattr(torch, dtype)) if made.dtype == torch.float32 else made


def as_weft(array: Array, dtype: str) -> weft.Tensor:
    made: weft.Tensor = weft.asarray(array)
    return made.astype(getattr(weft, dtype)) if array.dtype == np.float32 else made


def compare(name: str, dtype: str) -> None:
    arrays, ours, theirs = CASES[name]
    found = ours(*(as_weft(a, dtype) for a in arrays))
    expected = theirs(*(as_torch(a, dtype) for a in arrays))
    assert str(expected.dtype).removeprefix("torch.") in (dtype, "int64")
    wide = expected.double().numpy() if expected.is_floating_point() else expected.numpy()
    assert found.shape == wide.shape
    elements = found.numpy().astype(wide.dtype)
    tolerance = TOLERANCE[dtype] * max(1.0, float(np.abs(wide).max(initial=0.0)))
    np.testing.assert_allclose(elements, wide, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", CASES)
def test_the_same_as_torch(name: str) -> None:
    compare(name, "float32")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", [n for n in CASES if n.split(" ")[0] not in NOT_IN_NARROW])
def test_the_same_as_torch_in_narrow_floats(name: str, dtype: str) -> None:
    compare(name, dtype)
