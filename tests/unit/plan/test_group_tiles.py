"""Tiles of convolutions in groups of few channels, beside the times that some of them took."""

from __future__ import annotations

import pytest

from benchmarks.gpu_convolutions import GROUPS
from tests.support.gpu_programs import through_stages
from weft.plan.candidates import candidates
from weft.plan.gpu_price import plan_seconds
from weft.plan.ir import MmaPlan
from weft.target.known import target_named

TIMED = {
    1: {56: 20.96, 112: 21.78, 84: 22.27, 196: 25.44, 224: 25.52},
    2: {56: 28.35, 28: 29.34, 84: 30.59, 112: 32.86, 140: 37.86},
    3: {70: 15.81, 84: 16.58, 196: 16.72},
    4: {49: 12.7, 28: 16.51, 42: 18.4},
    5: {224: 22.32, 196: 22.54, 140: 24.66},
    6: {112: 50.32, 56: 50.37, 32: 63.87},
}
"""Microseconds on an H200 by the places of a tile, for lines of the benchmark."""


@pytest.mark.parametrize("number", TIMED, ids=lambda number: GROUPS[number].name)
def test_the_chosen_tile_is_nearly_the_fastest_that_was_timed(number: int) -> None:
    stages = through_stages(GROUPS[number].line().program(), "sm90")
    (kernel,), target = stages["region"].kernels, target_named("sm90")
    plan, timed = stages["plan"].of(kernel.name), TIMED[number]
    assert isinstance(plan, MmaPlan)
    assert timed[plan.tile[0]] <= 1.05 * min(timed.values())
    tensors = stages["region"].tensors
    found = {
        other.tile[0]: plan_seconds(kernel, tensors, other, target)
        for other in candidates(kernel, target, plan)
        if isinstance(other, MmaPlan)
    }
    for places, time in timed.items():
        seconds = found[places]
        assert seconds is not None
        assert 0.5 * time <= 1e6 * seconds <= 1.25 * time
