"""What ranks exchange, as StableHLO and Shardy write it."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest

import weft
from weft.driver.ranks import SimulatedProgram
from weft.foundation.errors import SpecViolation, Unimplemented
from weft.interop import stablehlo
from weft.ptir import verify

SUM = "%s = stablehlo.add %a, %b : tensor<i32>"
LARGEST_FIRST = """%d = stablehlo.constant dense<10> : tensor<i32>
%m = stablehlo.multiply %a, %d : tensor<i32>
%s = stablehlo.add %m, %b : tensor<i32>"""
"""Puts digits one after the other, so that the order of ranks is seen."""


def module(replicas: int, partitions: int, body: str, result: str) -> str:
    return (
        f"module attributes {{mhlo.num_replicas = {replicas} : i32, "
        f"mhlo.num_partitions = {partitions} : i32}} {{\n"
        f"func.func @main(%x: tensor<2xi32>) -> {result} {{\n{body}\nreturn %0 : {result} }} }}"
    )


def exchange(name: str, attrs: str, result: str = "tensor<2xi32>", region: str = "") -> str:
    inside = (
        f" ({{ ^bb0(%a: tensor<i32>, %b: tensor<i32>):\n{region}\n"
        "stablehlo.return %s : tensor<i32> })"
        if region
        else ""
    )
    return f'%0 = "stablehlo.{name}"(%x){inside} {{{attrs}}} : (tensor<2xi32>) -> {result}'


def groups(table: str, handle: int = 0) -> str:
    shape = "x".join(map(str, np.array(json.loads(table)).shape))
    channel = f"channel_handle = #stablehlo.channel_handle<handle = {handle}, type = 0>"
    return f"replica_groups = dense<{table}> : tensor<{shape}xi64>, {channel}"


def results(text: str, count: int) -> list[Any]:
    """What each rank gets; rank r has [r + 1, r + 1]."""
    program = stablehlo.loads(text)
    verify(program)
    found = SimulatedProgram(program).run(count, lambda r: [np.full(2, r + 1, np.int32)])
    return [np.asarray(one[0]).tolist() for one in found]


@pytest.mark.parametrize(("ranks", "attrs", "wanted"), [
    ((4, 1), groups("[[0, 2], [1, 3]]"), [4, 6, 4, 6]),
    ((2, 2), groups("[[0, 1]]"), [4, 6, 4, 6]),
    ((2, 2), groups("[[0], [1]]", 1), [3, 3, 7, 7]),
    ((2, 2), groups("[[0, 3], [1, 2]]", 1) + ", use_global_device_ids", [5, 5, 5, 5]),
    ((3, 1), groups("[[0, 2], [1, -1]]"), [4, 2, 4]),
], ids=["replicas", "of each partition", "both", "ranks", "uneven"])  # fmt: skip
def test_groups_have_three_readings(ranks: tuple[int, int], attrs: str, wanted: list[int]) -> None:
    text = module(*ranks, exchange("all_reduce", attrs, region=SUM), "tensor<2xi32>")
    assert results(text, ranks[0] * ranks[1]) == [[n, n] for n in wanted]


def test_any_region_reduces_in_the_order_of_the_group() -> None:
    reduced = exchange("all_reduce", groups("[[1, 0]]"), region=LARGEST_FIRST)
    assert results(module(2, 1, reduced, "tensor<2xi32>"), 2) == [[21, 21], [21, 21]]
    attrs = f"scatter_dimension = 0 : i64, {groups('[[1, 0]]')}"
    scattered = exchange("reduce_scatter", attrs, "tensor<1xi32>", LARGEST_FIRST)
    assert results(module(2, 1, scattered, "tensor<1xi32>"), 2) == [[21], [21]]


def test_exchanges_without_sums() -> None:
    pairs = "source_target_pairs = dense<[[0, 1], [1, 2]]> : tensor<2x2xi64>"
    sent = exchange("collective_permute", pairs)
    assert results(module(3, 1, sent, "tensor<2xi32>"), 3) == [[0, 0], [1, 1], [2, 2]]
    some = exchange("collective_broadcast", groups("[[2, 1]]"))
    assert results(module(3, 1, some, "tensor<2xi32>"), 3) == [[0, 0], [3, 3], [3, 3]]
    rows = f"all_gather_dim = 0 : i64, {groups('[[1, 0]]')}"
    gathered = exchange("all_gather", rows, "tensor<4xi32>")
    assert results(module(2, 1, gathered, "tensor<4xi32>"), 2) == [[2, 2, 1, 1]] * 2


@pytest.mark.parametrize(("name", "wanted"), [
    ("replica_id", [0, 0, 0, 1, 1, 1]), ("partition_id", [0, 1, 2, 0, 1, 2]),
])  # fmt: skip
def test_the_number_of_a_process(name: str, wanted: list[int]) -> None:
    text = module(2, 3, f"%0 = stablehlo.{name} : tensor<ui32>", "tensor<ui32>")
    assert results(text, 6) == wanted


MANUAL = """
module @jit_g attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @empty_mesh = <[]>
  sdy.mesh @mesh = <["data"=2, "model"=2]>
  func.func public @main(%arg0: tensor<4x4xf32>, %arg1: tensor<f32>
      {sdy.sharding = #sdy.sharding<@empty_mesh, []>}) -> (tensor<2x4xf32>, tensor<2xf32>) {
    %0:2 = sdy.manual_computation(%arg0, %arg1)
        in_shardings=[<@mesh, [{"data"}, {"model"}]>, <@mesh, []>]
        out_shardings=[<@mesh, [{}, {"model"}]>, <@mesh, [{"data"}]>]
        manual_axes={"data", "model"} (%arg2: tensor<2x2xf32>, %arg3: tensor<f32>) {
      %1 = stablehlo.broadcast_in_dim %arg3, dims = [] : (tensor<f32>) -> tensor<2x2xf32>
      %2 = stablehlo.multiply %arg2, %1 : tensor<2x2xf32>
      %3 = "stablehlo.all_reduce"(%2) <{
        channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
        replica_groups = dense<[[0, 2], [1, 3]]> : tensor<2x2xi64>, use_global_device_ids}> ({
      ^bb0(%arg4: tensor<f32>, %arg5: tensor<f32>):
        %7 = stablehlo.add %arg4, %arg5 : tensor<f32>
        stablehlo.return %7 : tensor<f32>
      }) : (tensor<2x2xf32>) -> tensor<2x2xf32>
      %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %4 = stablehlo.reduce(%arg2 init: %cst) applies stablehlo.add across dimensions = [0, 1]
        : (tensor<2x2xf32>, tensor<f32>) -> tensor<f32>
      %6 = stablehlo.broadcast_in_dim %4, dims = [] : (tensor<f32>) -> tensor<1xf32>
      sdy.return %3, %6 : tensor<2x2xf32>, tensor<1xf32>
    } : (tensor<4x4xf32>, tensor<f32>) -> (tensor<2x4xf32>, tensor<2xf32>)
    return %0#0, %0#1 : tensor<2x4xf32>, tensor<2xf32>
  }
}
"""


def test_a_manual_computation_takes_parts_and_gives_the_whole() -> None:
    program = stablehlo.loads(MANUAL)
    x = np.arange(16, dtype=np.float32).reshape(4, 4)
    found = SimulatedProgram(program).run(4, lambda rank: [x, np.array(2, np.float32)])
    for whole, _ in found:
        assert np.array_equal(np.asarray(whole), (x[:2] + x[2:]) * 2)
    # What is said to be the same along `model` is each rank's own here: nobody checks it, as in JAX
    # with check_vma=False.
    assert np.asarray(found[0][1]).tolist() == [10.0, 42.0]
    assert np.asarray(found[1][1]).tolist() == [18.0, 50.0]


def test_a_mesh_of_another_size_is_refused() -> None:
    text = MANUAL.replace("mhlo.num_partitions = 4", "mhlo.num_partitions = 8")
    with pytest.raises(Unimplemented, match="the mesh @mesh has not the 8 ranks of the module"):
        stablehlo.loads(text)


def test_groups_of_ranks_that_do_not_exist_are_told() -> None:
    text = module(1, 1, exchange("all_reduce", groups("[[0, 1]]"), region=SUM), "tensor<2xi32>")
    why = "its groups name rank 1, and the module is for 1 replicas of 1 partitions"
    with pytest.raises(SpecViolation, match=why):
        stablehlo.loads(text)


def test_a_program_for_several_ranks_does_not_run_on_one() -> None:
    text = module(2, 1, exchange("all_reduce", groups("[[0, 1]]"), region=SUM), "tensor<2xi32>")
    with pytest.raises(weft.WeftError, match=re.escape("is of a program for 2 ranks")):
        weft.run(stablehlo.loads(text), [np.zeros(2, np.int32)], backend="reference")
