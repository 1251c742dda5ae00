"""Views that were edited: what contradicts the graph or itself is refused with a reason."""

from __future__ import annotations

import json

import pytest

from examples import make_programs
from weft.driver.pipeline import run_pipeline
from weft.driver.signature import make_signature
from weft.driver.stages.compilation import Compilation
from weft.foundation.errors import SpecViolation
from weft.ptir import Program
from weft.target.known import target_named


def through(program: Program, until: str, **overrides: str) -> Compilation:
    made = Compilation(program, target_named("cpu"), make_signature(program), overrides)
    return run_pipeline(made, until)


def test_reads_with_an_index_missing_are_refused_wherever_they_stand() -> None:
    program = make_programs.attention(sequence=4, cache=8, depth=4)
    text = through(program, "poly_view").text("poly_view")
    tried = 0
    for number, block in enumerate(json.loads(text)["poly_view"]["blocks"]):
        for place, access in enumerate(block["accesses"]):
            _, comma, rest = access["map"].strip("[]").partition(", ")
            if not comma:
                continue
            edited = json.loads(text)
            edited["poly_view"]["blocks"][number]["accesses"][place]["map"] = f"[{rest}]"
            with pytest.raises(SpecViolation):
                through(program, "poly_view", poly_view=json.dumps(edited))
            tried += 1
    assert tried > 10
