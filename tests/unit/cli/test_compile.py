"""`weft compile` from the command line: dumps, edited stages, and what `-v` says."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from examples.make_programs import attention, mlp, softmax_layernorm
from tests.support.command_line import weft_command
from weft.driver.compile import Executable
from weft.ptir import Builder, save

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs `weft compile` in this process: the exit code, and what it printed."""

    def call(*args: object) -> tuple[int, str, str]:
        capfd.readouterr()
        return (weft_command("compile", *args), *capfd.readouterr())

    return call


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.ptir.txt"
    save(mlp(batch=8, width=16, hidden=32, out=16), path)
    return path


@pytest.mark.parametrize(
    "stage", ["frontend", "tiny", "indexbook", "poly_view", "region", "memory", "plan", "cpu"]
)
def test_every_dump_reads_back(run: Run, program: Path, tmp_path: Path, stage: str) -> None:
    code, _, err = run(program, f"--dump={stage},llvm", "--out", tmp_path / "a")
    assert (code, err) == (0, "")
    (file,) = (tmp_path / "a").glob(f"{stage}.*")
    code, _, err = run(program, "--from", stage, file, "--dump=llvm", "--out", tmp_path / "b")
    assert (code, err) == (0, "")
    assert (tmp_path / "a" / "llvm.ll").read_text() == (tmp_path / "b" / "llvm.ll").read_text()


@pytest.mark.parametrize(("target", "code"), [("sm90", "cu.cu"), ("cpu", "llvm.ll")])
def test_the_bodies_of_branches_are_dumped_beside_the_program(
    run: Run, tmp_path: Path, target: str, code: str
) -> None:
    """Twice: the second time the program comes from the disk, and its stages are made again."""
    b = Builder()
    x, flag = b.param("f32", [8]), b.param("i1", [])
    file = tmp_path / "branches.txt"
    save(b.build(b.cond(flag, lambda r, v: [r.exp(v)], lambda r, v: [v * 2.0], x)), file)
    stage = code.partition(".")[0]
    for out in (tmp_path / "a", tmp_path / "b"):
        assert run(file, "--target", target, f"--dump={stage}", "--out", out)[0] == 0
        assert [(out / f"region{n}" / code).read_text().count("kernel k_") for n in (0, 1)] == [
            1,
            1,
        ]
        assert "exp" in (out / "region0" / code).read_text()


def test_a_fault_in_edited_loops_is_a_sentence(run: Run, program: Path, tmp_path: Path) -> None:
    run(program, "--dump=cpu", "--out", tmp_path)
    file = tmp_path / "cpu.txt"
    file.write_text(re.sub(r"store b(\d+)\[", r"store b\1[1000000 + ", file.read_text()))
    code, _, err = run(program, "--from", "cpu", file)
    assert code == 1
    assert err.startswith("error: RoutineMemory at routine k_")
    assert "Traceback" not in err


def test_what_is_no_text_is_a_sentence(run: Run, program: Path, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_bytes(b"\xff\xfe")
    code, _, err = run(program, "--from", "plan", tmp_path / "plan.json")
    assert (code, err) == (1, f"error: {tmp_path / 'plan.json'} is not text\n")


def test_verbose_counts_rules_and_kernels(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "rows.ptir.txt"
    save(softmax_layernorm(rows=6, columns=20), path)
    code, out, _ = run(path, "-v")
    assert code == 0
    assert re.search(r"^1 kernel; ", out, re.MULTILINE)
    assert "1 kernels" not in out
    rules = re.findall(r"^([a-z-]+): \d+ times?$", out, re.MULTILINE)
    assert len(rules) == len(set(rules))
    assert " in function @" not in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--dump=nothing", "there is no stage 'nothing' to dump: there are frontend, tiny"),
        ("--dump=plan --to tiny", "there are frontend, tiny; --to tiny stops before it"),
        (
            "--out elsewhere",
            "--out is the folder for dumped stages: name the stages with --dump=STAGES",
        ),
        ("--from nothing missing.json", "there is no stage 'nothing'; the stages are"),
        ("--from plan missing.json", "cannot read missing.json"),
        ("--from plan missing.json --to tiny", "stage 'plan' is given, but comes after 'tiny'"),
        ("--sizes B=3", "--sizes names 'B', which @mlp does not have: it has no dynamic dims"),
        ("--sizes B", "'B' is not the size of a dynamic dim, such as B=32"),
        ("--sizes B=3,B=4", "--sizes B=3,B=4 gives one dim two sizes"),
        ("--donate 7", "donate names input 7"),
    ],
)
def test_options_that_would_do_nothing_are_refused(
    run: Run, program: Path, options: str, message: str
) -> None:
    code, out, err = run(program, *options.split())
    assert (code, out) == (1, "")
    assert message in err


def test_dynamic_dims_get_their_sizes(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "program.ptir.txt"
    save(mlp(batch="?B", width=16, hidden=32, out=16), file)
    code, _, err = run(file)
    assert code == 1
    assert "give their sizes for this compile, as in --sizes B=32" in err
    code, _, err = run(file, "--sizes", "B=3", "--dump=frontend", "--out", tmp_path)
    assert (code, err) == (0, "")
    assert "f32[3, 16]" in (tmp_path / "frontend.ptir.txt").read_text()


def test_donated_caches_are_updated_in_place(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "program.ptir.txt"
    save(attention(), file)
    assert run(file, "-v")[1].count("bytes copied: in") == 2
    assert run(file, "-v", "--donate", "3,4")[1].count("in place, 0 bytes copied") == 2


@pytest.mark.parametrize("level", [0, 2, 3])
def test_a_compiled_program_can_be_checked(run: Run, program: Path, level: int) -> None:
    code, out, err = run(program, "--check", f"-O{level}")
    assert (code, err) == (0, "")
    assert "output 0, f32[8, 16]: agrees, off by " in out


def test_a_check_that_fails_ends_with_1_and_leaves_the_dumps(
    run: Run, program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from_ours = Executable.run
    monkeypatch.setattr(Executable, "run", lambda *a, **k: [x + 1 for x in from_ours(*a, **k)])
    code, out, _ = run(program, "--check", "-v", "--dump=plan", "--out", tmp_path)
    assert code == 1
    assert "differs, off by 1" in out
    assert "arena: " in out
    assert (tmp_path / "plan.json").exists()


def test_kernels_are_measured_into_a_log(run: Run, program: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    code, out, err = run(program, "--measure", log)
    assert (code, err) == (0, "")
    assert "estimate, µs" in out
    assert log.read_text().startswith("kernel,pattern,FLOPs,Bytes,occ,estimate,actual,plan\n")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["-O1"], "there is no optimisation level 1"),
        (["--check", "--to", "plan"], "--check runs the program, but --to plan stops before"),
        (["--measure", "x.csv", "--to", "plan"], "--measure runs the program, but --to plan"),
        (["--measure", "/nowhere/x.csv"], "cannot write /nowhere/x.csv: there is no folder"),
    ],
)
def test_what_cannot_be_asked_together(run: Run, program: Path, given: list[str], why: str) -> None:
    code, _, err = run(program, *given)
    assert code == 1
    assert f"error: {why}" in err


def test_verbose_says_what_became_of_every_edge(run: Run, program: Path) -> None:
    code, out, _ = run(program, "-v")
    assert code == 0
    assert re.search(r"^v\d+: stored by matmul0; a contraction reads it$", out, re.MULTILINE)
    assert re.search(
        r"^v\d+: computed where it is read, by matmul\d; .* µs; stored .* µs$", out, re.M
    )
    assert "with nothing to weigh" in out


def test_exact_fusion_tells_what_it_did(run: Run, program: Path) -> None:
    code, out, _ = run(program, "-O3", "-v")
    assert code == 0
    assert "exact fusion, " in out
    assert "1 s each at most" in out


def test_what_is_not_checked_of_a_stage_that_was_given_is_said(
    run: Run, program: Path, tmp_path: Path
) -> None:
    to_cuda = (program, "--target", "sm90", "--to", "cu")
    _, plain, _ = run(*to_cuda, "--dump=cu", "--out", tmp_path)
    code, said, _ = run(*to_cuda, "--from", "cu", tmp_path / "cu.cu")
    assert code == 0
    assert (
        "note: cu was given: its compiler checks the text, but nothing checks what it computes"
        in said
    )
    assert "was given" not in plain
