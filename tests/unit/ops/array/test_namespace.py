"""The namespace itself: names, methods beside functions, what programs can ask about it, and the
programs that common calls become."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import weft
from tests.unit.ops.array.arrays import agrees, data
from weft.foundation.errors import UserError
from weft.ops import namespace
from weft.ops.array import (
    elementwise,
    indexing,
    linear_algebra,
    manipulation,
    searching,
    sets,
    sorting,
    statistics,
    utility,
)
from weft.ops.jit import jit

ON_TENSORS = [
    elementwise, indexing, linear_algebra, manipulation, searching, sets, sorting,
    statistics, utility,
]  # fmt: skip
OF_SEVERAL = {"broadcast_arrays", "concat", "stack"}
"""Functions whose first argument is no tensor: they are no methods."""


def test_every_name_is_there_once() -> None:
    assert len(namespace.__all__) == len(set(namespace.__all__))
    for name in namespace.__all__:
        assert getattr(weft, name) is getattr(namespace, name)
        assert name in dir(weft)
    for part in (weft.linalg, weft.fft):
        assert part.__all__ == sorted(part.__all__)
        assert all(callable(getattr(part, name)) for name in part.__all__)


@pytest.mark.parametrize("module", ON_TENSORS, ids=lambda m: m.__name__.rpartition(".")[2])
def test_functions_on_tensors_are_methods(module: Any) -> None:
    for name in set(module.__all__) - OF_SEVERAL:
        function, method = getattr(weft, name), getattr(weft.Tensor, name)
        assert function.__doc__, name
        if name in ("reshape", "permute_dims", "where") or isinstance(method, property):
            continue
        assert inspect.signature(method) == inspect.signature(function), name


def test_functions_and_methods_agree() -> None:
    x = data("float64", (3, 4))
    t = weft.asarray(x)
    agrees(t.sum(axis=0).exp().reshape(2, 2), np.exp(x.sum(0)).reshape(2, 2))
    agrees(t.astype(weft.float32).mT, x.astype(np.float32).T)


def test_importing_weft_does_not_load_the_namespace() -> None:
    code = (
        "import sys, weft; assert not [m for m in sys.modules if m.startswith('weft.ops')]; "
        "weft.zeros(2); heavy = {'scipy', 'llvmlite', 'islpy', 'torch'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# -- what programs ask ---------------------------------------------------------------------------


def test_the_namespace_of_a_tensor() -> None:
    x = weft.ones(2)
    assert x.__array_namespace__() is weft
    assert x.__array_namespace__(api_version="2024.12") is weft
    assert weft.__array_api_version__ == "2024.12"
    with pytest.raises(UserError, match=r"version '2030\.12' of the array API is not known"):
        x.__array_namespace__(api_version="2030.12")


def test_inspection() -> None:
    info = weft.__array_namespace_info__()
    assert info.capabilities()["max dimensions"] == 64
    assert info.default_device() in info.devices()
    assert info.default_dtypes()["real floating"] is weft.float32
    assert info.dtypes(kind="signed integer") == {
        "int8": weft.int8, "int16": weft.int16, "int32": weft.int32, "int64": weft.int64,
    }  # fmt: skip
    assert set(info.dtypes(kind=("bool", "real floating"))) == {"bool", "float32", "float64"}
    with pytest.raises(UserError, match="unknown kind 'strings'"):
        info.dtypes(kind="strings")


@pytest.mark.parametrize(
    ("name", "bits", "eps", "largest"),
    [
        ("float32", 32, 2**-23, 3.4028234663852886e38),
        ("float64", 64, 2**-52, 1.7976931348623157e308),
        ("float16", 16, 2**-10, 65504.0), ("bfloat16", 16, 2**-7, 3.3895313892515355e38),
        ("complex64", 32, 2**-23, 3.4028234663852886e38), ("float8_e4m3", 8, 2**-3, 448.0),
    ],
)  # fmt: skip
def test_finfo(name: str, bits: int, eps: float, largest: float) -> None:
    info = weft.finfo(getattr(weft, name))
    assert (info.bits, info.eps, info.max, info.min) == (bits, eps, largest, -largest)
    assert weft.finfo(weft.ones(2, dtype=getattr(weft, name))) == info


def test_iinfo_and_isdtype() -> None:
    info = weft.iinfo(weft.uint8)
    assert (info.bits, info.max, info.min) == (8, 255, 0)
    assert weft.iinfo(weft.arange(3)).max == 2**63 - 1
    assert weft.isdtype(weft.float32, ("integral", weft.float32))
    assert not weft.isdtype(weft.bool, "numeric")
    with pytest.raises(UserError, match="unknown kind 'floats'"):
        weft.isdtype(weft.float32, "floats")


def test_constants() -> None:
    assert (weft.pi, weft.e, weft.inf, weft.newaxis) == (np.pi, np.e, np.inf, None)
    assert np.isnan(weft.nan)


# -- conversion ----------------------------------------------------------------------------------


def test_astype() -> None:
    x = weft.asarray([1.7, -2.9, float("nan"), 300.0])
    agrees(x.astype(weft.int8), [1, -2, 0, 127], "int8")
    agrees(x.astype("uint8"), [1, 0, 0, 255], "uint8")
    agrees(x.astype(weft.bool), [True, True, True, True])
    agrees(x.astype(weft.complex64), x.numpy(), "complex64")
    assert x.astype(weft.float32, copy=False) is x
    assert x.astype(weft.float32) is not x
    with pytest.raises(
        weft.SpecViolation, match=r"\[astype\] a tensor of cf32 cannot be converted"
    ):
        weft.asarray([1j]).astype(weft.float32)


def test_devices_are_backends() -> None:
    x = weft.arange(3)
    assert x.device == weft.default_backend() == "reference"
    moved = x.to_device("cpu")
    assert moved.device == "cpu"
    agrees(moved + 1, [1, 2, 3], "int64")
    agrees(weft.zeros(2, device="cpu") + weft.ones(2, device="cpu"), [1.0, 1.0], "float32")
    assert weft.asarray([1], device="cpu").device == weft.ones_like(moved).device == "cpu"
    with pytest.raises(weft.SpecViolation, match=r"\[add\] .* on backend 'cpu' meets a tensor on"):
        x + moved
    with pytest.raises(UserError, match="there is no backend 'tpu'"):
        x.to_device("tpu")


# -- programs ------------------------------------------------------------------------------------


def instructions(x: weft.Tensor) -> list[str]:
    return [str(i.op.mnemonic) for i in x.program().main.body]


def test_what_common_calls_become() -> None:
    x = weft.asarray(data("float32", (3, 4)))
    assert instructions(x + x) == ["add"]
    assert instructions(x * 2.0) == ["broadcast_to", "mul"]
    assert instructions(x @ x.mT) == ["transpose", "dot_general"]
    assert instructions(x**2) == ["mul"]
    assert instructions(x.sum()) == ["reduce_sum"]
    assert instructions(x[1:, :2]) == ["dynamic_slice"]
    assert instructions(x[0]) == ["dynamic_slice", "reshape"]
    assert instructions(weft.zeros((2, 2))) == ["broadcast_to"]
    assert instructions(x.astype(weft.int8).sum()) == ["cast", "reduce_sum"]


def test_gradients_are_wanted_of_what_depends_on_a_tensor_that_wants_them() -> None:
    x = weft.tensor([1.0, 2.0], requires_grad=True)
    for y in (x + 1, x.sum(), x[0], weft.where(x > 0, x, 0.0), x @ x, weft.concat([x, x])):
        assert y.requires_grad
    for y in (x > 1, x.argmax(), x.astype(weft.int32), weft.ones_like(x)):
        assert not y.requires_grad


# -- dynamic dims --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "oracle"),
    [
        (lambda x: x + 1, lambda x: x + 1),
        (lambda x: x.mean(axis=0), lambda x: x.mean(0)),
        (lambda x: x.var(axis=0, correction=1), lambda x: x.var(0, ddof=1)),
        (lambda x: x.mean(), lambda x: x.mean()),
        (lambda x: x @ x.mT, lambda x: x @ x.T),
        (lambda x: x[:, 1], lambda x: x[:, 1]),
        (lambda x: x[:, 1:3], lambda x: x[:, 1:3]),
        (lambda x: x[:, ::-2], lambda x: x[:, ::-2]),
        (lambda x: x[0], lambda x: x[0]),
        (lambda x: x[..., None], lambda x: x[..., None]),
        (lambda x: x.argmax(axis=1), lambda x: x.argmax(1)),
        (lambda x: weft.softmax(x) if hasattr(weft, "softmax") else x, None),
        (lambda x: weft.concat([x, x], axis=1), lambda x: np.concatenate([x, x], 1)),
        (lambda x: weft.where(x > 0, x, 0.0), lambda x: np.where(x > 0, x, 0)),
        (lambda x: weft.cumulative_sum(x, axis=0), lambda x: np.cumsum(x, 0)),
        (lambda x: weft.expand_dims(x, axis=0), lambda x: x[None]),
        (lambda x: weft.sort(x, axis=0), lambda x: np.sort(x, 0)),
    ],
)
def test_one_trace_serves_every_size(call: Any, oracle: Any) -> None:
    traced = jit(lambda x: call(x), dynamic={0: {0: "B"}})
    for size in (3, 5):
        x = data("float64", (size, 4))
        if oracle is not None:
            agrees(traced(weft.asarray(x)), oracle(x))
    assert len(traced.versions) <= 1


@pytest.mark.parametrize(
    "call", [lambda x: x[1:], lambda x: x[-1], lambda x: weft.flip(x), lambda x: weft.unstack(x)]
)
def test_what_needs_a_size_has_it_exactly(call: Any) -> None:
    traced = jit(lambda x: call(x), dynamic={0: {0: "B"}})
    for size in (3, 5):
        x = weft.asarray(data("float64", (size, 4)))
        found, wanted = traced(x), call(x)
        pairs = zip(found, wanted, strict=True) if isinstance(found, tuple) else [(found, wanted)]
        for one, other in pairs:
            assert (one.numpy() == other.numpy()).all()
    assert len(traced.versions) == 2
