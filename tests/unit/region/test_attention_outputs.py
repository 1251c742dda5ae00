"""Attention whose result is handed out, and read by a product that wants its heads side by side."""

from __future__ import annotations

import numpy as np

import weft
from weft import functional as F
from weft.driver.pipeline import run_pipeline
from weft.driver.signature import make_signature
from weft.driver.stages.compilation import Compilation
from weft.plan.ir import AttentionPlan
from weft.target.known import target_named


def layer(x: weft.Tensor, w: weft.Tensor, v: weft.Tensor) -> tuple[weft.Tensor, weft.Tensor]:
    """The heads side by side, as a way back keeps them, and the product that reads them."""
    parts = [(x @ w)[:, :, 128 * k : 128 * (k + 1)] for k in range(3)]
    q, k, values = (part.reshape((2, 64, 2, 64)).permute_dims((0, 2, 1, 3)) for part in parts)
    mixed = F.attention(q, k, values, causal=True)
    rows = mixed.permute_dims((0, 2, 1, 3)).reshape((128, 128))
    return rows, (rows @ v).reshape((2, 64, 128)) + x


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


def test_and_has_the_values_that_it_means() -> None:
    compiled = weft.jit(layer)(*given(weft.float32))
    wanted = [x.to("reference") for x in given(weft.float32)]
    meant = weft.jit(layer)(*wanted)
    for mine, theirs in zip(compiled, meant, strict=True):
        np.testing.assert_allclose(np.asarray(mine), np.asarray(theirs), rtol=1e-4, atol=1e-3)
