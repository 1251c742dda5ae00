"""The model of many GPUs, against numbers worked out by hand."""

from __future__ import annotations

import pytest

from weft.target.cluster import MODELS, Cluster, Link, step_of

CLUSTER = Cluster()


def test_an_all_reduce_is_a_ring_in_a_node_and_the_faster_way_between() -> None:
    within = 2 * 7 / 8 * 248e6 / 360e9 + 14 * 6e-6
    assert CLUSTER.all_reduce(248e6, 8) == pytest.approx(within)
    ring = 2 * 7 / 8 * 31e6 / 42.5e9 + 14 * 12e-6
    assert CLUSTER.all_reduce(248e6, 64) == pytest.approx(within + ring)
    tree = 2 * 31e6 / 42.5e9 + 14 * 12e-6
    assert CLUSTER.all_reduce(248e6, 1024) == pytest.approx(within + tree)
    assert Link(1e9, 1.0).ring(8, 1) == 0


def test_a_step_on_one_gpu_exchanges_nothing() -> None:
    step = step_of(MODELS["gpt2"], CLUSTER, 1)
    assert (step.exchange, step.tensor, step.efficiency) == (0, 0, 1)
    assert step.compute == pytest.approx(6 * 124e6 * 16384 / (0.45 * 989e12))


def test_layers_that_are_shared_exchange_activations() -> None:
    step = step_of(MODELS["llama-8b"], CLUSTER, 64, split=8)
    assert step.tensor == pytest.approx(0.345, rel=0.01)
    assert step.exchange == pytest.approx(0.083, rel=0.01)
    assert step.state == pytest.approx(8.03e9 * 2)


def test_a_split_state_takes_less_and_no_more_time() -> None:
    whole, split = (step_of(MODELS["llama-8b"], CLUSTER, 64, sharded=s) for s in (False, True))
    assert split.exchange == whole.exchange
    assert split.state == pytest.approx(8.03e9 * (4 + 12 / 64))


def test_overlap_hides_all_but_the_last_bucket() -> None:
    step = step_of(MODELS["gpt2"], CLUSTER, 8)
    assert step.exposed == pytest.approx(CLUSTER.all_reduce(25e6, 8))
    assert step.efficiency > step.efficiency_without_overlap
