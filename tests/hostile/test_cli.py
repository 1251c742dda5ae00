"""The command line on hostile files: exit code 1, one sentence on stderr, and no traceback.

To start a process takes seconds, so most commands run in this one.
"""

from __future__ import annotations

import io
import os
import random
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.hostile.generated import GENERATED
from tests.hostile.worker import CORPUS, LIMITS, ROOT, SECONDS
from tests.support.command_line import Weft, command_runner
from weft.cli import arrays
from weft.foundation.errors import UserError


def weft(*args: object, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run the command line in a process of its own."""
    given = {**os.environ, **LIMITS, **environment, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "weft", *map(str, args)]
    return subprocess.run(command, capture_output=True, env=given, timeout=300, check=False)


REFUSED = [
    ("verify", "empty.txt", "error: MalformedText: the file is empty"),
    ("verify", "region-contains-itself.txt", "RegionCycle at region ^0: the region contains"),
    ("verify", "constant-of-huge-dims.txt", "LiteralInvalid at %1 = constant() in function @main"),
    ("show", "not-utf-8.txt", "error: MalformedText: the file is not UTF-8 text: byte 22 is wrong"),
    (
        "run",
        "claims-without-inputs.txt",
        "error: the result of %0 = iota() in function @main would",
    ),
    ("run", "loops-without-inputs.txt", "error: %0 = while() in function @main ran 20,000 region"),
    ("convert", "lone-surrogate.json", "error: MalformedJson at entry: the string has a lone"),
]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Weft:
    """Runs the command line in this process, under the limits of the corpus."""
    for name, value in LIMITS.items():
        monkeypatch.setenv(name, value)
    return command_runner(capfd)


@pytest.mark.parametrize(("command", "name", "sentence"), REFUSED)
def test_a_bad_file_is_refused_in_a_sentence(
    command: str, name: str, sentence: str, tmp_path: Path, run: Weft
) -> None:
    out = [tmp_path / "out.json"] if command == "convert" else []
    done = run(command, CORPUS / name, *out)
    lines = done.err.splitlines()
    assert (done.code, done.out, len(lines)) == (1, "", 1)
    assert lines[0].startswith(sentence)
    assert not list(tmp_path.iterdir())


def test_it_is_the_same_in_a_process_of_its_own() -> None:
    command, name, sentence = REFUSED[-2]
    done = weft(command, CORPUS / name)
    lines = done.stderr.decode().splitlines()
    assert (done.returncode, done.stdout, len(lines)) == (1, b"", 1)
    assert lines[0].startswith(sentence)


def test_a_directory_and_a_missing_file(tmp_path: Path, run: Weft) -> None:
    for path, why in ((tmp_path, "Is a directory"), (tmp_path / "x", "No such file or directory")):
        done = run("verify", path)
        assert (done.code, done.err) == (1, f"error: cannot read {path}: {why}\n")


def test_a_name_cannot_break_the_sentence_it_stands_in(tmp_path: Path, run: Weft) -> None:
    path = tmp_path / "odd.txt"
    path.write_text('ptir.v0.4\nentry @"\\u001b[2J\\n\\u202e' + "n" * 100_000 + '"\n')
    done = run("verify", path)
    text = done.err
    assert done.code == 1
    assert text.startswith("EntryUndefined at program: the entry function @\\x1b[2J\\n\\u202enn")
    assert text.count("\n") == 1
    assert len(text) < 2_000


def test_odd_names_are_shown_on_a_terminal_without_unicode() -> None:
    path = CORPUS / "name-of-unicode.txt"
    done = weft("show", path, "--format", "display", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, b"")
    assert "func @tensor \u00e9\u4e2d\U0001f9f6 {" in done.stdout.decode()


# -- a long chain ----------------------------------------------------------------------------------

COMMANDS = [
    ("text", "verify"),
    ("text", "show"),
    ("text", "run --inputs ONES"),
    ("json", "verify"),
    ("json", "show --format json"),
    ("json", "run --inputs ONES"),
    ("json", "convert --to ptir-text"),
    ("json", "convert --to ptir-json"),
    ("json", "convert --to ptir-bincode"),
    ("bincode", "run --inputs ONES"),
]


@pytest.fixture(scope="module")
def chains(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a chain of ops in every form, and an input for it."""
    folder = tmp_path_factory.mktemp("chains")
    np.savez(folder / "ones.npz", np.ones(2, np.float32))
    for form in ("text", "json", "bincode"):
        data = GENERATED[f"chain-{form}"][1]()
        (folder / form).write_bytes(data if isinstance(data, bytes) else data.encode())
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("form", "command"), COMMANDS)
def test_a_chain_of_a_hundred_thousand_ops_is_ordinary(
    form: str, command: str, chains: Path
) -> None:
    words = command.replace("ONES", str(chains / "ones.npz")).split()
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = weft(*words, chains / form)
    seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout
    assert seconds < SECONDS


def test_missing_inputs_are_told_before_the_program_is_walked(tmp_path: Path, run: Weft) -> None:
    """The program does not verify, which nobody looks at."""
    path = tmp_path / "chain.txt"
    lines = "".join(f"%{i + 1} = neg(%{i}) : f32[3]\n" for i in range(50))
    head = "ptir.v0.4\nentry @main\nfunc @main(%0: f32[2]) -> (f32[3]) {\n"
    path.write_text(f"{head}{lines}return %50\n}}\n")
    done = run("run", path)
    assert (done.code, done.out) == (1, "")
    assert done.err == "error: @main takes the inputs f32[2]; give them with --inputs NPZ\n"


# -- inputs ----------------------------------------------------------------------------------------


def archives() -> list[bytes]:
    plain, small, single = io.BytesIO(), io.BytesIO(), io.BytesIO()
    np.savez(plain, np.ones((2, 3), np.float32), np.arange(5))
    np.savez_compressed(small, np.ones((2, 3), np.float32), np.arange(5))
    np.save(single, np.ones(3))
    return [plain.getvalue(), small.getvalue(), single.getvalue()]


@pytest.mark.filterwarnings("ignore:Reading `.npy` or `.npz` file required additional header")
def test_damaged_archives_of_inputs_are_refused_or_read(tmp_path: Path) -> None:
    rng = random.Random(7)
    path = tmp_path / "inputs.npz"
    counts = {"read": 0, "refused": 0}
    whole = archives()
    for _ in range(1_500):
        data = bytearray(rng.choice(whole))
        for _ in range(rng.choice([1, 2, 4])):
            at = rng.randrange(len(data))
            junk = rng.choice([b"\0", b"\xff", b"9", b"(", rng.randbytes(3)])
            data[at : at + rng.choice([0, 1, 1, 1, 4])] = junk
        path.write_bytes(data[: rng.choice([len(data), len(data), rng.randrange(len(data))])])
        try:
            arrays.read_arrays(path)
            counts["read"] += 1
        except UserError:
            counts["refused"] += 1
    assert min(counts.values()) > 20
