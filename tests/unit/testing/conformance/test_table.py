"""What is in the table of the conformance kit."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import weft
from weft.driver.backends import get_backend
from weft.foundation.dtypes import ALL, ANY, F32
from weft.ptir.op import all_ops
from weft.testing.conformance import all_cases, table
from weft.testing.conformance.case import Case, Rejected, Trial
from weft.testing.conformance.cases import ordering
from weft.testing.conformance.run import Outcome, run_case
from weft.testing.conformance.table import one_of_each

KIT = Path(weft.__file__).parent / "testing" / "conformance"
OPS = {row: cls for cls in all_ops() for row in cls.rows()}


def test_there_are_thousands_of_cases_with_different_ids() -> None:
    ids = [case.id for case in all_cases()]
    assert len(ids) >= 5000
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[\w.=-]+(/[\w.=-]+)+", name) for name in ids)


def test_the_matrix_is_the_dtype_table_of_the_op_classes() -> None:
    wanted = set()
    for row, cls in OPS.items():
        first = next(iter(cls.rows()[row].values()), ANY)
        wanted |= {(row, dtype) for dtype in (ANY if cls.family == "control" else first)}
    found = {(c.row, c.dtype) for c in all_cases() if c.row in OPS and c.family != "rejections"}
    assert found == wanted


def test_an_op_without_a_case_is_one_failure_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    others = [family for family in table.FAMILIES if family is not ordering]
    monkeypatch.setattr(table, "FAMILIES", tuple(others))
    left = table.all_cases.__wrapped__()
    missing = [case for case in left if case.id.endswith("/no-case")]
    assert {case.row for case in missing} == {case.row for case in ordering.cases()} & set(OPS)
    found = run_case(missing[0], get_backend("reference"))
    assert found.outcome is Outcome.FAIL
    assert f"the kit has no case for the op {missing[0].row}; add one" in found.reason


def test_an_expectation_that_is_missing_is_a_failure_of_its_case() -> None:
    nothing: dict[str, Trial] = {}
    lost = Case("add/f32/lost", "elementwise", "add", F32, lambda: nothing["add"])
    found = run_case(lost, get_backend("reference"))
    assert (found.outcome, found.reason) == (
        Outcome.FAIL, "the kit does not know what to expect: KeyError('add')"
    )  # fmt: skip


def test_every_op_is_tried_on_dynamic_dims_and_on_nothing_at_all() -> None:
    words: dict[str, set[str]] = {}
    for case in all_cases():
        words.setdefault(case.row, set()).update(re.split(r"[/-]", case.id))
    without_dims = {"callback", "constant", "custom_call", "triangular_solve"}
    empty = {"empty", "no", "none", "nothing", "length=0", "steps=0"}
    for row in OPS:
        assert "dynamic" in words[row] or row in without_dims, row
        assert words[row] & empty or row in {"custom_call", "while"}, row


def test_every_code_that_can_be_raised_is_expected_somewhere() -> None:
    calls = r'(?:SpecViolation|violation|Finding|_bad)\(\s*(?:\w+,\s*)?"([A-Z]\w+)"'
    defaults = r'"((?:Compare|Dynamic|Gather|Scatter)[A-Z]\w+(?<!Spec))"|code: str = "([A-Z]\w+)"'
    source = "\n".join(path.read_text() for path in (KIT.parents[1] / "ptir").rglob("*.py"))
    raised = {name for match in re.findall(f"{calls}|{defaults}", source) for name in match if name}
    expected = {case.row for case in all_cases() if case.family == "rejections"}
    assert {"ShapeMismatch", "GatherIndexOutOfBounds", "HintInvalid"} <= raised
    # Bincode has no text, and the end of a long list is never its first finding.
    assert raised - expected <= {"MalformedBincode", "TooManyFindings"}


def test_undefined_dtypes_are_rejections() -> None:
    refused = {
        tuple(case.id.split("/")[2:])
        for case in all_cases()
        if case.row == "DTypeNotSupported" and "=" not in case.id
    }
    for row, cls in OPS.items():
        table = next(iter(cls.rows()[row].values()), ANY)
        if cls.family != "control" and "result" not in cls.dtypes:
            for dtype in set(ALL) - table:
                assert (row, dtype.name) in refused


def test_rejected_programs_are_only_rejected_for_their_code() -> None:
    """The expectation of a rejection says its code, and the row of the matrix is the same."""
    for case in one_of_each([c for c in all_cases() if c.family == "rejections"]):
        expected = case.trial().expected
        assert isinstance(expected, Rejected)
        assert expected.code == case.row
