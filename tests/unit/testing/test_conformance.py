"""The conformance kit: what is in its table, that its oracles stand alone, that wrong backends are
caught, and what it writes."""

from __future__ import annotations

import ast
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import weft
from tests.unit.testing.mutants import (
    MUTANTS,
    MutantBackend,
    SeedlessBackend,
    Twisted,
    after,
    nudged,
)
from weft.cli import main
from weft.driver.backends import register_backend
from weft.driver.reference import BACKEND, ReferenceBackend, ReferenceExecutable
from weft.foundation.dtypes import (
    ALL,
    ANY,
    BF16,
    CF32,
    F16,
    F32,
    FP8_E4M3,
    FP8_E5M2,
    DType,
)
from weft.foundation.errors import Unimplemented, UserError
from weft.ptir.interp import Observer
from weft.ptir.ir import Program
from weft.ptir.op import Op, all_ops
from weft.ptir.types import leaves
from weft.testing.conformance import Case, Outcome, Result, all_cases, parse_shard, run_case, select
from weft.testing.conformance.bounds import markdown
from weft.testing.conformance.case import Rejected
from weft.testing.conformance.judge import listing
from weft.testing.conformance.matrix import Matrix, State
from weft.testing.conformance.oracles.rounding import nearest, nearest_of_integers
from weft.testing.conformance.page import page
from weft.testing.conformance.records import Journal, decode, encode
from weft.testing.conformance.table import one_of_each
from weft.testing.conformance.tolerance import Exact, PerTensor, Ulps

Array = np.ndarray[Any, Any]
KIT = Path(weft.__file__).parent / "testing" / "conformance"
DOCS = Path(weft.__file__).parents[2] / "docs" / "conformance.md"
OPS = {row: cls for cls in all_ops() for row in cls.rows()}


def run_all(cases: Sequence[Case], backend: Any) -> list[Result]:
    return [run_case(case, backend) for case in cases]


def outcomes(results: Sequence[Result]) -> Counter[str]:
    return Counter(result.outcome.value for result in results)


# -- the table -----------------------------------------------------------------------------------


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


def test_every_op_is_tried_on_dynamic_dims_and_on_nothing_at_all() -> None:
    words: dict[str, set[str]] = {}
    for case in all_cases():
        words.setdefault(case.row, set()).update(re.split(r"[/-]", case.id))
    without_dims = {"constant", "custom_call", "triangular_solve"}
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


# -- the oracles ---------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted((KIT / "oracles").glob("*.py")), ids=lambda p: p.stem)
def test_oracles_know_nothing_of_weft_but_the_dtypes(path: Path) -> None:
    allowed = re.compile(r"weft\.(foundation\.dtypes|testing\.conformance\.oracles(\.\w+)?)$")
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        for name in names:
            assert not name.startswith("weft") or allowed.match(name), name
        if isinstance(node, ast.Attribute):
            assert node.attr not in {"evaluate", "run_regions"}
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in {"__import__", "eval", "exec"}


FORBIDDEN = re.compile(r"weft\.(driver|ptir\.(interp|philox)|foundation\.(numeric|functions))")


@pytest.mark.parametrize("path", sorted((KIT / "cases").glob("*.py")), ids=lambda p: p.stem)
def test_cases_never_run_an_op(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert not FORBIDDEN.match(node.module or "")
        if isinstance(node, ast.Attribute):
            assert node.attr not in {"evaluate", "run_regions"}


@pytest.mark.parametrize("dtype", [FP8_E4M3, FP8_E5M2, BF16, F16], ids=str)
def test_rounding_agrees_with_the_conversion_from_f32(dtype: DType) -> None:
    """The search among all values, against ml_dtypes and NumPy, which convert f32 directly."""
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 1 << 32, 40_000, dtype=np.uint32)
    near = rng.standard_normal(20_000).astype(np.float32) * 300
    with np.errstate(all="ignore"):
        x = np.concatenate([bits.view(np.float32), near])
        want = x.astype(dtype.numpy)
        got = nearest(x.astype(np.float64), dtype)
        same = (got == want) | (np.isnan(want) & np.isnan(got))
    assert got.dtype == want.dtype
    assert same.all()
    assert (np.signbit(got) == np.signbit(want))[~np.isnan(want)].all()


def test_rounding_of_halves_and_of_what_is_too_large() -> None:
    assert nearest(np.array([17.0, 19.0, 464.0, 465.0]), FP8_E4M3).astype(float).tolist()[:3] == [
        16.0, 20.0, 448.0,
    ]  # fmt: skip
    assert math.isnan(float(nearest(np.array(465.0), FP8_E4M3)))
    assert float(nearest(np.array(65520.0), F16)) == math.inf
    assert nearest_of_integers([2**62 + 1, 257, 259, -(2**63)], BF16) == [
        2.0**62,
        256,
        260,
        -(2.0**63),
    ]


# -- tolerances ----------------------------------------------------------------------------------


def test_exact_tells_zeros_apart_and_lets_any_nan_stand_for_nan() -> None:
    want = np.array([0.0, -0.0, np.nan, 1.0], np.float32)
    got = np.array([-0.0, -0.0, -np.nan, 1.0], np.float32)
    assert Exact().accepts(got, want, F32).tolist() == [False, True, True, True]
    assert Exact(zeros=False).accepts(got, want, F32).all()


def test_ulps_are_those_of_the_dtype_at_the_exact_value() -> None:
    exact = np.array([1.0, 1.0, 1.0, 3.0e38, np.inf, np.nan])
    spacing = 2.0**-23
    got = np.array([1 + 2 * spacing, 1 + 3 * spacing, 1 - spacing, np.inf, np.inf, 0.0], np.float32)
    passed = Ulps(2.0).accepts(got, exact, F32)
    assert passed.tolist() == [True, False, True, False, True, False]


def test_overflow_is_admitted_where_it_is_near() -> None:
    largest = float(ml_dtypes.finfo(np.float16).max)  # type: ignore[no-untyped-call]
    exact = np.array([largest + 14.0, largest + 14.0, largest / 2])
    got = np.array([largest, np.inf, np.inf], np.float16)
    assert Ulps(2.0).accepts(got, exact, F16).tolist() == [True, True, False]


def test_per_tensor_bounds_come_from_the_plain_evaluation_and_the_largest_element() -> None:
    exact = np.array([1024.0, 1.0])
    step = 1024 * 2.0**-23
    rule = PerTensor(F32, error=step)
    for error, passes in ((6 * step, True), (7 * step, False)):
        got = (exact + np.array([0, error])).astype(np.float32)
        assert bool(rule.accepts(got, exact, F32).all()) is passes
    # A narrower result may differ by its own rounding, and by no more than that.
    half = np.array([1024.0, 1.0 + 2.0**-11])
    assert rule.accepts(half.astype(np.float16), half, F16).all()
    assert not rule.accepts(np.array([1024.0, 1.01], np.float16), exact, F16).all()


def test_complex_numbers_err_as_a_whole() -> None:
    exact = np.array([3.0 + 4e-9j], np.complex128)
    rule = Ulps(4.0, zeros=False)
    assert rule.accepts(np.array([3.0 + 5e-9j], np.complex64), exact, CF32).all()
    assert not rule.accepts(np.array([3.0 + 4e-5j], np.complex64), exact, CF32).all()


# -- the reference passes ------------------------------------------------------------------------


def fast_cases() -> list[Case]:
    chosen = {case.id: case for case in [*all_cases()[::10], *one_of_each(all_cases())]}
    return list(chosen.values())


@pytest.mark.parametrize("share", range(4))
def test_the_reference_passes_a_part_of_the_table(share: int) -> None:
    results = run_all(fast_cases()[share::4], BACKEND)
    assert len(results) > 500
    assert [r.id for r in results if r.outcome is not Outcome.PASS or r.decomposed] == []


@pytest.mark.slow
@pytest.mark.parametrize("share", range(8))
def test_the_reference_passes_the_whole_table(share: int) -> None:
    results = run_all(all_cases()[share::8], BACKEND)
    assert [(r.id, r.reason) for r in results if r.outcome is not Outcome.PASS] == []


# -- wrong backends are caught -------------------------------------------------------------------


@pytest.mark.parametrize("fault", MUTANTS)
def test_a_subtle_fault_is_found(fault: str) -> None:
    pattern, rewrite = MUTANTS[fault]
    cases = select(pattern)
    assert cases
    assert outcomes(run_all(cases, MutantBackend("mutant", rewrite)))["fail"] > 0
    assert outcomes(run_all(cases, BACKEND)) == {"pass": len(cases)}


def test_a_seed_that_is_ignored_is_found() -> None:
    failed = [r for r in run_all(select("rng_uniform/f32/*"), SeedlessBackend()) if r.reason]
    assert {"rng_uniform/f32/seed=1", "rng_uniform/f32/streams"} <= {r.id for r in failed}


FAMILIES = sorted({cls.family for cls in all_ops()} - {"control"})


NOTHING = {"rank0", "empty", "no", "none", "nothing", "special", "scalar"}
"""Words in the ids of cases that have too few elements to get wrong, or too unusual ones."""


@pytest.mark.parametrize("family", FAMILIES)
def test_a_wrong_family_fails_in_each_of_its_ops(family: str) -> None:
    def rewrite(op: Op) -> Op:
        return Twisted(op, after(nudged)) if op.family == family else op

    own = [c for c in all_cases() if c.family == family and c.row != "custom_call"]
    plain = [case for case in own if not NOTHING & set(re.split(r"[/-]", case.id))]
    cases = list(one_of_each(plain))
    assert {(c.row, c.dtype) for c in cases} == {(c.row, c.dtype) for c in own}
    results = run_all(cases, MutantBackend("broken", rewrite))
    assert [r.id for r in results if r.outcome is not Outcome.FAIL] == []


def test_wrong_loops_are_found() -> None:
    class Impatient(ReferenceBackend):
        """Never enters a loop, and takes the branch that is not asked for."""

        name = "impatient"

        def compile(self, program: Program) -> ReferenceExecutable:
            class Odd(ReferenceExecutable):
                def execute(
                    self,
                    inputs: Sequence[Array],
                    *,
                    seed: int = 0,
                    observer: Observer | None = None,
                ) -> list[Array]:
                    return super().execute(
                        [
                            ~x if x.dtype == np.bool_ else x * 0 if x.shape == () else x
                            for x in inputs
                        ],
                        seed=seed,
                        observer=observer,
                    )

            return Odd(program)

    cases = [*select("cond/f32/*/odd"), *select("while/f32/steps=1"), *select("while/si32/collatz")]
    assert outcomes(run_all(cases, Impatient())) == {"fail": len(cases)}


class Lenient(ReferenceBackend):
    """Runs whatever it is given, and never says that data is wrong."""

    name = "lenient"

    def compile(self, program: Program) -> ReferenceExecutable:
        class Quiet(ReferenceExecutable):
            def execute(
                self, inputs: Sequence[Array], *, seed: int = 0, observer: Observer | None = None
            ) -> list[Array]:
                try:
                    return super().execute(inputs, seed=seed, observer=observer)
                except weft.SpecViolation:
                    kinds = [leaf for kind in program.main.results for leaf in leaves(kind)]
                    return [np.zeros(k.static_shape, k.dtype.numpy) for k in kinds]

        return Quiet(program)


def test_rejections_that_are_not_raised_are_found() -> None:
    codes = [
        "GatherIndexOutOfBounds", "ScatterIndexOutOfBounds", "IntegerDivideByZero", "InvalidShift",
        "InvalidExponent", "NotPositiveDefinite",
    ]  # fmt: skip
    for code in codes:
        results = run_all(select(f"reject/{code}/*")[:6], Lenient())
        assert outcomes(results) == {"fail": len(results)}
        assert results[0].reason == f"SpecViolation {code} was expected, but the program ran"


# -- outcomes ------------------------------------------------------------------------------------


class Answering(ReferenceBackend):
    """Gives the same answer to every program, or raises the same exception."""

    name = "answering"

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def compile(self, program: Program) -> ReferenceExecutable:
        answer = self.answer

        class Fixed(ReferenceExecutable):
            def execute(
                self, inputs: Sequence[Array], *, seed: int = 0, observer: Observer | None = None
            ) -> list[Array]:
                if isinstance(answer, Exception):
                    raise answer
                return list(answer(inputs))

        return Fixed(program)

    def read_storage(self, storage: Any, kind: Any) -> Any:
        return storage


(CASE,) = select("neg/f32/odd")

ANSWERS: list[tuple[Any, str, str]] = [
    (Unimplemented("neg", "too hard"), "unimplemented", "Unimplemented neg: too hard"),
    (IndexError("far out"), "fail", "the backend failed in execute with IndexError: far out"),
    (weft.ExecutionError("no"), "fail", "ExecutionError was raised: no"),
    (
        weft.SpecViolation("ShapeMismatch", "so"),
        "fail",
        "SpecViolation was raised: ShapeMismatch: so",
    ),
    (
        lambda xs: [(-xs[0]).astype(np.float64)],
        "fail",
        "the backend gives an array of float64[3, 5, 7] for f32[3, 5, 7]",
    ),
    (
        lambda xs: [-xs[0][0]],
        "fail",
        "the backend gives an array of float32[5, 7] for f32[3, 5, 7]",
    ),
    (
        lambda xs: [(-xs[0]).tolist()],
        "fail",
        "the backend read an object of class list instead of an array",
    ),
    (lambda xs: [-xs[0]], "pass", ""),
    (
        lambda xs: [np.negative(xs[0], out=xs[0])],
        "fail",
        "the backend failed in execute with ValueError: output array is read-only; "
        "inputs are read, never written",
    ),
]


@pytest.mark.parametrize(("answer", "outcome", "reason"), ANSWERS, ids=lambda v: str(v)[:9])
def test_what_an_answer_counts_as(answer: Any, outcome: str, reason: str) -> None:
    result = run_case(CASE, Answering(answer))
    told = re.sub(r" \(test_conformance\.py:\d+\)", "", result.reason)
    assert (result.outcome.value, told) == (outcome, reason)


def test_a_failure_is_told_in_full() -> None:
    result = run_case(CASE, Answering(lambda xs: [np.abs(xs[0])]))
    trial = CASE.trial()
    assert result.outcome is Outcome.FAIL
    assert result.failure is not None
    assert "%1 = neg(%0) : f32[3, 5, 7]" in result.failure.program
    assert result.failure.inputs == (listing(trial.inputs[0]),)
    assert result.failure.expected == (f"{listing(-trial.inputs[0])} (exact)",)
    assert result.failure.got == (listing(np.abs(trial.inputs[0])),)
    first = int(np.argmax(trial.inputs[0].reshape(-1) > 0))
    index = [int(i) for i in np.unravel_index(first, (3, 5, 7))]
    element = result.failure.elements[0]
    assert element.index == str(index)
    assert (element.expected, element.operands) == (f"-{element.operands}", element.got)
    assert re.match(r"\d+ of 105 elements are wrong \(exact\); at ", result.reason)


def test_what_the_driver_decomposes_passes_with_a_mark() -> None:
    class NoClamp(ReferenceBackend):
        name = "no-clamp"
        ops = ReferenceBackend.ops - {"Clamp"}

    results = run_all(select("clamp/si8/*"), NoClamp())
    assert outcomes(results) == {"pass": len(results)}
    assert {result.decomposed for result in results} == {("clamp",)}
    assert Matrix.of(results).state("elementwise", "clamp", "si8") is State.DECOMPOSED


def test_what_the_driver_cannot_decompose_is_unimplemented() -> None:
    class NoScan(ReferenceBackend):
        name = "no-scan"
        ops = ReferenceBackend.ops - {"Scan"}

    results = run_all(select("scan/si8/*"), NoScan())
    assert outcomes(results) == {"unimplemented": len(results)}
    assert Matrix.of(results).state("control", "scan", "si8") is State.UNIMPLEMENTED


def test_custom_calls_that_nobody_knows_must_be_refused() -> None:
    (case,) = select("custom_call/f32/unknown")

    class Guessing(Answering):
        def supports(self, op: Op) -> bool:
            return True

    result = run_case(case, Guessing(lambda xs: xs))
    assert result.reason == "Unimplemented was expected, but the program ran"
    assert run_case(case, BACKEND).outcome is Outcome.PASS


# -- picking cases, taking up a run --------------------------------------------------------------


def test_shards_partition_the_cases() -> None:
    whole = [case.id for case in select("add/*")]
    parts = [[case.id for case in select("add/*", (i, 4))] for i in (1, 2, 3, 4)]
    assert sorted(name for part in parts for name in part) == sorted(whole)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert parse_shard("2/5") == (2, 5)


@pytest.mark.parametrize("text", ["", "3", "0/2", "3/2", "a/b", "1/0", "-1/2"])
def test_shards_that_do_not_exist(text: str) -> None:
    with pytest.raises(UserError, match=r"the shard"):
        parse_shard(text)


def test_results_survive_the_way_to_json_and_back() -> None:
    results = run_all(select("neg/f32/*"), Answering(lambda xs: [np.abs(xs[0])]))
    assert any(result.failure is not None for result in results)
    for result in results:
        assert decode(json.loads(json.dumps(encode(result)))) == result


def test_a_journal_is_taken_up_after_a_line_that_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "done.jsonl"
    results = run_all(select("neg/f32/*"), BACKEND)
    journal = Journal(path, "reference")
    for result in results[:3]:
        journal.add(result)
    journal.close()
    path.write_text(path.read_text() + '{"backend": "reference", "id": "neg/f')
    again = Journal(path, "reference")
    assert list(again.done) == [result.id for result in results[:3]]
    again.add(results[3])
    again.close()
    last = Journal(path, "reference")
    assert list(last.done.values()) == results[:4]
    last.close()
    other = Journal(path, "other")
    assert other.done == {}
    other.close()


def test_a_journal_does_not_touch_other_files(tmp_path: Path) -> None:
    path = tmp_path / "thesis.txt"
    path.write_text("Chapter 1\n")
    with pytest.raises(UserError, match="does not hold conformance results; it was not changed"):
        Journal(path, "reference")
    assert path.read_text() == "Chapter 1\n"


# -- the command line ----------------------------------------------------------------------------


def weft_command(*args: str) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["weft", "conformance", *args])
        patch.setattr("warnings.showwarning", None)
        with pytest.raises(SystemExit) as done:
            main.main()
    assert isinstance(done.value.code, int)
    return done.value.code


@pytest.fixture
def wrong_backend() -> str:
    """A registered backend that negates wrongly and has no square root."""

    class Wrong(MutantBackend):
        def supports(self, op: Op) -> bool:
            return op.name != "sqrt"

    def rewrite(op: Op) -> Op:
        return Twisted(op, after(np.abs)) if op.mnemonic == "neg" else op

    register_backend(Wrong("conformance-wrong", rewrite))
    return "conformance-wrong"


def test_the_command_prints_a_matrix_and_counts(capfd: pytest.CaptureFixture[str]) -> None:
    assert weft_command("--filter", "neg/*") == 0
    out = capfd.readouterr().out
    marks = next(line for line in out.splitlines() if line.strip().startswith("neg")).split()[1:]
    assert marks == ["·", *"✓" * 18]
    assert (
        f"{len(select('neg/*'))} cases: {len(select('neg/*'))} pass, 0 fail, 0 unimplemented" in out
    )
    assert max(map(len, out.splitlines())) <= 84


def test_the_command_tells_of_failures(
    wrong_backend: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data, html = tmp_path / "r.json", tmp_path / "r.html"
    code = weft_command(
        "--backend",
        wrong_backend,
        "--filter",
        "*/f32/odd",
        "--json",
        str(data),
        "--html",
        str(html),
    )
    assert code == 1
    out = capfd.readouterr().out
    assert "neg/f32/odd" in out
    document = json.loads(data.read_text())
    assert document["backend"] == wrong_backend
    assert document["cases"] == len(document["results"]) == len(select("*/f32/odd"))
    by_id = {result["id"]: result for result in document["results"]}
    # silu is made of neg as well.
    wanted = {"fail": {"neg/f32/odd", "silu/f32/odd"}, "unimplemented": {"sqrt/f32/odd"}}
    for outcome, ids in wanted.items():
        assert {name for name, result in by_id.items() if result["outcome"] == outcome} == ids
    assert document["pass"] == document["cases"] - 3
    assert "sqrt/f32/odd" in html.read_text()


class Idle(MutantBackend):
    """A backend that says it can do nothing."""

    ops = frozenset()


def test_a_backend_that_refuses_everything_is_told_why(capfd: pytest.CaptureFixture[str]) -> None:
    register_backend(Idle("conformance-idle", lambda op: op))
    args = ["--backend", "conformance-idle", "--filter"]
    assert weft_command(*args, "neg/f32/*") == 1
    found = capfd.readouterr()
    first = select("neg/f32/*")[0].id
    assert f"0 pass, 0 fail, {len(select('neg/f32/*'))} unimplemented" in found.out
    assert found.err.lstrip().startswith(
        f"warning: the backend carried out nothing of this; it refused {first}, the first case, "
        "with: Unimplemented neg: the backend 'conformance-idle' does not support the op neg (wire "
    )
    # Rejections pass without the backend, and say nothing of what it can do.
    assert weft_command(*args, "*IntegerDivideByZero*") == 1
    assert "carried out nothing" in capfd.readouterr().err
    assert weft_command(*args, "reject/RankTooLarge/*") == 0
    assert capfd.readouterr().err.strip() == ""


def test_the_command_takes_up_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "done.jsonl"
    assert weft_command("--filter", "neg/*", "--shard", "1/2", "--resume", str(path)) == 0
    ran: list[str] = []

    def counting(case: Case, backend: Any) -> Result:
        ran.append(case.id)
        return run_case(case, backend)

    monkeypatch.setattr("weft.cli.conformance.run_case", counting)
    assert weft_command("--filter", "neg/*", "--resume", str(path)) == 0
    assert ran == [case.id for case in select("neg/*", (2, 2))]
    ran.clear()
    assert weft_command("--filter", "neg/*", "--resume", str(path)) == 0
    assert ran == []


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--backend", "nobody"], "there is no backend 'nobody'"),
        (["--filter", "nothing*"], "no case matches 'nothing*' in shard 1/1"),
        (["--html", "no/such/page.html"], "cannot write no/such/page.html: there is no folder no/"),
        (["--json", "."], "cannot write .: it is a folder"),
        (["--resume", "."], "cannot read .: Is a directory"),
        (["--resume", "no/such/done"], "cannot write no/such/done: No such file or directory"),
    ],
)
def test_the_command_refuses(
    args: list[str],
    sentence: str,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def never(case: Case, backend: Any) -> Result:
        raise AssertionError("a case ran before the command line was looked at")

    monkeypatch.setattr("weft.cli.conformance.run_case", never)
    assert weft_command(*args) == 1
    assert sentence in capfd.readouterr().err


@pytest.mark.parametrize("shard", ["x", "3", "3/2"])
def test_a_wrong_shard_is_a_wrong_command_line(
    shard: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert weft_command("--shard", shard) == 2
    assert f"the shard '{shard}'" in capfd.readouterr().err


@pytest.mark.parametrize(
    "changed", [{"outcome": "splendid"}, {"id": []}, {"failure": "x"}, {"failure": {}}]
)
def test_a_result_of_another_kind_is_not_taken_up(
    changed: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "done.jsonl"
    assert weft_command("--filter", "neg/f32/*", "--resume", str(path)) == 0
    first, *rest = path.read_text().splitlines()
    path.write_text("\n".join([first, json.dumps(json.loads(rest[0]) | changed)]) + "\n")
    capfd.readouterr()
    assert weft_command("--filter", "neg/f32/*", "--resume", str(path)) == 1
    assert f"error: line 2 of {path} is not a conformance result" in capfd.readouterr().err


# -- the page ------------------------------------------------------------------------------------


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


# -- the documentation ---------------------------------------------------------------------------


def test_the_documented_tolerances_are_those_of_the_kit() -> None:
    assert markdown() in DOCS.read_text()


def test_rejected_programs_are_only_rejected_for_their_code() -> None:
    """The expectation of a rejection says its code, and the row of the matrix is the same."""
    for case in one_of_each([c for c in all_cases() if c.family == "rejections"]):
        expected = case.trial().expected
        assert isinstance(expected, Rejected)
        assert expected.code == case.row
