"""Long routines are several functions, and compute what one would."""

from __future__ import annotations

import re

import numpy as np
import pytest

import weft
from weft.codegen.cpu import ir, long_routines
from weft.codegen.cpu.ir import LoopKind
from weft.foundation.index_expr import constant
from weft.ptir import Builder, Program


def loop(var: str, start: int, stop: int, kind: LoopKind, *body: ir.Stmt) -> ir.For:
    return ir.For(var, constant(start), constant(stop), 1, kind, body)


def routine(*body: ir.Stmt) -> ir.Routine:
    return ir.Routine("k", (), 3, body)


def test_a_long_routine_has_a_part_for_each_of_its_loops() -> None:
    hint = ir.Prefetch(0, constant(0))
    inner = loop("u", 0, long_routines.MANY_STATEMENTS // 2, LoopKind.UNROLLED, hint)
    first = loop("p", 0, 2, LoopKind.PARALLEL, inner)
    last = loop("q", 2, 3, LoopKind.PARALLEL, inner)
    found = long_routines.parts_of(routine(first, last))
    assert [(part.name, part.body) for part in found] == [("k_0", (first,)), ("k_1", (last,))]
    counted = loop("q", 2, 3, LoopKind.PARALLEL, loop("s", 0, 900, LoopKind.SERIAL, hint))
    assert long_routines.parts_of(routine(first, counted)) == []
    assert long_routines.parts_of(routine(first, last, hint)) == []


def product() -> Program:
    """Whole blocks and those at the edges, on every machine."""
    b = Builder("product")
    return b.build(b.param("f32", [130, 37]) @ b.param("f32", [37, 203]))


def test_parts_compute_what_one_function_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE", "off")
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(shape).astype(np.float32) for shape in ((130, 37), (37, 203))]
    found = []
    for least in (1, 1 << 40):
        monkeypatch.setattr(long_routines, "MANY_STATEMENTS", least)
        executable = weft.compile(product())
        text = executable.stages["llvm"]
        found.append((len(re.findall(r"^define internal void @k_", text, re.MULTILINE)),
                      executable.run(inputs)[0]))  # fmt: skip
    (several, mine), (none, whole) = found
    assert several > 1
    assert none == 0
    np.testing.assert_array_equal(mine, whole)
    np.testing.assert_allclose(mine, inputs[0] @ inputs[1], rtol=1e-4, atol=1e-4)
