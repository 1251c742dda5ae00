"""Which loads are told to the memory ahead of time."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.support.cases import one_in
from weft.codegen.cpu.text import parse_routines, print_routines
from weft.ptir import Builder, Program


def total(shape: tuple[int, ...], axis: int, dtype: str = "f32") -> Program:
    b = Builder("total")
    return b.build(b.reduce_sum(b.param(dtype, list(shape)), [axis]))


def softmax(shape: tuple[int, int], dtype: str = "f32") -> Program:
    b = Builder("softmax")
    return b.build(b.softmax(b.param(dtype, list(shape))))


def passes(text: str) -> list[list[str]]:
    """The buffers that each loop over a row asks for, line by line."""
    found: list[list[str]] = []
    for line in map(str.strip, text.splitlines()):
        if line.startswith("serial"):
            found.append([])
        elif line.startswith("prefetch"):
            found[-1].append(line)
    return found


def test_rows_far_apart_are_prefetched_a_line_at_a_time() -> None:
    text = weft.compile(total((64, 4096), 0), "cpu").stages["cpu"]
    lines = [line.strip() for line in text.splitlines() if "prefetch" in line]
    (first, *more) = [int(line.rstrip("]").rpartition(" + ")[2]) for line in lines]
    assert first == 8 * 4096, "eight rows ahead"
    assert more == [first + 16 * n for n in range(1, len(lines))], "64 bytes apart"
    assert print_routines(parse_routines(text)) == text


@pytest.mark.parametrize("program", [total((64, 4096), 1), total((4096, 64), 0)])
def test_what_the_machine_foresees_is_left_to_it(program: Program) -> None:
    assert "prefetch" not in weft.compile(program, "cpu").stages["cpu"]


@pytest.mark.parametrize("shape", [(3, 4096), (40, 1030), (9, 700)])
@pytest.mark.parametrize("dtype", one_in(2, ["f32", "f64", "si32"]))
def test_results_are_the_same(shape: tuple[int, int], dtype: str) -> None:
    x = (np.random.default_rng(0).standard_normal(shape) * 100).astype(
        {"f32": "f4", "f64": "f8", "si32": "i4"}[dtype]
    )
    (found,) = weft.compile(total(shape, 0, dtype), "cpu").run([x])
    np.testing.assert_allclose(found, x.astype("f8").sum(0), rtol=1e-5, atol=1e-3)


def test_the_next_row_and_the_result_are_asked_for_while_exponentials_are_computed() -> None:
    text = weft.compile(softmax((1024, 1024)), "cpu").stages["cpu"]
    (largest, exponentials, shares) = passes(text)
    assert not largest, "it waits for the memory as it is"
    assert not shares
    assert any("b0[" in line and line.endswith("+ 1024]") for line in exponentials), "the next row"
    results = [line for line in exponentials if "b1[" in line]
    assert len(results) == len(exponentials) / 2, "each line of this row's result"
    assert print_routines(parse_routines(text)) == text


def test_a_result_is_asked_for_to_be_written() -> None:
    stages = weft.compile(softmax((1024, 1024)), "cpu").stages
    (exponentials,) = [found for found in passes(stages["cpu"]) if found]
    kinds = [line.split("i32 ")[1][0] for line in stages["llvm"].splitlines() if "p0(ptr %" in line]
    assert sorted(kinds) == sorted("1" if "b1[" in line else "0" for line in exponentials)


@pytest.mark.parametrize("shape", [(64, 1024), (65536, 16), (64, 65536)])
def test_rows_that_are_in_a_cache_or_fill_it_are_not_asked_for(shape: tuple[int, int]) -> None:
    assert "prefetch" not in weft.compile(softmax(shape), "cpu").stages["cpu"]


@pytest.mark.parametrize("shape", [(513, 1024), (301, 1003), (130, 4096)])
@pytest.mark.parametrize("threads", one_in(2, [1, 2]))
def test_rows_asked_for_are_the_same(shape: tuple[int, int], threads: int) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype("f4")
    (found,) = weft.compile(softmax(shape), "cpu").run([x], threads=threads)
    powers = np.exp(x.astype("f8") - x.max(1, keepdims=True))
    np.testing.assert_allclose(found, powers / powers.sum(1, keepdims=True), rtol=1e-5)


def test_what_a_later_pass_is_the_first_to_read_is_asked_for_in_the_pass_before() -> None:
    b = Builder("norm")
    x, scale = (b.param("f32", [1024, 1024]) for _ in range(2))
    total = b.reduce_sum(x * x, [1], keepdims=True)
    factor = b.broadcast_to(b.rsqrt(total), [1024, 1024])
    text = weft.compile(b.build(x * factor * scale), "cpu").stages["cpu"]
    first, last = passes(text)
    assert {line.split("[")[0] for line in first} == {"prefetch b1", "prefetch b2"}
    assert {line.split("[")[0] for line in last} == {"prefetch b0"}, "the next row"


@pytest.mark.parametrize("layer", ["product", "convolution"])
def test_weights_that_lie_in_panels_are_prefetched_across_pages(layer: str) -> None:
    """A machine foresees what lies side by side, but not beyond the end of a page."""
    b = Builder("layer")
    if layer == "product":
        x, w = b.param("f32", [32, 128]), b.param("f32", [128, 96])
        program = b.build(x @ w)
    else:
        given = [np.ones((1, 64, 8, 8), np.float32), np.ones((64, 64, 3, 3), np.float32)]
        conv = weft.jit(lambda x, w: weft.functional.conv2d(x, w, padding=1))
        program = conv.program(*map(weft.tensor, given))
    text = weft.compile(program, "x86-64-v4", params=[1]).stages["cpu"]
    hints = [line.strip() for line in text.splitlines() if "prefetch b1[" in line]
    assert any(hint.endswith("+ 1024]") for hint in hints), "4 KiB ahead"
