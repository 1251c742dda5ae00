"""Gradients of attentions whose cotangent is one number for all, or for all of a row: streams like
those of any other, which agree with the reference; and programs that stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest

import weft
from tests.support.cases import one_in
from tests.support.example_inputs import inputs_for
from tests.support.gpu_interpreted import InterpretedGpu
from weft import Tensor, functional
from weft.driver.pipeline import run_pipeline
from weft.driver.signature import make_signature
from weft.driver.stages.compilation import Compilation
from weft.ptir import Program
from weft.region.ir import Module
from weft.region.writing.spread_factors import with_spread_factors
from weft.target.known import target_named
from weft.testing.compare import compare

Loss: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return functional.attention(q, k, v, causal=True)


def turned(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of rows that have their heads side by side."""
    heads = (weft.permute_dims(x, (0, 2, 1, 3)) for x in (q, k, v))
    return functional.attention(*heads)


LOSSES: dict[str, Loss] = {
    "sum": lambda q, k, v, w: attended(q, k, v).sum(),
    "mean in f32": lambda q, k, v, w: attended(q, k, v).astype("f32").mean(),
    "shared heads": lambda q, k, v, w: attended(q, k, v).sum(),
    "a number for each row": lambda q, k, v, w: (attended(q, k, v).sum(-1) * w).sum(),
    "heads side by side": lambda q, k, v, w: turned(q, k, v).sum(),
}


def gradients(name: str, dtype: str = "bf16") -> Program:
    """The program of what a loss gives for queries, keys and values."""
    q = weft.zeros((1, 40, 2, 64) if name == "heads side by side" else (1, 2, 40, 64), dtype=dtype)
    k = weft.zeros((1, 1, 40, 64), dtype=dtype) if name == "shared heads" else q
    w = weft.zeros((1, 2, 40), dtype=dtype)
    found: Program = weft.jit(weft.grad(LOSSES[name], argnums=(0, 1, 2))).program(q, k, k, w)
    return found


def compiled(program: Program, target: str) -> Compilation:
    made = Compilation(program, target_named(target), make_signature(program))
    return run_pipeline(made, "region")


def patterns(program: Program, target: str) -> list[str]:
    module: Module = compiled(program, target)["region"]
    return [kernel.pattern.value for kernel in module.kernels]


@pytest.mark.parametrize("name", one_in(3, LOSSES))
@pytest.mark.parametrize("target", ["sm80", "sm90"])
def test_a_repeated_cotangent_is_stored_and_the_gradients_are_streams(
    name: str, target: str
) -> None:
    found = patterns(gradients(name), target)
    assert sorted(found) == ["attention", "map", "row", "stream", "stream"]


@pytest.mark.parametrize("name", one_in(3, ["mean in f32", "shared heads", "heads side by side"]))
@pytest.mark.parametrize("target", ["sm80", "sm90"])
def test_gradients_agree(name: str, target: str) -> None:
    program = gradients(name)
    report = compare(program, inputs_for(program, 3), InterpretedGpu(target))
    assert report.agrees, str(report)


def test_no_copy_is_stored_twice() -> None:
    program = gradients("shared heads")
    view = compiled(program, "sm90")["poly_view"]
    made = with_spread_factors(view, target_named("sm90"))
    copies = {block.name for block in made.blocks} - {block.name for block in view.blocks}
    assert len(copies) == 1


@pytest.mark.parametrize(("dtype", "target"), [("f32", "sm90"), ("bf16", "x86-64-v3")])
def test_what_no_stream_multiplies_stays_as_it_is(dtype: str, target: str) -> None:
    view = compiled(gradients("sum", dtype), target)["poly_view"]
    assert with_spread_factors(view, target_named(target)) is view


def test_sums_of_products_elsewhere_stay_as_they_are() -> None:
    def scaled(x: Tensor) -> Tensor:
        half = weft.asarray(0.5, dtype="bf16").astype("f32")
        found: Tensor = (x.astype("f32") * half).sum(-1)
        return found

    program = weft.jit(scaled).program(weft.zeros((64, 64), dtype="bf16"))
    view = compiled(program, "sm90")["poly_view"]
    assert with_spread_factors(view, target_named("sm90")) is view
