"""The price of plans for a GPU orders them as an H200 did."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from weft.driver.signature import make_signature
from weft.driver.stages.compilation import Compilation
from weft.driver.tuning.tune import KernelClass, classes_of
from weft.plan.ir import MmaPlan, Plan
from weft.plan.usage import estimate
from weft.ptir import Builder
from weft.target.known import target_named

SM90 = target_named("sm90")


def kernels_of(function: Any, *shapes: tuple[int, ...], dtype: str = "f32") -> KernelClass:
    b = Builder("priced")
    program = b.build(function(b, *(b.param(dtype, list(shape)) for shape in shapes)))
    (found, *_) = classes_of(Compilation(program, SM90, make_signature(program)))
    return found


def microseconds(found: KernelClass, plan: Plan) -> float:
    return 1e6 * estimate(found.kernel, found.module.tensors, plan, SM90).seconds


def test_maps_of_single_elements_wait_for_their_threads() -> None:
    found = kernels_of(lambda b, x: b.exp(x), (8192, 8192), dtype="bf16")
    plan: Any = found.plans[0]
    single = replace(plan, vector=1, threads=128, grain=128)
    assert microseconds(found, plan) == pytest.approx(64.6, rel=0.1)
    assert microseconds(found, single) == pytest.approx(318, rel=0.15)
    more = replace(single, threads=256, grain=256)
    assert microseconds(found, more) == pytest.approx(177, rel=0.25)


def test_rows_with_threads_that_have_nothing_to_do_take_longer() -> None:
    def norm(b: Any, x: Any, scale: Any, shift: Any) -> Any:
        return b.layer_norm(x, scale, shift, epsilon=1e-5, feature_axis=-1)

    found = kernels_of(norm, (16384, 768), (768,), (768,))
    first: Any = found.plans[0]
    plan = replace(first, vector=4, rows_per_block=1)
    fitting, some, most = (
        microseconds(found, replace(plan, threads=threads)) for threads in (64, 128, 256)
    )
    assert fitting < some < most
    assert fitting == pytest.approx(25.7, rel=0.1)
    assert most == pytest.approx(31.2, rel=0.2)


def test_products_are_priced_by_the_model_of_their_tiles() -> None:
    found = kernels_of(lambda b, x, y: x @ y, (1024, 8192), (8192, 1024), dtype="bf16")
    measured = {(64, 128): 24.3, (64, 64): 32.6, (128, 96): 40.0, (64, 160): 53.4}
    prices: dict[Any, float] = {}
    for plan in found.plans:
        assert isinstance(plan, MmaPlan)
        if plan.tile[:2] in measured:
            prices[plan.tile[:2]] = microseconds(found, plan)
    assert sorted(prices, key=lambda tile: prices[tile]) == sorted(
        prices, key=lambda tile: measured[tile]
    )
    assert len(prices) >= 3


def test_attention_is_priced_by_its_blocks() -> None:
    def function(b: Any, q: Any, k: Any, v: Any) -> Any:
        return b.emit("weft.attention", q, k, v, causal=False)[0]

    shape = (4, 16, 2048, 64)
    found = kernels_of(function, shape, shape, shape, dtype="bf16")
    plan: Any = found.plans[0]
    assert microseconds(found, plan) == pytest.approx(146, rel=0.15)
    short = replace(plan, tile_q=128, tile_kv=64, consumers=2)
    assert microseconds(found, short) > 1.1 * microseconds(found, replace(short, tile_kv=128))


def test_tiles_of_multiply_adds_that_leave_units_idle_take_longer() -> None:
    found = kernels_of(lambda b, x, y: x @ y, (1024, 1024), (1024, 1024))
    plan: Any = found.plans[0]
    prices = {
        tile: microseconds(found, replace(plan, tile=(*tile, 16)))
        for tile in ((128, 64), (64, 64), (32, 32), (128, 128))
    }
    assert min(prices, key=lambda tile: prices[tile]) == (128, 64)
    assert prices[64, 64] < min(prices[32, 32], prices[128, 128])
