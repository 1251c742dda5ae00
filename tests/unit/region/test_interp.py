"""Playback computes what the kernels say, for every kernel written by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special

from tests.support import kernels
from weft.foundation.dtypes import BF16, F32, SI32
from weft.foundation.errors import InternalError, Unimplemented
from weft.foundation.index_expr import axis, constant
from weft.region.interp import run_kernel, run_module
from weft.region.ir import (
    Kernel,
    KernelAxis,
    Module,
    OpaqueCall,
    Output,
    Pattern,
    Tensor,
)
from weft.region.writing.folds import moments

Array = NDArray[Any]


def played(module: Module, **options: Any) -> tuple[dict[str, Array], dict[str, Array]]:
    given = kernels.arrays_for(module)
    return given, run_module(module, given, **options)


def gelu(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + special.erf(x / math.sqrt(2))))


def softmax(x: Array) -> Array:
    power = np.exp(x - x.max(axis=1, keepdims=True))
    return np.asarray(power / power.sum(axis=1, keepdims=True))


@pytest.mark.parametrize("batch", [0, 3])
def test_a_contraction_with_its_epilogue(batch: int) -> None:
    given, found = played(kernels.linear(batch=batch))
    expected = gelu(given["x"].astype(np.float64) @ given["w"] + given["bias"])
    np.testing.assert_allclose(found["y"], expected, rtol=1e-5, atol=1e-5)


def test_a_large_contraction_is_the_same_as_a_built_product() -> None:
    small, large = kernels.linear(8, 8, 8), kernels.linear(64, 64, 64)
    for module in (small, large):
        given, found = played(module)
        expected = gelu(given["x"].astype(np.float64) @ given["w"] + given["bias"])
        np.testing.assert_allclose(found["y"], expected, rtol=1e-4, atol=1e-5)


def test_narrow_results_are_rounded_at_each_let() -> None:
    given, found = played(kernels.linear(dtype=BF16, activation="relu"))
    wide = given["x"].astype(np.float32) @ given["w"].astype(np.float32) + given["bias"]
    expected = np.maximum(wide, 0).astype(BF16.numpy)
    assert found["y"].dtype == BF16.numpy
    np.testing.assert_allclose(found["y"].astype(float), expected.astype(float), rtol=1e-2)


def test_softmax_and_layer_norm() -> None:
    given, found = played(kernels.softmax())
    np.testing.assert_allclose(found["y"], softmax(given["x"].astype(float)), rtol=1e-5)
    given, found = played(kernels.layer_norm())
    x = given["x"].astype(float)
    normal = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(found["y"], normal * given["gamma"] + given["beta"], rtol=1e-4)


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 20])
def test_a_fold_may_be_cut_anywhere(parts: int) -> None:
    given, found = played(kernels.softmax_fold(columns=13), fold_parts=parts)
    np.testing.assert_allclose(found["y"], softmax(given["x"].astype(float)), rtol=1e-5)


@pytest.mark.parametrize("parts", [1, 2, 5, 30])
def test_moments_are_the_sum_and_squared_distances_from_the_mean(parts: int) -> None:
    axes = (KernelAxis("i", 3), KernelAxis("j", 17, reduce=True))
    body = kernels.body_over(axes)
    x = body.plain("x", F32, "i", "j")
    total, m2 = moments(body, x, ("j",), 17)
    outputs = tuple(
        Output(name, value, kernels.identity("i")) for name, value in (("total", total), ("m2", m2))
    )
    kernel = Kernel("moments", Pattern.ROW, axes, tuple(body.lets), outputs)
    tensors = [Tensor("x", F32, (3, 17), "input")]
    tensors += [Tensor(name, F32, (3,), "output") for name in ("total", "m2")]
    module = kernels.module_of(kernel, tensors=tensors)
    given, found = played(module, fold_parts=parts)
    np.testing.assert_allclose(found["total"], given["x"].sum(1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["m2"], given["x"].var(1) * 17, rtol=1e-5)
    far = (given["x"] + 1e3).astype(np.float32)
    found = run_module(module, {"x": far}, fold_parts=parts)
    np.testing.assert_allclose(found["m2"], far.astype(float).var(1) * 17, rtol=1e-4)
    same = np.full((3, 17), 1e25, np.float32)
    assert not run_module(module, {"x": same}, fold_parts=parts)["m2"].any()


def test_an_empty_part_of_a_fold_changes_nothing() -> None:
    given = {"x": np.full((6, 10), -np.inf, np.float32)}
    given["x"][:, 3] = 2.0
    module = kernels.softmax_fold()
    found = run_module(module, given, fold_parts=10)["y"]
    np.testing.assert_array_equal(found, np.eye(10, dtype=np.float32)[[3] * 6])


def test_several_outputs_and_values_over_fewer_axes() -> None:
    given, found = played(kernels.elementwise())
    rows = np.arange(6, dtype=np.float32)[:, None]
    np.testing.assert_array_equal(found["y"], np.maximum(given["a"] * given["b"] + rows, 0))
    np.testing.assert_array_equal(found["z"], given["a"] - 1)


def test_guards_give_the_fill_and_stores_may_run_backwards() -> None:
    given, found = played(kernels.shifted_window())
    padded = np.pad(given["x"], 1, constant_values=0.5)
    np.testing.assert_array_equal(found["y"], (padded[:-2] + padded[2:])[::-1])


@pytest.mark.parametrize(("position", "start"), [(3, 3), (-4, 0), (99, 5)])
def test_an_update_keeps_what_it_does_not_write(position: int, start: int) -> None:
    module = kernels.cache_update()
    given = kernels.arrays_for(module) | {"position": np.asarray(position, np.int32)}
    expected = given["cache"].copy()
    expected[:, start : start + 3] = given["rows"]
    np.testing.assert_array_equal(run_module(module, given)["new_cache"], expected)


def test_the_second_kernel_reads_what_the_first_wrote() -> None:
    given, found = played(kernels.mlp())
    hidden = gelu(given["x"].astype(float) @ given["w1"] + given["b1"])
    np.testing.assert_allclose(found["y"], hidden @ given["w2"] + given["b2"], rtol=1e-4)


def copying(index: Any, size: int = 4) -> tuple[Kernel, dict[str, Tensor]]:
    axes = (KernelAxis("i", size),)
    body = kernels.body_over(axes)
    x = body.plain("x", F32, "i")
    kernel = Kernel("copy", Pattern.MAP, axes, tuple(body.lets), (Output("y", x, index),))
    return kernel, {"x": Tensor("x", F32, (size,)), "y": Tensor("y", F32, (4,))}


def test_playback_notices_stores_that_do_not_cover() -> None:
    x = np.arange(4, dtype=np.float32)
    kernel, tensors = copying((constant(0),))
    with pytest.raises(InternalError, match="writes an element of y twice"):
        run_kernel(kernel, tensors, {"x": x})
    kernel, tensors = copying((axis("i"),), size=3)
    with pytest.raises(InternalError, match="leaves elements of y unwritten"):
        run_kernel(kernel, tensors, {"x": x[:3]})


def test_an_opaque_kernel_runs_what_it_is_given() -> None:
    call = OpaqueCall("divmod", ("a", "b"), (1, 0))
    outputs = (Output("rest", "", ()), Output("whole", "", ()))
    kernel = Kernel("opaque", Pattern.OPAQUE, (), (), outputs, opaque=call)
    tensors = {name: Tensor(name, SI32, (2,)) for name in ("a", "b", "rest", "whole")}
    given = {"a": np.asarray([7, 9]), "b": np.asarray([2, 4])}
    with pytest.raises(Unimplemented):
        run_kernel(kernel, tensors, given)
    found = run_kernel(kernel, tensors, given, opaque=lambda op, arrays: np.divmod(*arrays))
    np.testing.assert_array_equal(found["whole"], [3, 2])
    np.testing.assert_array_equal(found["rest"], [1, 1])


def test_axes_of_no_elements() -> None:
    module = kernels.elementwise(rows=0)
    _, found = played(module)
    assert found["y"].shape == (0, 10)
    module = kernels.linear(k=0, activation="none")
    given, found = played(module)
    np.testing.assert_array_equal(found["y"], np.broadcast_to(given["bias"], (12, 20)))
