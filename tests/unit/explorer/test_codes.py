"""Code to be read: what every line is about, and that reading it changes nothing."""

from __future__ import annotations

from typing import Any

import pytest

import weft
from weft.codegen.gpu import sass
from weft.driver.compile import compile_program
from weft.driver.stages.compilation import Compilation
from weft.driver.stages.links import links_of
from weft.driver.stages.marks import names_of
from weft.driver.stages.variables import variables_of
from weft.explorer.codes import codes_of, resources_of
from weft.explorer.listings import (
    VARIABLE,
    assembly_listing,
    cuda_names,
    dialect_names,
    llvm_listing,
)
from weft.runtime.jit import assembly


def compiled(target: str) -> Compilation:
    def rows(x: Any) -> Any:
        return weft.exp(x - weft.max(x, axis=1, keepdims=True))

    program = weft.jit(rows).program(weft.ones((16, 64)))
    (cluster,) = compile_program(program, target).clusters.values()
    return cluster.compilation


@pytest.fixture(scope="module")
def cpu() -> Compilation:
    return compiled("cpu")


def test_every_instruction_of_a_cpu_is_about_a_value(cpu: Compilation) -> None:
    (kernel,) = cpu["region"].kernels
    lets = {let.name for let in kernel.body}
    codes = codes_of(cpu, cpu["cpu"].routines, full=True, variables={})
    assert list(codes) == ["llvm", "asm"]
    for listing in codes.values():
        assert {"v0"} < set(listing.names.values()) <= lets
    (link,) = links_of(cpu).kernels.values()
    (exp,) = (name for name, ids in link.inside.items() if ids == (max(link.values),))
    assert exp in codes["llvm"].names.values()
    assert exp in codes["asm"].names.values()
    statements = names_of("cpu", cpu.text("cpu").split("\n"))
    assert set(statements.values()) <= lets


def test_lines_of_machine_code_do_not_change_it(cpu: Compilation) -> None:
    ((symbol, source),) = cpu["llvm"].sources.items()
    listing = llvm_listing(source, cpu["cpu"].routines[symbol], cpu.target.features)
    made = assembly_listing(listing, symbol, None).lines
    plain = [line.split("#")[0].rstrip() for line in assembly(source).expandtabs(8).split("\n")]
    assert [line.split("#")[0].rstrip() for line in made if not line.startswith(".L")] == [
        line for line in plain if line.strip() and not line.strip().startswith(".")
    ]


def test_code_that_somebody_wrote_is_shown_without_claims(cpu: Compilation) -> None:
    ((symbol, source),) = cpu["llvm"].sources.items()
    edited = source.replace("!0 = !{}", "; mine\n!0 = !{}")
    listing = llvm_listing(edited, cpu["cpu"].routines[symbol], cpu.target.features)
    assert listing.names == {}
    assert assembly_listing(listing, symbol, None).lines


def test_code_is_that_of_the_dearest_kernels_and_says_what_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def several(x: Any, w: Any) -> Any:
        return weft.exp((weft.tanh(x @ w) @ w)[::2])

    program = weft.jit(several).program(weft.ones((32, 24)), weft.ones((24, 24)))
    (cluster,) = compile_program(program, "cpu").clusters.values()
    made = cluster.compilation
    dearest = list(reversed(made["cpu"].routines))
    assert len(dearest) >= 2
    whole = codes_of(made, dearest, full=False, variables={})
    for listing in whole.values():
        heads = [line for line in listing.lines if line.startswith("; ==== kernel")]
        assert heads == [f"; ==== kernel {symbol}" for symbol in dearest]
    monkeypatch.setattr("weft.explorer.codes.MOST_LINES", 10)
    assert codes_of(made, dearest, full=True, variables={}) == whole
    for listing in codes_of(made, dearest, full=False, variables={}).values():
        heads = [line for line in listing.lines if line.startswith("; ==== kernel")]
        assert heads == [f"; ==== kernel {dearest[0]}"]
        assert "left out: weft explore --full" in listing.lines[-1]


def test_variables_are_the_same_in_the_dialect_and_in_cuda() -> None:
    dialect = ["  let row = number", "  v12, v13 : f32 = load_vector(buffer=0)", "  sync_threads()"]
    cuda = [
        "  int row = number;",
        "  float v12 = held[0];",
        "  acc17 = v12;",
        "  const int lane = 3;",
    ]
    assert cuda_names(dialect, {}) == {0: f"{VARIABLE}row", 1: f"{VARIABLE}v12"}
    assert [name[1:] for name in cuda_names(cuda, {}).values()] == ["row", "v12", "acc17", "lane"]


def test_lines_are_about_the_values_that_their_variables_are() -> None:
    lets = {"v12": ["v0"], "v13": ["v0"], "acc17": ["v3", "v2"]}
    cuda = ["  float v12 = held[0];", "  acc17 = v12;", "  store(b1, acc17, v13);", "  wait();"]
    assert cuda_names(cuda, lets) == {0: "$v12 v0", 1: "$acc17 v3 v2", 2: "v3 v2 v0"}
    dialect = ["launch row = k_1(0)", "kernel k_1 grid=1 {", "  v12 : f32 = load()", "}",
               "kernel k_2 grid=1 {", "  v12 : f32 = load()", "}"]  # fmt: skip
    assert dialect_names(dialect, {"k_2": lets}) == {2: "$v12", 5: "$v12 v0"}


@pytest.mark.skipif(not sass.available(), reason="nvdisasm is not installed")
def test_a_gpu_has_ptx_and_machine_code() -> None:
    gpu = compiled("sm90")
    (symbol,) = gpu["cu"].sources
    variables = variables_of(gpu["gpu"], gpu["region"].kernels)
    codes = codes_of(gpu, [symbol], False, variables)
    assert list(codes) == ["cu", "ptx", "sass"]
    assert any("ld.global" in line for line in codes["ptx"].lines)
    assert any("LDG" in line for line in codes["sass"].lines)
    set_in_cuda = set(codes["cu"].names.values())
    for stage in ("ptx", "sass"):
        assert set(codes[stage].names.values()) <= set_in_cuda
        assert codes[stage].names
    dialect = gpu.text("gpu").split("\n")
    assert set(dialect_names(dialect, variables).values()) & set_in_cuda
    (link,) = links_of(gpu).kernels.values()
    (exp,) = (name for name, ids in link.inside.items() if ids == (max(link.values),))
    for listing in codes.values():
        assert any(exp in name.split() for name in listing.names.values())
    taken = resources_of(gpu)[symbol]
    assert taken["registers"] > 0
    assert taken["spilled"] == 0
    assert taken["threads"] * taken["blocks"] >= 16
