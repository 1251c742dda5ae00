"""The page of a conformance run, and the matrix on it."""

from __future__ import annotations

import re

import numpy as np

from tests.unit.testing.conformance.running import Lenient, run_all
from tests.unit.testing.mutants import MutantBackend, Twisted, after
from weft.driver.reference import BACKEND
from weft.ptir.op import Op
from weft.testing.conformance import Outcome, select
from weft.testing.conformance.matrix import Matrix, State
from weft.testing.conformance.page import page


def test_the_page_holds_every_failure_and_needs_nothing_else() -> None:
    def rewrite(op: Op) -> Op:
        return Twisted(op, after(np.abs)) if op.mnemonic == "neg" else op

    cases = [*select("neg/*"), *select("reject/IntegerDivideByZero/div/*"), *select("hint/*")]
    broken = run_all(cases, MutantBackend("<odd & broken>", rewrite))
    broken += run_all(select("reject/IntegerDivideByZero/div/*"), Lenient())
    text = page("<odd & broken>", broken)
    failed = [result for result in broken if result.outcome is Outcome.FAIL]
    assert len(failed) > 20
    for result in failed:
        assert f"<code>{result.id}</code>" in text
    assert text.count("<h4>Program</h4>") == len(failed)
    assert "&lt;odd &amp; broken&gt;" in text
    assert "<odd" not in text
    assert not re.search(r"(?:src|href)\s*=\s*[\"'](?!#)|https?://|@import|url\(", text)
    anchors = set(re.findall(r'href="#([^"]+)"', text))
    assert anchors <= set(re.findall(r'id="([^"]+)"', text))
    assert anchors


def test_the_page_of_a_clean_run_has_no_failures() -> None:
    text = page("reference", run_all(select("neg/*"), BACKEND))
    assert "failures</h2>" not in text
    assert "unimplemented</h2>" not in text


def test_cells_that_were_not_run_differ_from_undefined_ones() -> None:
    matrix = Matrix.of(run_all(select("erf/f32/*"), BACKEND))
    states = {name: matrix.state("elementwise", "erf", name) for name in ("f32", "f64", "si8")}
    assert states == {"f32": State.PASS, "f64": State.NOT_RUN, "si8": State.UNDEFINED}
