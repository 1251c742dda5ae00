"""The command line: what each command prints, where, and with which exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.support import onnx_models as m
from tests.support.command_line import Result, Weft
from weft.cli import commands, verify
from weft.driver.loading import plugins
from weft.driver.tuning import tuned
from weft.ptir import Builder, Program, load, save

SOURCE = str(Path(weft.__file__).parents[1])
GOLDEN = Path(__file__).parents[2] / "compat" / "2026-11-ptir-golden"


def small() -> Program:
    b = Builder("small")
    x = b.param("f32", [2, 3])
    return b.build(b.exp(x), b.reduce_sum(x, [0, 1]))


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "small.json"
    save(small(), path)
    return path


# -- verify --------------------------------------------------------------------------------------


def test_verify_accepts_a_valid_program(run: Weft, program: Path) -> None:
    assert run("verify", program) == Result(0, f"{program}: valid, 2 instructions\n", "")


def test_verify_lists_every_finding(run: Weft, tmp_path: Path) -> None:
    path = tmp_path / "wrong.txt"
    path.write_text(
        "ptir.v0.4\nentry @main\n\nfunc @main(%0: f32[2]) -> (f32[2]) {\n"
        "  %1 = neg(%7) : f32[2]\n  %2 = exp(%1) : f32[3]\n  return %2\n}\n"
    )
    result = run("verify", path)
    assert (result.code, result.out) == (1, "")
    assert result.err.splitlines() == [
        "UseBeforeDefinition at %1 = neg(%7) in function @main: %7 is used but not defined before",
        "OutputTypeMismatch at %2 = exp(%1) in function @main: the declared type is f32[3] but the "
        "op gives f32[2]",
        "OutputTypeMismatch at function @main: the result %2 has type f32[3], declared as f32[2]",
    ]


def test_a_name_cannot_send_control_characters_to_the_terminal(run: Weft, tmp_path: Path) -> None:
    path = tmp_path / "wrong.txt"
    path.write_text('ptir.v0.4\nentry @"red \\u001b[31m\\nline"\n')
    result = run("verify", path)
    assert result.err == (
        "EntryUndefined at program: the entry function @red \\x1b[31m\\nline does not exist\n"
    )


# -- show ----------------------------------------------------------------------------------------


def test_show_prints_the_text_that_reads_back(run: Weft, program: Path) -> None:
    result = run("show", program)
    assert (result.code, result.err) == (0, "")
    assert weft.ptir.loads(result.out) == small()


def test_show_has_three_formats(run: Weft, program: Path) -> None:
    assert run("show", program, "--format", "display").out.startswith(
        "program @small (spec_version"
    )
    assert json.loads(run("show", program, "--format", "json").out)["entry"] == "small"
    assert run("show", program, "--format", "text").out == run("show", program).out


def test_show_does_not_verify(run: Weft) -> None:
    result = run("show", GOLDEN / "pad_i1.bin")
    assert result.code == 0
    assert "pad_value=i1 true" in result.out


@pytest.mark.parametrize("command", ["run", "show", "verify"])
def test_a_script_is_no_program(run: Weft, tmp_path: Path, command: str) -> None:
    path = tmp_path / "model.py"
    path.write_text("import weft\n")
    result = run(command, path)
    assert result.code != 0
    assert f"{path} is a Python script, not a program: programs are files such as" in result.err
    assert ".onnx (ONNX). Run the script with python; " in result.err


def test_a_text_that_is_no_program_is_told_how_one_begins(run: Weft, tmp_path: Path) -> None:
    path = tmp_path / "model.txt"
    path.write_text("import weft\n")
    wanted = "the text begins with 'import', but a program begins with 'ptir.v0.4'"
    assert wanted in run("verify", path).err


# -- convert -------------------------------------------------------------------------------------


@pytest.mark.parametrize("extension", ["json", "bin", "bincode", "txt"])
def test_convert_writes_by_extension(
    run: Weft, program: Path, tmp_path: Path, extension: str
) -> None:
    target = tmp_path / f"other.{extension}"
    assert run("convert", program, target) == Result(0, "", "")
    assert load(target) == small()


def test_convert_to_display(run: Weft, tmp_path: Path) -> None:
    target = tmp_path / "other.ptir"
    assert run("convert", GOLDEN / "scan.json", target).code == 0
    assert target.read_text() == (GOLDEN / "scan.ptir").read_text()


def test_convert_to_a_target_prints(run: Weft, program: Path) -> None:
    result = run("convert", "--to", "ptir-text", program)
    assert (result.code, result.err) == (0, "")
    assert weft.ptir.loads(result.out) == small()


def test_convert_to_a_target_writes(run: Weft, program: Path, tmp_path: Path) -> None:
    target = tmp_path / "any.name"
    assert run("convert", program, target, "--to", "ptir-bincode") == Result(0, "", "")
    assert load(target) == small()
    result = run("convert", program, tmp_path / "no" / "x", "--to", "ptir-json")
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("error: cannot write ")


def test_convert_to_an_unknown_target(run: Weft, program: Path) -> None:
    result = run("convert", "--to", "elf", program)
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("error: there is no conversion target 'elf'; the conversion ")


def test_convert_warns_of_a_program_that_does_not_verify(run: Weft, tmp_path: Path) -> None:
    wrong, target = tmp_path / "wrong.txt", tmp_path / "wrong.json"
    head = "ptir.v0.4\nentry @main\nfunc @main(%0: f32[2]) -> (f32[3]) {\n"
    wrong.write_text(head + "  %1 = exp(%0) : f32[3]\n  return %1\n}\n")
    first = "OutputTypeMismatch at %1 = exp(%0) in function @main: the declared type is f32[3] but"
    result = run("convert", wrong, target)
    assert (result.code, result.out) == (0, "")
    assert result.err.startswith(f"warning: {wrong} does not verify: {first} the op gives f32[2]")
    assert load(target) == load(wrong)
    wrong.write_text(head + "  %1 = exp(%9) : f32[3]\n  return %8\n}\n")
    assert run("convert", wrong, target).err.endswith(" (and 1 more, see weft verify)\n")


PLUGIN = """
class Target:
    description, extension = "whatever it likes", ".txt"
    def __init__(self, name, made):
        self.name, self.made = name, made
    def convert(self, program):
        return self.made()
good = Target("good", lambda: "good")
wrong = Target("wrong", lambda: 1 / 0)
"""


def test_a_target_that_is_not_installed(
    run: Weft, program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plugin_here.py").write_text(PLUGIN)
    (tmp_path / "plugin_leaving.py").write_text("raise SystemExit('I do not like you')")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert run("convert", "--to", "plugin_here:good", program) == Result(0, "good", "")
    result = run("convert", "--to", "plugin_here:wrong", program)
    assert (result.code, result.out) == (1, "")
    assert result.err == (
        "error: the conversion target 'wrong' (plugin_here) failed in convert with "
        "ZeroDivisionError: division by zero (plugin_here.py:9); this is a fault of the plug-in, "
        "not of Weft\n"
    )
    result = run("convert", "--to", "plugin_leaving:good", program)
    assert (result.code, result.out) == (1, "")
    assert result.err == (
        "error: the conversion target 'plugin_leaving:good' cannot be loaded: SystemExit: I do "
        "not like you\n"
    )


def test_a_package_that_takes_a_name_of_ours_is_told_of(
    run: Weft, program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "bold-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bold\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[weft.targets]\nptir-text = bold:TARGET\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    plugins._announcers.cache_clear()
    warning = (
        "warning: the package bold announces a conversion target 'ptir-text', which is the name of "
        "Weft's own; that of the package is ignored and needs another name\n"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        result = run("convert", "--to", "ptir-text", program)
        assert (result.code, result.err) == (0, warning)
        assert weft.ptir.loads(result.out) == small()
        assert run("convert", "--list").err == warning
        assert run("convert", "--to", "ptir-json", program).err == ""
    plugins._announcers.cache_clear()


def test_convert_lists_the_targets(run: Weft) -> None:
    result = run("convert", "--list")
    assert (result.code, result.err) == (0, "")
    for name in ("ptir-text", "ptir-json", "ptir-bincode"):
        assert name in result.out


def test_convert_to_an_unknown_extension(run: Weft, program: Path) -> None:
    result = run("convert", program, "model.pb")
    assert result.code == 1
    assert result.err == (
        "error: cannot tell the format of model.pb by its extension; use one of .json (json), "
        ".bin (bincode), .bincode (bincode), .txt (text), .ptir (display), .core (Core IR), "
        ".mlir (StableHLO), .onnx (ONNX)\n"
    )


# -- run -----------------------------------------------------------------------------------------


def test_run_reads_and_writes_npz(run: Weft, program: Path, tmp_path: Path) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.savez(tmp_path / "in.npz", x)
    out = tmp_path / "results"
    done = run("run", program, "--inputs", tmp_path / "in.npz", "--out", out)
    assert done == Result(0, "", "")
    with np.load(out) as results:
        assert results.files == ["arr_0", "arr_1"]
        np.testing.assert_allclose(results["arr_0"], np.exp(x), rtol=1e-6)
        assert results["arr_1"] == 15


def test_run_without_out_shows_a_table(run: Weft, program: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", values=np.zeros((2, 3), np.float32))
    result = run("run", program, "--inputs", tmp_path / "in.npz", "--backend", "reference")
    assert result.code == 0
    rows = [line.split(maxsplit=2) for line in result.out.splitlines() if "f32" in line]
    assert [row[0] for row in rows] == ["0", "1"]
    assert "1, 1, 1, 1, 1, 1" in result.out
    assert "f32[2, 3]" in result.out


def test_run_without_inputs_and_with_a_seed(run: Weft, tmp_path: Path) -> None:
    b = Builder()
    save(b.build(b.rng_uniform(shape=[3], dtype="f32")), tmp_path / "random.txt")
    for seed in (0, 7):
        done = run("run", tmp_path / "random.txt", "--seed", seed, "--out", tmp_path / "out.npz")
        assert done.code == 0
        with np.load(tmp_path / "out.npz") as results:
            (expected,) = weft.run(load(tmp_path / "random.txt"), seed=seed)
            np.testing.assert_array_equal(results["arr_0"], expected)


def test_run_says_what_is_wrong_with_the_inputs(run: Weft, program: Path, tmp_path: Path) -> None:
    assert run("run", program) == Result(
        1, "", "error: @small takes the inputs f32[2, 3]; give them with --inputs NPZ\n"
    )
    np.savez(tmp_path / "in.npz", np.zeros(3))
    assert run("run", program, "--inputs", tmp_path / "in.npz").err == (
        "error: input 0 has dtype float64, but the program takes f32[2, 3]; convert it with "
        ".astype first\n"
    )


def test_inputs_of_models_are_given_by_name_or_by_number(run: Weft, tmp_path: Path) -> None:
    pair = m.graph([m.node("Sub", "x 2", "y")], [m.value("x"), m.value("2")], [m.value("y", None)])
    (tmp_path / "m.onnx").write_bytes(m.model(pair).SerializeToString())
    for name, value in (("a", 5), ("b", 3)):
        np.save(tmp_path / f"{name}.npy", np.full((2, 3), value, np.float32))
    a, b = tmp_path / "a.npy", tmp_path / "b.npy"
    for first, second in (("x", "2"), ("0", "1"), ("0", "2")):
        done = run(
            "run", tmp_path / "m.onnx", "--input", f"{first}={a}", "--input", f"{second}={b}"
        )
        assert "2, 2, 2, 2, 2, 2" in done.out
    again = run("run", tmp_path / "m.onnx", "--input", f"x={a}", "--input", f"0={b}")
    assert again == Result(1, "", "error: the input 'x' is given twice\n")
    odd = run("run", tmp_path / "m.onnx", "--input", f"3={a}")
    assert odd == Result(1, "", "error: there is no input '3'; they are x, 2\n")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 broken", b"not an archive"])
def test_an_archive_that_cannot_be_read(
    run: Weft, program: Path, tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "in.npz"
    path.write_bytes(content)
    result = run("run", program, "--inputs", path)
    assert result.code == 1
    assert result.err.startswith(f"error: cannot read {path}")
    assert result.err.count("\n") == 1


def test_a_single_array_or_pickled_objects_are_refused(
    run: Weft, program: Path, tmp_path: Path
) -> None:
    np.save(tmp_path / "one.npy", np.zeros((2, 3), np.float32))
    assert "holds a single array" in run("run", program, "--inputs", tmp_path / "one.npy").err
    np.savez(tmp_path / "objects.npz", np.array([object()], object))
    result = run("run", program, "--inputs", tmp_path / "objects.npz")
    assert result.code == 1
    assert "cannot read" in result.err
    assert run("run", program, "--inputs", tmp_path / "none.npz").err == (
        f"error: cannot read {tmp_path / 'none.npz'}: No such file or directory\n"
    )


def test_a_program_is_no_script(run: Weft, program: Path) -> None:
    assert run("profile", program) == Result(
        1,
        "",
        f"error: {program} is a program, not a Python script; weft explore and weft bench take "
        "programs\n",
    )


# -- the command line itself ---------------------------------------------------------------------


def test_the_version(run: Weft) -> None:
    assert run("--version") == run("version") == Result(0, f"weft {weft.__version__}\n", "")


def test_help_lists_the_commands(run: Weft) -> None:
    result = run("--help")
    assert result.code == 0
    for command in ("run", "verify", "show", "convert", "version"):
        assert command in result.out
        assert run(command, "--help").code == 0


@pytest.mark.parametrize(
    "args",
    [
        ["frobnicate"],
        ["verify"],
        ["show", "x.json", "--format", "yaml"],
        ["run", "x.json", "--seed", "-1"],
        ["convert"],
        ["convert", "x.json"],
        ["convert", "--to", "ptir-json"],
        ["convert", "--to"],
        ["convert", "x.json", "--to", "ptir-json", "--to", "ptir-text"],
    ],
)
def test_a_wrong_command_line_is_exit_code_2(run: Weft, args: list[str]) -> None:
    result = run(*args)
    assert (result.code, result.out) == (2, "")
    assert "Usage: weft" in result.err


@pytest.mark.parametrize("args", [["--to"], ["--to", "ptir-json"], ["x.json", "--to"]])
def test_convert_says_what_there_is_to_convert_to(run: Weft, args: list[str]) -> None:
    told = " ".join(run("convert", *args).err.replace("│", " ").split())
    assert "the conversion targets are ptir-text, ptir-json, ptir-bincode" in told


def test_a_tensor_over_the_limit_is_refused_on_every_backend(
    run: Weft, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_MAX_TENSOR_BYTES", "1000")
    b = Builder()
    save(b.build(b.iota("f32", [1000], 0)), tmp_path / "long.txt")
    for backend in ("reference", "cpu"):
        result = run("run", tmp_path / "long.txt", "--backend", backend)
        assert (result.code, result.out) == (1, "")
        assert result.err.startswith("error: the result of %0 = iota(")
        assert "would need 4,000 bytes, over the limit of 1,000" in result.err


def test_errors_are_sentences_on_stderr(run: Weft, tmp_path: Path) -> None:
    assert run("show", "missing.json") == Result(
        1, "", "error: cannot read missing.json: No such file or directory\n"
    )
    (tmp_path / "bad.json").write_text("{}")
    assert run("verify", tmp_path / "bad.json") == Result(
        1, "", "error: MalformedJson at the top level: the field 'entry' is missing\n"
    )


@pytest.mark.filterwarnings("default::weft.foundation.errors.WeftWarning")
def test_warnings_are_sentences_too(run: Weft, program: Path, tmp_path: Path) -> None:
    data = json.loads(program.read_text())
    data["comment"] = "hello"
    (tmp_path / "more.json").write_text(json.dumps(data))
    result = run("verify", tmp_path / "more.json")
    assert result.code == 0
    assert result.err == "warning: program: unknown field 'comment' is ignored\n"


def test_a_bug_is_reported_as_one_with_a_traceback_on_request(
    run: Weft, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(verify, "load_source", broken)
    monkeypatch.delenv("WEFT_DEBUG", raising=False)
    sentence = (
        "internal error: ZeroDivisionError: oops; this is a bug in Weft, please report it with the "
        "program (WEFT_DEBUG=1 shows where it happened)\n"
    )
    assert run("verify", program) == Result(1, "", sentence)
    monkeypatch.setenv("WEFT_DEBUG", "1")
    result = run("verify", program)
    assert result.err.startswith("Traceback (most recent call last):")
    assert result.err.endswith(sentence)


def start(*args: object, module: str = "weft", **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", module, *map(str, args)],
        env={**os.environ, "PYTHONPATH": SOURCE},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


@pytest.mark.parametrize("module", ["weft", "weft.cli.main"])
def test_python_m_weft_is_the_command(program: Path, module: str) -> None:
    process = start("verify", program, module=module)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out, err) == (0, f"{program}: valid, 2 instructions\n", "")


@pytest.mark.parametrize("lines", [1, 5_000])
def test_a_reader_that_leaves_early_is_no_news(tmp_path: Path, lines: int) -> None:
    b = Builder()
    x = b.param("f32", [2])
    for _ in range(lines):
        x = b.neg(x)
    save(b.build(x), tmp_path / "long.bin")
    process = start("show", tmp_path / "long.bin")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    process.wait(timeout=300)


def test_interrupting_is_exit_code_130(
    run: Weft, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(verify, "load_source", interrupted)
    assert run("verify", program) == Result(130, "", "")


@pytest.mark.parametrize(
    ("chosen", "why"), [("off", "which WEFT_CACHE=off switches off"), ("a file", "cannot be made")]
)
def test_nothing_is_tuned_that_cannot_be_kept(
    run: Weft, program: Path, monkeypatch: pytest.MonkeyPatch, chosen: str, why: str
) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(program) if chosen == "a file" else chosen)
    result = run("tune", program)
    assert result.code == 1
    assert why in result.err


def test_tuned_plans_that_cannot_be_kept_are_told(
    run: Weft, program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tuned, "save_tuned", lambda target, table: False)
    result = run("tune", program)
    assert result.code == 0
    assert f"the tuned plans could not be saved in {tmp_path / 'cache'}" in result.err
    assert "name another folder with WEFT_CACHE" in result.err


@pytest.mark.parametrize("module", ["weft.cli.main", "weft.cli.report", "weft.cli.compile"])
def test_interrupting_while_the_command_line_is_loaded_is_quiet(module: str) -> None:
    """An import that is interrupted stands for Ctrl-C at any moment of loading."""
    script = (
        "import runpy, sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, *rest):\n"
        f"        if name == '{module}':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "sys.argv = ['weft', 'compile', 'program']\n"
        "runpy.run_module('weft', run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("args", [["version"], ["--version"], ["--help"], ["nonsense"]])
def test_what_needs_no_program_loads_no_compiler(args: list[str]) -> None:
    script = (
        "import runpy, sys\n"
        f"sys.argv = {['weft', *args]}\n"
        "try:\n"
        "    runpy.run_module('weft', run_name='__main__')\n"
        "except SystemExit:\n"
        "    pass\n"
        "print('loaded', *sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    loaded = done.stdout.splitlines()[-1].split()
    assert "typer" in loaded
    assert not {"numpy", "weft.ptir", "weft.driver.compile"} & set(loaded)


@pytest.mark.parametrize("name", commands.COMMANDS)
def test_the_list_says_what_the_command_says(name: str) -> None:
    command = commands.load_command(name)
    first = command.help.partition("\n\n")[0]
    assert " ".join(first.split()) == commands.COMMANDS[name].summary


def test_nothing_is_written_over_what_is_read(run: Weft, program: Path, tmp_path: Path) -> None:
    script, inputs, module = (tmp_path / name for name in ("a.py", "in.npz", "sum.core"))
    script.write_text("1 / 0")
    np.savez(inputs, np.ones((2, 3), np.float32))
    module.write_text('%0 = Input() {name: "x"} : Tensor<f32, []>\noutputs: %0\n')
    commands = [
        (script, ["profile", "--trace", script, script]),
        (inputs, ["run", program, "--inputs", inputs, "--out", inputs]),
        (program, ["convert", program, program, "--to", "ptir-text"]),
        (module, ["core", "grad", module, "--out", module]),
        (program, ["explore", program, "-o", program]),
    ]
    for file, command in commands:
        before = file.read_bytes()
        result = run(*command)
        assert result.code == 1
        assert f"cannot write {file}: it is the input" in result.err
        assert file.read_bytes() == before
