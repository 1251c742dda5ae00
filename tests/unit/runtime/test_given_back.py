"""Native memory is given back: of a program that is compiled and dropped nothing is left."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from weft.runtime import jit

RESIDENT = """
import gc
import os


def resident():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def left_by(work, warm, count):
    for number in range(warm):
        work(number)
    before = resident()
    for number in range(warm, warm + count):
        work(number)
    return (resident() - before) // count
"""
COMPILED = """
from weft.runtime.jit import Library, compile_object


def source(number):
    value = f"%y = add i32 %x, {number}"
    return f"define i32 @f(ptr %p) {{\\n %x = load i32, ptr %p\\n {value}\\n ret i32 %y }}"


def work(number):
    assert Library([compile_object(source(number))], ["f"]).address("f")


print(left_by(work, 60, 200))
"""
ASKED = """
from weft.foundation.index_expr import Guard, axis
from weft.foundation.memo import forget
from weft.poly.sets import Domain, Piece, difference, holds, is_injective

i, j = axis("i"), axis("j")


def work(number):
    forget()
    domain = Domain.box({"i": 10 + number, "j": 20})
    assert holds(domain, Guard(i, 10 + number))
    assert is_injective(domain, (i * 20 + j,))
    loop = Domain.box({"n": 20 * (10 + number)})
    n = axis("n")
    assert difference((Piece(loop, (n // 20, n % 20)),), domain) is None


print(left_by(work, 200, 1000))
"""
pytestmark = pytest.mark.skipif(
    not os.path.exists("/proc/self/statm"), reason="needs Linux's /proc"
)


def measured(script: str) -> int:
    """The bytes that a piece of work leaves."""
    done = subprocess.run(
        [sys.executable, "-c", RESIDENT + script],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.stderr == ""
    return int(done.stdout)


def test_what_is_compiled_and_dropped_leaves_nothing() -> None:
    """It was 33 kB for each module that was compiled, and 9 for each that was linked."""
    assert measured(COMPILED) < 4_000


def test_questions_about_sets_leave_nothing() -> None:
    """It was 7 kB for the three of them: islpy keeps something of what isl takes over."""
    assert measured(ASKED) < 1_000


def test_passes_are_made_anew_before_they_become_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run leaves calls with llvmlite's builder that all later runs carry out."""
    monkeypatch.setattr(jit, "_MOST_MODULES", 3)
    monkeypatch.setattr(jit, "_PASSES", {})
    builders, machines, codes = set(), set(), set()
    kept = []
    for _ in range(7):
        codes.add(jit.compile_object("define i32 @f() {\n ret i32 7 }"))
        (passes,) = jit._PASSES.values()
        assert passes.modules <= 3
        kept.append(passes)
        builders.add(id(passes.builder))
        machines.add(id(passes.machine))
    assert (len(builders), len(machines), len(codes)) == (3, 1, 1)
