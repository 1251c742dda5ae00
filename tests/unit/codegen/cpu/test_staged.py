"""Stages on the CPU: plans that are obeyed or refused, edits that are proved or refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

import weft
from tests.random.stages import check
from tests.support.cases import one_in
from tests.support.staged_programs import image, twice
from weft.driver.compile import Executable
from weft.driver.pipeline import run_pipeline
from weft.driver.signature import make_signature
from weft.driver.stages.compilation import Compilation
from weft.foundation.errors import SpecViolation
from weft.poly import sets
from weft.ptir import Program
from weft.target.known import target_named

pytestmark = pytest.mark.usefixtures("small_machine")


@cache
def program_of() -> Program:
    found: Program = weft.jit(twice).program(weft.tensor(np.zeros((20, 80), np.float32)))
    return found


@cache
def compiled_once() -> Executable:
    return weft.compile(program_of(), "cpu")


@pytest.fixture
def program() -> Program:
    return program_of()


@pytest.fixture
def compiled(small_machine: None) -> Executable:
    return compiled_once()


@pytest.mark.parametrize("seed", one_in(2, [3, 5, 11, 17]))
def test_random_programs(seed: int) -> None:
    """A few of `python -m tests.random.stages`."""
    check(seed)


@pytest.mark.parametrize(
    "function",
    [lambda x: twice(x).mT, lambda x: twice(x.mT), lambda x: twice(twice(x).mT).mT],
    ids=["after", "before", "between"],
)
def test_vectors_run_along_rows_of_stages(function: Callable[[Any], Any]) -> None:
    """A stage that is read across would move along its own rows, so that it is stored."""
    x = image(80, 90)
    program = weft.jit(function).program(weft.tensor(x))
    (got,) = weft.compile(program, "cpu").run([x])
    (wanted,) = weft.run(program, [x], backend="reference")
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def plan_with(compiled: Executable, **fields: Any) -> str:
    plans = json.loads(compiled.stages["plan"])
    plans["plans"][0] |= fields
    return json.dumps(plans)


def test_a_plan_is_obeyed(program: Program, compiled: Executable) -> None:
    edges = json.loads(compiled.stages["plan"])["plans"][0]["local_edges"]
    edges[0]["depth"] = 5
    text = plan_with(compiled, tile={"i0": 6}, vector=4, unroll=1, local_edges=edges)
    edited = weft.compile(program, "cpu", overrides={"plan": text})
    assert "pieces=3" in edited.stages["cpu"]
    assert f"scratch f32[{5 * 78}]" in edited.stages["cpu"]
    x = image(20, 80)
    np.testing.assert_allclose(edited.run([x])[0], compiled.run([x])[0], rtol=1e-6)


def test_a_stage_is_computed_at_the_strip(program: Program, compiled: Executable) -> None:
    """All its rows come first, and its ring holds all of them."""
    at = [{"stage": "s0", "at": "i0.o"}, {"stage": "s1", "at": "i0"}]
    text = plan_with(compiled, tile={"i0": 6}, local_edges=[], compute_at=at)
    edited = weft.compile(program, "cpu", overrides={"plan": text})
    by_row = weft.compile(
        program, "cpu", overrides={"plan": plan_with(compiled, tile={"i0": 6}, local_edges=[])}
    )
    assert f"scratch f32[{(6 + 4) * 78}]" in edited.stages["cpu"]
    assert edited.stages["cpu"].count("serial t_") == by_row.stages["cpu"].count("serial t_") + 1
    assert json.loads(edited.stages["plan"])["plans"][0]["compute_at"] == at
    x = image(20, 80)
    np.testing.assert_array_equal(edited.run([x])[0], by_row.run([x])[0])
    short = re.sub(r"(serial t_2 in \S+ - 4\.\.6\*piece_1 \+ )6", r"\g<1>5", edited.stages["cpu"])
    assert short != edited.stages["cpu"]
    with pytest.raises(SpecViolation, match="when the ring of 10 rows does not hold it"):
        weft.compile(program, "cpu", overrides={"plan": text, "cpu": short})


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"slide": "i1"}, "slide=i1, but the stages of this kernel slide along i0"),
        ({"tile": {"i0": 0}}, "tile i0 is 0; it must be at least 1"),
        ({"vector": 3}, "3 elements is not a power of two"),
        (
            {"local_edges": [{"from": "s0", "to": "s1", "buffer": "smem_ring", "depth": 2}]},
            "the edge s0 to s1 has depth 2; 3 rows are live at a time",
        ),
        (
            {"local_edges": [{"from": "s0", "to": "s2", "buffer": "smem_ring"}]},
            "the edge s0 to s2: s2 reads no stage s0",
        ),
        (
            {"local_edges": [{"from": "s0", "to": "s1", "buffer": "gmem"}]},
            "goes through memory where the region has a kernel for s0",
        ),
        (
            {"local_edges": [{"from": "s0", "to": "s1", "buffer": "smem_ring", "depth": 99999}]},
            "its rings take",
        ),
        (
            {"compute_at": [{"stage": "s0", "at": "i0.o"}]},
            "the edge s0 to s1 has depth 3; 20 rows are live at a time",
        ),
        (
            {"compute_at": [{"stage": "s1", "at": "i0.o"}]},
            "compute_at s1 i0.o: it reads s0, which is computed at i0",
        ),
        (
            {"compute_at": [{"stage": "s0", "at": "i1"}]},
            "compute_at s0 i1: stages are computed at a row, i0, or at a strip, i0.o",
        ),
        ({"compute_at": [{"stage": "s7", "at": "i0"}]}, "the stages are s0, s1"),
        (
            {"store_at": [{"stage": "s0", "at": "i0"}]},
            "store_at s0 i0: rings live as long as a strip, i0.o",
        ),
    ],
    ids=lambda value: None if isinstance(value, dict) else str(value)[:30],
)
def test_what_no_plan_may_say(
    program: Program, compiled: Executable, fields: dict[str, Any], why: str
) -> None:
    with pytest.raises(SpecViolation, match=re.escape(why)):
        weft.compile(program, "cpu", overrides={"plan": plan_with(compiled, **fields)})


# -- edited loops --------------------------------------------------------------------------------


def recompiled(program: Program, text: str) -> Executable:
    return weft.compile(program, "cpu", overrides={"cpu": text})


def test_another_order_of_tiles_is_proved(program: Program, compiled: Executable) -> None:
    """Loops that are written out may be serial ones."""
    text = re.sub(r"unrolled (\w+) in", r"serial \1 in", compiled.stages["cpu"])
    assert text != compiled.stages["cpu"]
    x = image(20, 80)
    np.testing.assert_array_equal(recompiled(program, text).run([x])[0], compiled.run([x])[0])


def edited(text: str, old: str, new: str) -> str:
    made, count = re.subn(old, new, text, count=1)
    assert count == 1, old
    return made


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (r"\.\.(\d+)\*piece_1 \+", r"..\1*piece_1 - 1 +", "does not compute"),
        (r"in (\d+\*piece_1) - 4\.\.", r"in \1 - 3..", "in a row that its piece has not stored"),
        (r"(store b2\[.*?)\+ (\d+)\] =", r"\1+ 1\2] =", "buffer|is not where its point"),
        (r"serial (i1t_\d+) in 0\.\.(\d)", r"serial \1 in 1..\2", "is not stored as a whole"),
        (r"(store b2\[.* at \[)t_2 \+ 4", r"\1t_2 + 3", "is not where its point|is stored in row"),
    ],
    ids=["a row short", "no warm-up", "off by columns", "columns left out", "another row"],
)
def test_bad_edits_of_stages_are_refused(
    program: Program, compiled: Executable, old: str, new: str, why: str
) -> None:
    with pytest.raises(SpecViolation, match=why):
        recompiled(program, edited(compiled.stages["cpu"], old, new))


def test_a_proof_that_takes_too_long_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler's own loops are not refused because nobody had the time to look."""
    monkeypatch.setitem(sets.BUDGETS, "uncovered", 1)
    made = weft.jit(twice).program(weft.tensor(image(61, 83)))
    found = run_pipeline(Compilation(made, target_named("cpu"), make_signature(made)))
    assert "uncovered takes more than 1 isl operations" in str(found["cpu"].findings[0])
