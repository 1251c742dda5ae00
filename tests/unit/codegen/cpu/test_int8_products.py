"""Products of 8-bit numbers, four at a time: exact, with and without an instruction for it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from tests.support.cases import one_in
from weft.codegen.cpu.text import parse_routines, print_routines
from weft.driver.compile import compile_program
from weft.foundation.errors import SpecViolation
from weft.ptir import Builder, Program
from weft.target.cpu import host

Array = NDArray[Any]
KINDS: dict[str, tuple[type[Any], str]] = {"si8": (np.int8, "si32"), "ui8": (np.uint8, "ui32")}
SHAPES = [(64, 64, 64), (67, 130, 1031), (100, 61, 77), (16, 300, 2049)]
WORDS = [{"tensor": side, "where": "words", "at": "k", "pingpong": False} for side in ("A", "B")]


def product(dtype: str, m: int, n: int, k: int, turned: bool = False) -> Program:
    b = Builder("bytes")
    x, y = b.param(dtype, [m, k]), b.param(dtype, [n, k] if turned else [k, n])
    contract = ([1], [1 if turned else 0])
    return b.build(b.dot_general(x, y, contract=contract, out_dtype=KINDS[dtype][1]))


def in_words(program: Program) -> dict[str, str]:
    """The plan of a program with operands packed as words, on any machine."""
    document = json.loads(weft.compile(program, "cpu").stages["plan"])
    document["plans"][0]["cache"] = WORDS
    return {"plan": json.dumps(document)}


def numbers(dtype: str, *shape: int) -> Array:
    kind = np.iinfo(KINDS[dtype][0])
    rng = np.random.default_rng(0)
    return rng.integers(kind.min, kind.max, shape, KINDS[dtype][0], endpoint=True)


@pytest.mark.parametrize("instruction", [False, True])
@pytest.mark.parametrize(("dtype", "turned"), [("si8", False), ("si8", True), ("ui8", False)])
@pytest.mark.parametrize("shape", one_in(4, SHAPES))
def test_products_are_exact(
    shape: tuple[int, int, int], dtype: str, turned: bool, instruction: bool
) -> None:
    m, n, k = shape
    target = host() if instruction else replace(host(), features=host().features - {"asimddp"})
    program = product(dtype, m, n, k, turned)
    executable = compile_program(program, target, overrides=in_words(program))
    if not instruction:
        assert "neon" not in executable.stages["llvm"]
    x, y = numbers(dtype, m, k), numbers(dtype, *((n, k) if turned else (k, n)))
    exact = x.astype(np.int64) @ (y.T if turned else y).astype(np.int64)
    for threads in (1, 2):
        (found,) = executable.run([x, y], threads=threads)
        np.testing.assert_array_equal(found, exact)


def widened(a: str, b: str, m: int, n: int, k: int) -> Program:
    """Operands of either sign, cast to what the sums are."""
    builder = Builder("signs")
    x, y = builder.param(a, [m, k]), builder.param(b, [k, n])
    wide = (builder.cast(value, "si32") for value in (x, y))
    return builder.build(builder.dot_general(*wide, contract=([1], [0]), out_dtype="si32"))


@pytest.mark.parametrize("instruction", [False, True])
@pytest.mark.parametrize(("a", "b"), [("ui8", "ui8"), ("ui8", "si8"), ("si8", "ui8")])
@pytest.mark.parametrize("shape", one_in(4, [SHAPES[0], SHAPES[2]]))
def test_operands_of_either_sign_are_exact(
    shape: tuple[int, int, int], a: str, b: str, instruction: bool
) -> None:
    m, n, k = shape
    target = host() if instruction else replace(host(), features=host().features - {"asimddp"})
    program = widened(a, b, m, n, k)
    executable = compile_program(program, target, overrides=in_words(program))
    x, y = numbers(a, m, k), numbers(b, k, n)
    (found,) = executable.run([x, y])
    np.testing.assert_array_equal(found, x.astype(np.int64) @ y.astype(np.int64))


def test_sums_wrap_whatever_the_signs() -> None:
    """Products that are all the largest there are, more of them than 31 bits hold."""
    depth = (1 << 31) // (255 * 255) + 17
    x, y = np.full((24, depth), 255, np.uint8), np.full((depth, 24), 255, np.uint8)
    program = widened("ui8", "ui8", 24, 24, depth)
    executable = weft.compile(program, "cpu", overrides=in_words(program))
    (found,) = executable.run([x, y])
    np.testing.assert_array_equal(found, np.int64(depth * 255 * 255 - (1 << 32)))


@pytest.mark.skipif(not host().has("asimddp"), reason="this machine has no such instruction")
@pytest.mark.parametrize(
    ("a", "b", "name"),
    [
        ("si8", "si8", "sdot"),
        ("ui8", "ui8", "udot"),
        ("ui8", "si8", "sdot"),
        ("si8", "ui8", "udot"),
    ],
)
def test_the_instruction_is_used(a: str, b: str, name: str) -> None:
    executable = weft.compile(widened(a, b, 64, 64, 64), "cpu")
    assert '"where": "words"' in executable.stages["plan"]
    assert f"llvm.aarch64.neon.{name}" in executable.stages["llvm"]


def test_the_dialect_parses_back() -> None:
    program = widened("ui8", "si8", 67, 130, 103)
    text = weft.compile(program, "cpu", overrides=in_words(program)).stages["cpu"]
    assert " = dot(" in text
    assert print_routines(parse_routines(text)) == text


@pytest.mark.parametrize(("dtype", "out"), [("f32", "f32"), ("si8", "si64"), ("si16", "si32")])
def test_other_products_are_not_words(dtype: str, out: str) -> None:
    b = Builder("other")
    x, y = b.param(dtype, [64, 64]), b.param(dtype, [64, 64])
    accumulator = {"si64": "si64"}.get(out)
    program = b.build(
        b.dot_general(x, y, contract=([1], [0]), out_dtype=out, accum_dtype=accumulator)
    )
    assert '"where": "packed"' in weft.compile(program, "cpu").stages["plan"]
    with pytest.raises(SpecViolation, match="only products of 8-bit numbers"):
        weft.compile(program, "cpu", overrides=in_words(program))


HALVES = np.arange(1 << 16, dtype=np.uint16).view(np.float16)


@pytest.mark.parametrize("features", [frozenset(), host().features], ids=["plain", "own"])
def test_halves_are_rounded_alike_by_every_machine(features: frozenset[str]) -> None:
    """Every f16 widened, and numbers between any two of them rounded to the nearer, even one."""
    b = Builder("halves")
    x, y = b.param("f16", [1 << 16]), b.param("f32", [1 << 16])
    program = b.build(b.cast(x, "f32"), b.cast(y, "f16"))
    rng = np.random.default_rng(0)
    with np.errstate(all="ignore"):
        wide = HALVES.astype(np.float32)
        part = rng.choice(np.array([0.25, 0.5, 0.75], np.float32), 1 << 16)
        between = wide + np.spacing(HALVES).astype(np.float32) * part
        executable = compile_program(program, replace(host(), features=features))
        widened, rounded = executable.run([HALVES, between])
        np.testing.assert_array_equal(widened, wide)
        np.testing.assert_array_equal(rounded, between.astype(np.float16))
