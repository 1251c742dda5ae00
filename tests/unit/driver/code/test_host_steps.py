"""What is left to the host: the page lists all of it, and no example program has any."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

import weft
from tests.support.host_steps import PROGRAMS, programs_of
from weft.driver.pipeline import run_pipeline
from weft.driver.signature import make_signature
from weft.driver.stages.compilation import Compilation
from weft.ptir import Builder, Program
from weft.ptir.op import Op
from weft.ptir.ops.bits import Bitcast
from weft.runtime.artifact import HostCall
from weft.target.known import target_named
from weft.testing.conformance import all_cases
from weft.testing.conformance.table import one_of_each
from weft.tiny.ir import Graph, Opaque

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "cpu.md").read_text().split("## What runs on the host")[1].split("\n## ")[0]
PLAIN = {"f32", "f64", "f16", "bf16", "si32", "si64", "i1"}


def lowered(program: Program) -> Graph:
    target = target_named("cpu")
    start = Compilation(program, target, make_signature(program, (), ()), {})
    graph = run_pipeline(start, "tiny")["tiny"]
    assert isinstance(graph, Graph)
    return graph


def host_ops(program: Program) -> set[str]:
    """The ops of a program that neither kernels nor native steps carry out."""
    whole = (value.op for value in lowered(program).values if isinstance(value, Opaque))
    # A bitcast is a copy of bytes, which is a step of its own.
    found = [op for op in whole if isinstance(op, Op) and not op.regions]
    return {op.mnemonic for op in found if not isinstance(op, Bitcast)}


def test_the_page_lists_what_is_left_to_the_host() -> None:
    found = defaultdict(set)
    for dtype, program in programs_of(one_of_each(all_cases())):
        for op in host_ops(program):
            found[dtype].add(op)
    table, complex_only = PAGE.split("Complex numbers")
    rows = re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE)
    listed = set(re.findall(r"`(\w+)`", " ".join(rows)))
    pairs = set(re.findall(r"`(\w+)`", complex_only))
    assert set().union(*(found[dtype] for dtype in PLAIN)) == listed
    others = set().union(*found.values())
    assert others - listed == pairs
    assert set().union(*(ops for dtype, ops in found.items() if dtype[0] != "c")) == listed


def test_a_bitcast_copies_bytes() -> None:
    b = Builder()
    x = b.param("f32", [5, 7])
    program = b.build(b.bitcast(x + x, dtype="si32") + 1, b.bitcast(x, dtype="ui32"))
    given = np.linspace(-3, 4, 35, dtype=np.float32).reshape(5, 7)
    compiled = weft.compile(program)
    first, second = compiled.run([given])
    assert (first == (given + given).view(np.int32) + 1).all()
    assert (second == given.view(np.uint32)).all()
    assert not any(isinstance(step, HostCall) for step in compiled.artifact.steps)


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_example_has_a_host_step(name: str) -> None:
    program = PROGRAMS[name]()
    assert len(program.main.body) > 3
    assert host_ops(program) == set()
