"""The GPU benchmark, as far as it needs no GPU: what its table says of peers that are timed in
another way or are missing, and how a peer that takes too long is given up."""

from __future__ import annotations

import argparse
import runpy
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks import gpu, gpu_gpt2, gpu_jax, gpu_report, needed
from benchmarks.gpu_device import Machine
from benchmarks.gpu_jax_functions import function_of
from benchmarks.gpu_line import Line
from benchmarks.gpu_lines import FAMILIES
from benchmarks.needed import need_gpu
from benchmarks.time_limit import GivenUp, limited
from tests.support.gpu_programs import through_stages
from weft.codegen.gpu.ir import values, walk

COPY = 4e12


def record(key: str = "rows/softmax 2x3/f32", **fields: Any) -> dict[str, Any]:
    found = {"key": key, "flops": 0.0, "bytes": 4 << 20, "notes": {}, "spread": {}}
    return {**found, "us": {"weft": 100.0, "eager": 150.0}, **fields}


def test_what_the_host_timed_has_a_column_of_its_own() -> None:
    timed = record(
        us={"weft": 100.0, "eager": 150.0, "jax": 120.0}, host={"weft": 110.0, "jax": 132.0}
    )
    head, _, first, second = gpu_report.table([timed, record()], COPY).splitlines()
    assert head.endswith("| others | by the host's clock, µs |")
    assert "| jax | 120.00 | 1.200 | eager 150.00 | weft 110.00, jax 132.00 |" in first
    assert second.endswith("| eager | 150.00 | 1.500 |  |  |")
    assert "clock" not in gpu_report.table([record()], COPY)


def test_missing_peers_are_told_once_for_each_reason(tmp_path: Path) -> None:
    records = [
        record("rows/a/f32", notes={"jax": "left out: too short", "torch.compile": "given up"}),
        record("rows/b/f32", notes={"jax": "left out: too short"}),
        record("maps/c/f32", notes={"weft": "not yet: sorting"}, us={}),
    ]
    said = gpu_report.summary(records, COPY)
    assert said.count("too short") == 1
    assert "  jax on 2 lines: left out: too short\n" in said
    assert "  torch.compile on rows/a/f32: given up\n" in said
    assert "  maps/c/f32: not yet: sorting\n" in said
    gpu_report.write_csv(records, tmp_path / "table.csv")
    assert "jax: left out: too short; torch.compile: given up" in (
        (tmp_path / "table.csv").read_text()
    )


def test_a_block_that_takes_too_long_is_given_up() -> None:
    def stubborn() -> None:
        while True:
            try:
                time.sleep(10)
            except Exception:
                continue

    started = time.monotonic()
    with pytest.raises(GivenUp, match=r"^given up after 0.1 s$"), limited(0.1):
        stubborn()
    assert time.monotonic() - started < 5


def test_a_block_in_time_is_left_alone() -> None:
    with limited(0.05):
        pass
    time.sleep(0.1)


def line(family: str, text: str = "") -> Line:
    return next(found for found in FAMILIES[family]() if text in found.key)


def test_every_line_of_the_frozen_list_is_written_in_jax() -> None:
    beside = {"gemm_types", "whole", "attention", "attention_training", "conv", "conv_epilogue"}
    beside |= {"depthwise", "groups", "products", "rows_backward", "attention_decode"}
    beside |= {"few_channels"}
    for family, lines in FAMILIES.items():
        assert all((function_of(found) is None) == (family in beside) for found in lines())


def test_lines_of_training_give_results_and_gradients() -> None:
    found = line("attention_training", "kv8")
    main = found.program().main
    assert len(main.results) == 4
    assert main.results[0] == main.results[1]
    assert main.results[2] == main.results[3]


def without_jax(found: dict[str, Any], chosen: Line) -> str:
    machine = cast(Machine, SimpleNamespace())
    before = dict(found["us"])
    gpu_jax.measure(machine, chosen, found, 60.0)
    assert found["us"] == before
    assert "host" not in found
    return str(found["notes"]["jax"])


def test_jax_is_left_out_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = line("rows")
    short = record(us={"weft": 49.0})
    assert without_jax(short, chosen) == "left out: lines under 50 µs would measure its calls"
    alone = "left out: there is no time of ours to compare it with"
    assert without_jax(record(us={"eager": 90.0}), chosen) == alone

    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    monkeypatch.setitem(sys.modules, "jax", None)
    assert without_jax(record(), chosen) == "left out: JAX is not installed"

    def no_gpu(kind: str) -> Any:
        raise RuntimeError(f"no platform {kind}\nand more")

    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(devices=no_gpu))
    assert without_jax(record(), chosen) == "left out: JAX finds no GPU (no platform gpu)"
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(devices=lambda kind: [kind]))
    told = without_jax(record(), line("whole"))
    assert told == "left out: the family whole is not written in JAX"


def test_blocks_take_turns_and_calls_too() -> None:
    calls: list[str] = []

    def call(name: str) -> Any:
        return lambda: calls.append(name)

    def waited(name: str) -> Any:
        return lambda result: calls.append(f"{name} waits")

    times = gpu_jax.by_turns(
        {"weft": [call("w0"), call("w1")], "jax": [call("j0")]},
        {"weft": waited("weft"), "jax": waited("jax")},
        3,
    )
    assert set(times) == {"weft", "jax"}
    assert all(us > 0 for us in times.values())
    blocks = " ".join(calls).replace(" waits", ";").split("; ")
    blocks[-1] = blocks[-1].removesuffix(";")
    assert sorted(blocks) == ["j0 j0 j0 jax"] * 8 + ["w0 w1 w0 weft"] * 8
    for round_ in range(8):
        assert len(set(blocks[2 * round_ : 2 * round_ + 2])) == 2


def test_a_shape_that_the_list_names_twice_is_one_line() -> None:
    """Records are kept by name, and a run ends when there are as many as lines."""
    options = argparse.Namespace(family="gemm,rows", lines="4096x4096x4096 NT,softmax 4096x1000")
    keys = [found.key for found in gpu.wanted_lines(options)]
    assert keys == [
        "gemm/4096x4096x4096 NT/bf16",
        "gemm/4096x4096x4096 NT/f16",
        *(
            f"rows/{op} 4096x1000/{dtype}"
            for dtype in ("bf16", "f32")
            for op in ("softmax", "log_softmax")
        ),
    ]


def test_scatters_are_measured_in_order_and_in_any_order() -> None:
    options = argparse.Namespace(family="whole", lines="scatter 1048576")
    found = {one.key: one for one in gpu.wanted_lines(options)}
    dtypes = ("f32", "bf16", "si32", "si64")
    lines = [found[f"whole/scatter 1048576 of 1048576/{dtype}"] for dtype in dtypes]
    assert [_combines(one) for one in lines] == [False, False, True, True]
    assert [list(one.library) for one in lines] == [["in order"], ["in order"], [], []]


def _combines(found: Line) -> bool:
    """Whether a kernel combines elements with their places as they come."""
    kernels = through_stages(found.program(), "sm90")["gpu"].kernels.values()
    return any(isinstance(s, values.CombineElement) for one in kernels for s in walk(one.body))


def test_without_a_gpu_the_benchmark_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needed, "find_spec", lambda name: object())
    monkeypatch.setattr(needed, "compute_capability", lambda: None)
    with pytest.raises(SystemExit, match="there is none here: `weft devices`"):
        need_gpu()
    with pytest.raises(SystemExit, match="what is missing; `--prepare FOLDER` compiles"):
        need_gpu(needed.PREPARE)
    with pytest.raises(SystemExit, match=r"`weft devices` says what is missing$"):
        runpy.run_path(gpu_gpt2.__file__, run_name="__main__")
    monkeypatch.setattr(needed, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="pip install torch"):
        need_gpu()
