"""Attention whose result is handed out, and read by a product that wants its heads side by side."""

from __future__ import annotations

from typing import Any

import numpy as np

import weft
from weft import functional as F
from weft.driver.pipeline import run_pipeline
from weft.driver.signature import make_signature
from weft.driver.stages.compilation import Compilation
from weft.plan.ir import AttentionPlan
from weft.region.ir import Module, Pattern
from weft.target.known import target_named


def layer(x: weft.Tensor, w: weft.Tensor, v: weft.Tensor) -> tuple[weft.Tensor, weft.Tensor]:
    """The heads side by side, as a way back keeps them, and the product that reads them."""
    parts = [(x @ w)[:, :, 128 * k : 128 * (k + 1)] for k in range(3)]
    q, k, values = (part.reshape((2, 64, 2, 64)).permute_dims((0, 2, 1, 3)) for part in parts)
    mixed = F.attention(q, k, values, causal=True)
    rows = mixed.permute_dims((0, 2, 1, 3)).reshape((128, 128))
    return rows, (rows @ v).reshape((2, 64, 128)) + x


def pieces(x: weft.Tensor, w: weft.Tensor, v: weft.Tensor) -> weft.Tensor:
    """The same of the pieces of a picture, which somebody else sees as rows and columns."""
    return layer((x.reshape((2, 8, 8, 128)) * 2).reshape((2, 64, 128)), w, v)[1]


def kernels_for(module_of: Any, dtype: weft.DType) -> Module:
    program = weft.jit(module_of).program(*given(dtype))
    compilation = Compilation(program, target_named("sm90"), make_signature(program))
    found: Module = run_pipeline(compilation, "region")["region"]
    return found


def given(dtype: weft.DType) -> list[weft.Tensor]:
    rng = np.random.default_rng(0)
    shapes = [(2, 64, 128), (128, 384), (128, 128)]
    return [weft.asarray(rng.standard_normal(s).astype(np.float32)).astype(dtype) for s in shapes]


def test_a_result_that_a_product_reads_in_its_order_is_stored_once() -> None:
    program = weft.jit(layer).program(*given(weft.bfloat16))
    made = run_pipeline(Compilation(program, target_named("sm90"), make_signature(program)), "plan")
    module, plans = made["region"], made["plan"]
    (kernel,) = (k for k in module.kernels if k.name.startswith("attention"))
    assert [output.tensor for output in kernel.outputs] == ["out0"]
    assert isinstance(plans.plans[plans.kernels[kernel.name]], AttentionPlan)


def test_the_rows_of_a_picture_are_one_axis() -> None:
    """The axis is cut where the picture is read, and the kernels between do not see that."""
    module = kernels_for(pieces, weft.bfloat16)
    assert [k.name for k in module.kernels if k.pattern is Pattern.ATTENTION]


def test_cotangents_are_stored_rounded() -> None:
    """A sum that is scaled and rounded before anybody reads it is not stored in f32."""

    def back(*tensors: weft.Tensor) -> Any:
        return weft.grad(lambda x, w, v: weft.sum(layer(x, w, v)[1].astype("f32")))(*tensors)

    module = kernels_for(back, weft.bfloat16)
    streams = [k for k in module.kernels if k.pattern is Pattern.STREAM]
    assert len(streams) == 2
    assert {module.tensors[o.tensor].dtype for k in streams for o in k.outputs} == {weft.bfloat16}


def test_and_has_the_values_that_it_means() -> None:
    compiled = weft.jit(layer)(*given(weft.float32))
    wanted = [x.to("reference") for x in given(weft.float32)]
    meant = weft.jit(layer)(*wanted)
    for mine, theirs in zip(compiled, meant, strict=True):
        np.testing.assert_allclose(np.asarray(mine), np.asarray(theirs), rtol=1e-4, atol=1e-3)
