"""Bundles in C and C++ programs: warnings are errors, and tools that look for faults find none."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import weft
from tests.support.c_callers import COMPILERS, STRICT, call, needs
from tests.unit.bundles import models
from weft.bundles.library import _COMPILED as FLAGS

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("linked", ["shared", "static"])
@pytest.mark.parametrize("compiler", COMPILERS)
def test_the_example_runs(mixture: Path, tmp_path: Path, compiler: str, linked: str) -> None:
    needs(compiler)
    library: list[str | Path] = [mixture / "libmixture.a", "-lpthread"]
    if linked == "shared":
        library = [f"-L{mixture}", "-lmixture", f"-Wl,-rpath,{mixture}"]
    program = tmp_path / "example"
    options = (*COMPILERS[compiler], *STRICT, f"-I{mixture}")
    call(compiler, *options, mixture / "example.c", "-x", "none", "-o", program, *library)
    assert call(program, mixture) == "out0[0] = 1.60381e-28\nout1[0] = 0\n"


def test_the_example_is_built_by_cmake(mixture: Path, tmp_path: Path) -> None:
    needs("cmake", "make")
    call("cmake", "-S", mixture, "-B", tmp_path)
    call("cmake", "--build", tmp_path)
    assert call(tmp_path / "example", mixture).startswith("out0[0] = ")


@contextmanager
def as_users_do() -> Iterator[None]:
    """What is built is optimised, as it is not for other tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("weft.bundles.library._COMPILED", FLAGS)
        yield


@pytest.fixture(scope="module")
def division(folder: Path) -> Path:
    with as_users_do():
        return weft.build(models.division(), out=folder / "division", target=models.PORTABLE)


@pytest.fixture(scope="module")
def growing(folder: Path) -> Path:
    """A running sum of rows, of which there may be 1 to 6."""

    @weft.jit(dynamic={"x": {0: "B"}}, shapes=weft.ShapeSet({"B": (2, 4)}))
    def growing(x, total):  # type: ignore[no-untyped-def]
        new = total + x.sum(axis=0)
        return x + new, new

    example = np.zeros((3, 2), np.float32), np.zeros(2, np.float32)
    out = folder / "growing"
    with as_users_do():
        return weft.build(
            growing, *example, out=out, sizes={"B": (1, 6)}, state="total", target=models.PORTABLE
        )


def arguments(path: Path) -> list[Path | str]:
    """What a C program that uses a bundle is compiled with."""
    (library,) = path.glob("*.a")
    return [f"-I{path}", library]


@pytest.fixture
def several(tmp_path: Path, division: Path, growing: Path) -> list[Path | str]:
    """The program of `several.c`, with two models in it."""
    source = Path(__file__).with_name("several.c")
    return [source, *arguments(division), *arguments(growing), "-lpthread"]


def test_two_models_share_a_program(
    tmp_path: Path, several: list[Path | str], division: Path, growing: Path
) -> None:
    needs("gcc")
    call("gcc", "-std=c11", *STRICT, "-o", tmp_path / "several", *several)
    assert "all is well" in call(tmp_path / "several", division, growing)


def test_valgrind_finds_nothing(
    tmp_path: Path, several: list[Path | str], division: Path, growing: Path
) -> None:
    needs("gcc", "valgrind")
    call("gcc", "-std=c11", *STRICT, "-g", "-o", tmp_path / "several", *several)
    checked = ("valgrind", "-q", "--error-exitcode=9", "--leak-check=full")
    assert "all is well" in call(*checked, tmp_path / "several", division, growing)


@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_sanitizers_find_nothing(
    tmp_path: Path, several: list[Path | str], division: Path, growing: Path, sanitizer: str
) -> None:
    """The runtime is compiled again, from the source that is in the bundle."""
    needs("gcc")
    source = tmp_path / "one.c"
    source.write_text("int main(void) { return 0; }\n")
    flags = (f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", "-g")
    tried = subprocess.run(
        ["gcc", *flags, str(source), "-o", str(tmp_path / "one")], capture_output=True, check=False
    )
    if tried.returncode or subprocess.run([str(tmp_path / "one")], check=False).returncode:
        pytest.skip(f"this gcc has no sanitizer for {sanitizer}")
    sources = [division / "division.c", growing / "growing.c"]
    call("gcc", "-std=c11", *flags, "-o", tmp_path / "several", *sources, *several)
    assert "all is well" in call(tmp_path / "several", division, growing)


def test_the_code_of_the_page_runs(folder: Path, tmp_path: Path) -> None:
    needs("gcc")
    x = np.zeros((2, 4), np.float32)
    classify = weft.build(weft.jit(lambda x: x[:, :3] + 1), x, out=folder / "page", name="classify")
    page = (ROOT / "docs" / "bundles.md").read_text()
    head, body = page.partition("```c\n")[2].partition("```")[0].split("\n\n", 1)
    shown = "\n".join(line for line in body.splitlines() if not line.startswith("#"))
    program = tmp_path / "page.c"
    text = f"#include <stdio.h>\n{head}\nint main(void) {{\n{shown}\nreturn 0;\n}}\n"
    program.write_text(text.replace("path/of/the/bundle", str(classify)))
    linked = [*arguments(classify), "-lpthread", "-o", tmp_path / "page"]
    call("gcc", "-std=c99", "-Wall", program, *linked)
    assert call(tmp_path / "page") == ""


def test_only_the_c_library_is_needed(classify: Path) -> None:
    needs("readelf", "nm")
    library = classify / "libclassify.so"
    needed = [line for line in call("readelf", "-d", library).splitlines() if "NEEDED" in line]
    assert all("libc.so" in line or "libpthread" in line for line in needed)
    shown = call("nm", "-D", "--defined-only", library).split()[2::3]
    assert all(symbol.startswith("classify_") and "_w_" not in symbol for symbol in shown)
    assert {"classify_open", "classify_run"} <= set(shown)


def test_a_wrong_processor_is_told(mixture: Path, tmp_path: Path) -> None:
    """Valgrind has no AVX-512, so code for it must not run there."""
    needs("gcc", "valgrind")
    if platform.machine() != "x86_64":
        pytest.skip("it is about AVX-512")
    made = weft.build(models.same(), out=mixture.parent / "same_v4", target="x86-64-v4")
    program = tmp_path / "example"
    call("gcc", made / "example.c", f"-I{made}", made / "libsame.a", "-lpthread", "-o", program)
    done = subprocess.run(
        ["valgrind", "-q", str(program), str(made)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "same was built for x86-64-v4, and this processor has no avx512f" in done.stderr
