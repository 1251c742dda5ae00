"""What the LLVM text of a kernel says beyond its arithmetic."""

from __future__ import annotations

import re

import numpy as np
import pytest

import weft
from weft.ptir import Builder, Program


def dense_gelu() -> Program:
    """A product whose last step calls erf once for every vector of a register tile."""
    b = Builder("dense")
    x, w = b.param("f32", [8, 24]), b.param("f32", [24, 40])
    return b.build(b.gelu(x @ w))


def softmax() -> Program:
    b = Builder("softmax")
    return b.build(b.softmax(b.param("f32", [8, 64])))


def definitions(program: Program) -> list[str]:
    text = weft.compile(program).stages["llvm"]
    return [line for line in text.splitlines() if line.startswith("define internal")]


def test_a_function_called_from_many_places_is_not_copied_into_each() -> None:
    """One definition for each width of vector: which ones there are depends on the machine."""
    found = [line for line in definitions(dense_gelu()) if "erf_" in line]
    assert any(" noinline " in line for line in found)


def test_a_function_called_from_few_places_is() -> None:
    found = [line for line in definitions(softmax()) if "@exp" in line]
    assert found
    assert all(" alwaysinline " in line for line in found)


def test_an_unrolled_loop_that_takes_no_terms_is_refused() -> None:
    program = dense_gelu()
    text = weft.compile(program).stages["cpu"]
    empty = re.sub(r"(serial .*\n +unrolled \w+ in 0)..\d+", r"\1..0", text)
    assert empty != text
    with pytest.raises(weft.SpecViolation, match=r"RoutineDomain.*sum takes 0 terms in all"):
        weft.compile(program, overrides={"cpu": empty})


def llvm_of(rows: int, depth: int, columns: int) -> str:
    b = Builder("product")
    return weft.compile(
        b.build(b.param("f32", [rows, depth]) @ b.param("f32", [depth, columns]))
    ).stages["llvm"]


def test_llvm_rewrites_the_addresses_of_loops_that_add_up_alone() -> None:
    """It takes long for those of loops around, and gains nothing where elements are moved."""
    b = Builder("map")
    x = b.param("f32", [64, 4096])
    moved = weft.compile(b.build(b.transpose(x, [1, 0]) + 1.0)).stages["llvm"]
    assert moved.count(" = phi i64 ") == moved.count("call i64 @llvm.expect.i64(") > 0
    product = llvm_of(300, 400, 500)
    assert product.count(" = phi i64 ") > product.count("call i64 @llvm.expect.i64(") > 0


def test_a_loop_of_one_turn_is_written_as_its_body() -> None:
    for columns in (40, 500):
        text = llvm_of(300, 40, columns)
        ends = re.findall(r"icmp slt i64 (%v\d+), (\d+)\n", text)
        following = dict(re.findall(r"(%v\d+) = add nsw i64 [%.\w]+, (\d+)\n", text))
        first = {name: start for start, name in re.findall(
            r"phi i64 \[ (\S+), \S+ \], \[ (%v\d+), ", text
        )}  # fmt: skip
        turns = [
            (int(end) - int(first[name])) / int(following[name])
            for name, end in ends
            if first.get(name, "%").isdigit()
        ]
        assert turns
        assert all(count > 1 for count in turns)


def test_the_only_piece_of_a_routine_is_no_loop() -> None:
    """It is carried out where it is among those that are wanted. A map of one vector is a loop all
    the same, and has the text of longer ones."""
    b = Builder("piece")
    x = b.param("f32", [3])
    executable = weft.compile(b.build(x * x + 1.0))
    assert " = phi " not in executable.stages["llvm"]
    assert executable.stages["llvm"].count("br i1 ") == 1
    assert executable.run([np.arange(3, dtype=np.float32)])[0].tolist() == [1.0, 2.0, 5.0]


def test_large_angles_are_reduced_in_one_place() -> None:
    """Whatever the vectors are: the function is called for all lanes of one, and LLVM reads it
    once, and leaves it as it is written."""
    b = Builder("angles")
    text = weft.compile(b.build(b.sin(b.param("f32", [1007])))).stages["llvm"]
    assert text.count("call void @reduce_large(") == 1
    heads = [line for line in text.splitlines() if line.startswith("define internal void")]
    for head, name in zip(heads, ("reduce_large", "large_angles"), strict=True):
        assert f"@{name}(" in head
        assert " optnone cold " in head
