"""The example package, installed as any other, and the page that shows its code."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import weft
from weft.driver.backends import Backend
from weft.driver.conversion import ConversionTarget
from weft.ptir import Builder, Program
from weft.ptir.op import CORE

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "tests" / "example_backend"
PAGE = ROOT / "docs" / "backends.md"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory into which pip has installed the package, built without the network."""
    place = tmp_path_factory.mktemp("example")
    source, target = place / "source", place / "site"
    # pip builds inside the source directory, which stays as it is
    shutil.copytree(EXAMPLE, source, ignore=shutil.ignore_patterns("build", "*.egg-info"))
    pip = [sys.executable, "-m", "pip", "--isolated", "--disable-pip-version-check"]
    options = ["--no-deps", "--no-index", "--no-build-isolation", "--target", str(target)]
    subprocess.run([*pip, "install", "--quiet", *options, str(source)], check=True)
    return target


def python(site: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter that finds Weft and what is installed in `site`."""
    path = os.pathsep.join([str(site), str(ROOT / "src")])
    environment = {**os.environ, "PYTHONPATH": path, "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, *args], env=environment, capture_output=True, text=True, check=False
    )


def output(site: Path, script: str) -> list[str]:
    """The lines that a script prints."""
    head = "import numpy as np, weft\nfrom weft.ptir import Builder\nb = Builder()\n"
    done = python(site, "-W", "error", "-c", head + script)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_backend_is_found_and_is_not_loaded_before_it_is_asked_for(installed: Path) -> None:
    script = """
import sys
from weft.driver.backends import backend_names, get_backend
print(backend_names())
print("weft_example" in sys.modules)
print(type(get_backend("toy")).__name__)
"""
    names, loaded, kind = output(installed, script)
    assert "'reference'" in names
    assert "'toy'" in names
    assert (loaded, kind) == ("False", "ToyBackend")


def test_backend_runs_a_program(installed: Path) -> None:
    script = """
x, y = b.param("f32", [2, 3]), b.param("si32", [3])
row = b.slice(b.transpose(x, [1, 0]), [0, 1], [3, 1])
chosen = b.select(b.reshape(row, [3]) > 4.5, b.maximum(y, y + 1), -y)
program = b.build(b.concat([chosen, y], 0), b.exp(x) / b.exp(x))
inputs = [np.arange(6, dtype=np.float32).reshape(2, 3), np.array([10, 20, 30], np.int32)]
seen = []
note = lambda body, instruction, seconds: seen.append(instruction.op.mnemonic)
for backend in ("toy", "reference"):
    for result in weft.run(program, inputs, backend=backend, observer=note):
        print(result.dtype, result.tolist())
print(seen[: len(seen) // 2] == seen[len(seen) // 2 :], len(seen) > 20)
"""
    toy, toy_ones, reference, reference_ones, observed = output(installed, script)
    # the row is [3, 4, 5]; only the last is greater than 4.5
    assert toy == reference == "int32 [-10, -20, 31, 10, 20, 30]"
    assert toy_ones == reference_ones == f"float32 {[[1.0] * 3] * 2}"
    assert observed == "True True"


def test_backend_runs_its_custom_call(installed: Path) -> None:
    script = """
a, x, y = (b.param("f32", [2]) for _ in range(3))
program = b.build(b.custom_call("toy.axpy.v1", a, x, y, output=x.type))
arrays = [np.array(v, np.float32) for v in ([2, 3], [10, 20], [1, 2])]
print(weft.run(program, arrays, backend="toy")[0].tolist())
"""
    assert output(installed, script) == ["[21.0, 62.0]"]


REFUSED = [
    ("b.neg(b.param('f64', [2]))", "parameter", "does not support the dtype f64"),
    ("b.matmul(x := b.param('f32', [2, 2]), x)", "dot_general", "does not support the op dot_gen"),
    ("b.erf(b.param('f32', [2]))", "erf", "the toy backend does not know this function"),
    ("b.div(x := b.param('si32', [2]), x)", "div", "the toy backend divides f32 only"),
    (
        "b.custom_call('acme.norm.v1', x := b.param('f32', [2]), output=x.type)",
        "custom call 'acme.norm.v1'",
        "does not support the custom call 'acme.norm.v1'",
    ),
    (
        "b.cond(b.param('i1'), lambda r, v: r.neg(v), lambda r, v: v, b.param('f32', [2]))",
        "cond",
        "does not support the op cond",
    ),
]


def test_what_it_lacks_is_unimplemented(installed: Path) -> None:
    script = f"""
for body in {[body for body, _, _ in REFUSED]!r}:
    b = Builder()
    program = b.build(eval(body))
    inputs = [np.ones(kind.shape, kind.dtype.numpy) for kind in program.main.parameters]
    try:
        weft.run(program, inputs, backend="toy")
    except weft.Unimplemented as error:
        print(error.op)
        print(error.reason)
"""
    found = output(installed, script)
    assert found[::2] == [op for _, op, _ in REFUSED]
    for reason, (_, _, wanted) in zip(found[1::2], REFUSED, strict=True):
        assert wanted in reason


def test_legalisation_makes_a_clamp_run(installed: Path) -> None:
    script = """
from weft.driver.backends import get_backend
from weft.driver.conversion import check_program_legality
x = b.param("f32", [4])
program = b.build(b.clamp(x, 0.0, 1.0))
print([f.code for f in check_program_legality(program, get_backend("toy"))])
array = np.array([-1, 0.5, 2, np.nan], np.float32)
print(weft.run(program, [array], backend="toy")[0].tolist())
"""
    assert output(installed, script) == ["['UnsupportedOp']", "[0.0, 0.5, 1.0, nan]"]


# -- the command line ----------------------------------------------------------------------------


def clamp_program() -> Program:
    b = Builder()
    return b.build(b.clamp(b.param("f32", [4]), 0.0, 1.0))


@pytest.fixture
def clamp_file(tmp_path: Path) -> Path:
    path = tmp_path / "clamp.json"
    weft.ptir.save(clamp_program(), path)
    return path


def listing_on_the_page() -> str:
    files, block = re.findall(r"```text\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert "pyproject.toml" in files
    return str(block)


def test_convert_to_the_target(installed: Path, clamp_file: Path) -> None:
    done = python(installed, "-m", "weft", "convert", "--to", "toy-listing", str(clamp_file))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == listing_on_the_page()


def test_convert_into_a_file(installed: Path, clamp_file: Path) -> None:
    target = clamp_file.with_suffix(".lst")
    words = ["convert", "--to", "toy-listing", str(clamp_file), str(target)]
    done = python(installed, "-m", "weft", *words)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert target.read_text() == listing_on_the_page()


def test_list_of_targets(installed: Path) -> None:
    done = python(installed, "-m", "weft", "convert", "--list")
    assert done.returncode == 0, done.stderr
    for words in ("toy-listing", "a line for each instruction", "ptir-json"):
        assert words in done.stdout


def test_verbose_run_lists_the_decompositions(installed: Path, clamp_file: Path) -> None:
    data = clamp_file.with_suffix(".npz")
    np.savez(data, np.array([-1, 0, 1, 2], np.float32))
    words = ["run", str(clamp_file), "--inputs", str(data), "--backend", "toy"]
    quiet = python(installed, "-m", "weft", *words)
    verbose = python(installed, "-m", "weft", *words, "-v")
    assert (quiet.returncode, verbose.returncode) == (0, 0), verbose.stderr
    assert quiet.stderr == ""
    assert verbose.stdout == quiet.stdout
    assert "decompose-clamp: %3 = clamp(%0, %1, %2) in function @main" in verbose.stderr


# -- the page ------------------------------------------------------------------------------------


def test_code_on_the_page_is_the_package() -> None:
    """Every block of code stands in the package, line by line."""
    blocks = re.findall(r"```(?:python|toml)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    files = [*EXAMPLE.rglob("weft_example/*.py"), EXAMPLE / "pyproject.toml"]
    sources = [path.read_text() for path in files]
    for block in blocks:
        assert any(block in source for source in sources), block


def test_nothing_of_the_package_is_missing_on_the_page() -> None:
    """Someone who copies every block has the whole of it, but for the docstrings on top."""
    page = PAGE.read_text()
    for path in [*EXAMPLE.rglob("weft_example/*.py"), EXAMPLE / "pyproject.toml"]:
        source = re.sub(r'\A""".*?"""\n', "", path.read_text(), flags=re.DOTALL)
        for line in filter(None, source.splitlines()):
            assert line in page, f"{path.name}: {line}"


def test_the_page_lists_every_wire_name() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (`.*`) \|$", PAGE.read_text(), re.MULTILINE)
    wanted = [
        (cls.wire_name, ", ".join(f"`{name}`" for name in cls.spellings()))
        for _, cls in sorted(CORE.items())
    ]
    assert rows == wanted


def test_page_names_every_member() -> None:
    text = PAGE.read_text()
    for protocol in (Backend, ConversionTarget):
        for member in (name for name in vars(protocol) if not name.startswith("_")):
            assert re.search(rf"`{member}[`(]", text), member
