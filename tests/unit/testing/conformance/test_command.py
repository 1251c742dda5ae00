"""`weft conformance`: what it prints, writes and refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.command_line import weft_command
from tests.unit.testing.absent import WHY
from tests.unit.testing.mutants import MutantBackend, Twisted, after
from weft.driver.backends import register_backend
from weft.ptir.op import Op
from weft.testing.conformance import Case, Result, run_case, select


def conformance(*args: str) -> int:
    return weft_command("conformance", *args)


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
    assert conformance("--filter", "neg/*") == 0
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
    code = conformance(
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
    assert conformance(*args, "neg/f32/*") == 1
    found = capfd.readouterr()
    first = select("neg/f32/*")[0].id
    assert f"0 pass, 0 fail, {len(select('neg/f32/*'))} unimplemented" in found.out
    assert found.err.lstrip().startswith(
        f"warning: the backend ran none of these cases; it refused {first}, the first one, "
        "with: Unimplemented neg: the backend 'conformance-idle' does not support the op neg (wire "
    )
    # Rejections pass without the backend, and say nothing of what it can do.
    assert conformance(*args, "*IntegerDivideByZero*") == 1
    assert "ran none of these cases" in capfd.readouterr().err
    assert conformance(*args, "reject/RankTooLarge/*") == 0
    assert capfd.readouterr().err.strip() == ""


def test_a_backend_whose_machine_is_not_there_is_one_sentence(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    journal = tmp_path / "score.jsonl"
    name = "tests.unit.testing.absent:BACKEND"
    assert conformance("--backend", name, "--filter", "add/*", "--resume", str(journal)) == 1
    assert capfd.readouterr() == ("", f"error: {WHY}\n")


def test_the_command_takes_up_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "done.jsonl"
    assert conformance("--filter", "neg/*", "--shard", "1/2", "--resume", str(path)) == 0
    ran: list[str] = []

    def counting(case: Case, backend: Any) -> Result:
        ran.append(case.id)
        return run_case(case, backend)

    monkeypatch.setattr("weft.cli.conformance.run_case", counting)
    assert conformance("--filter", "neg/*", "--resume", str(path)) == 0
    assert ran == [case.id for case in select("neg/*", (2, 2))]
    ran.clear()
    assert conformance("--filter", "neg/*", "--resume", str(path)) == 0
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
    assert conformance(*args) == 1
    assert sentence in capfd.readouterr().err


@pytest.mark.parametrize("shard", ["x", "3", "3/2"])
def test_a_wrong_shard_is_a_wrong_command_line(
    shard: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert conformance("--shard", shard) == 2
    assert f"the shard '{shard}'" in capfd.readouterr().err


@pytest.mark.parametrize(
    "changed", [{"outcome": "splendid"}, {"id": []}, {"failure": "x"}, {"failure": {}}]
)
def test_a_result_of_another_kind_is_not_taken_up(
    changed: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "done.jsonl"
    assert conformance("--filter", "neg/f32/*", "--resume", str(path)) == 0
    first, *rest = path.read_text().splitlines()
    path.write_text("\n".join([first, json.dumps(json.loads(rest[0]) | changed)]) + "\n")
    capfd.readouterr()
    assert conformance("--filter", "neg/f32/*", "--resume", str(path)) == 1
    assert f"error: line 2 of {path} is not a conformance result" in capfd.readouterr().err
