"""What is left to the host: the page lists all of it, and no example program has any."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from examples import gpt
from weft.driver.compilation import Compilation
from weft.driver.pipeline import run_pipeline
from weft.driver.signature import make_signature
from weft.ptir import Builder, Program, load
from weft.ptir.op import Op
from weft.ptir.specialise import is_static
from weft.target.known import target_named
from weft.testing.conformance import Case, Holds, Values, all_cases
from weft.testing.conformance.table import one_of_each
from weft.tiny.ir import Graph, Opaque

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "cpu.md").read_text().split("## What runs on the host")[1].split("\n## ")[0]
EXAMPLES = sorted((ROOT / "examples").glob("*.ptir.txt"))
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
    return {op.mnemonic for op in whole if isinstance(op, Op) and not op.regions}


def programs_of(cases: Iterator[Case]) -> Iterator[tuple[str, Program]]:
    for case in cases:
        with np.errstate(all="ignore"):
            trial = case.trial()
            if case.dtype is None or not isinstance(trial.expected, Values | Holds):
                continue
            program = trial.program()
        if is_static(program):
            yield case.dtype.name, program


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
