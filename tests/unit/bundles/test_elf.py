"""Object files are renamed, and put into archives that linkers take, also for other machines."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

import weft
from tests.unit.bundles import models
from weft.bundles import library
from weft.bundles.elf import Elf, archive, renamed
from weft.driver.compile import compile_program
from weft.foundation.errors import UserError
from weft.runtime import native
from weft.runtime.jit import host_cpu, object_code
from weft.target.cpu import PROCESSORS

_SYMTAB = 2


def symbols(code: bytes) -> dict[str, bool]:
    """What an object names to others, and whether it defines it."""
    found = Elf(code).symbols(_SYMTAB)
    return {name: bool(at) for _, name, info, at in found if info >> 4 == 1}


@pytest.mark.parametrize("machine", PROCESSORS)
def test_symbols_are_renamed(machine: str) -> None:
    code, _ = object_code(native.source(PROCESSORS[machine].code[0]), PROCESSORS[machine].code)
    made = renamed(code, lambda name: f"x_{name}", frozenset(native.EXTERNAL))
    assert Elf(made).machine == ("aarch64" if machine == "aarch64" else "x86_64")
    defined = {name for name, is_own in symbols(made).items() if is_own}
    assert defined == {f"x_{name}" for name in native.SYMBOLS}
    others = {name for name, is_own in symbols(made).items() if not is_own}
    assert others <= {*native.EXTERNAL, "memcpy"}


@pytest.mark.parametrize("machine", PROCESSORS)
def test_kernels_are_compiled_for_other_machines(machine: str) -> None:
    made = compile_program(models.mixture(), machine)
    kinds = {Elf(kernel.code).machine for kernel in made.artifact.kernels}
    assert kinds == {"aarch64" if machine == "aarch64" else "x86_64"}
    with pytest.raises(UserError, match=f"is built for {machine}, and runs out of a bundle"):
        made(*models.inputs_of(models.mixture()))


def test_an_archive_is_what_ar_makes_of_it(tmp_path: Path) -> None:
    if shutil.which("nm") is None or shutil.which("ar") is None:
        pytest.skip("there is no nm or ar")
    code, _ = object_code(native.source(host_cpu()[0]))
    members = {"a_name_of_some_length.o": code, "b.o": code + b"\n"}
    path = tmp_path / "some.a"
    path.write_bytes(archive(members))
    shown = subprocess.run(["ar", "t", path], capture_output=True, text=True, check=True).stdout
    assert shown.split() == list(members)
    index = subprocess.run(["nm", "-s", path], capture_output=True, text=True, check=True).stdout
    assert "weft_execute in a_name_of_some_length.o" in index


def test_a_compiler_for_another_machine_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = "aarch64" if platform.machine() == "x86_64" else "x86-64-v3"
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(UserError, match=r"-linux-gnu-gcc, or clang and lld.*or name one with cc="):
        weft.build(models.same(), out=tmp_path / "same", target=other)
    with pytest.raises(
        UserError, match="no C compiler was found to link the bundle: install gcc or clang"
    ):
        weft.build(models.same(), out=tmp_path / "same")


def test_what_is_no_object_is_told() -> None:
    for data in (b"", b"\x7fELF", b"MZ" + bytes(200)):
        with pytest.raises(UserError, match="it is not a 64-bit ELF file"):
            Elf(data)


def test_a_failing_compiler_is_told(folder: Path) -> None:
    with pytest.raises(UserError, match="false could not build the library"):
        weft.build(models.same(), out=folder / "failed", cc="false")
    assert not (folder / "failed").exists()
    assert library.compiler_for(platform.machine(), "cc -m64") == ["cc", "-m64"]


@pytest.mark.parametrize(("command", "made"), [("cc", platform.machine()), ("true", "nothing")])
def test_a_compiler_for_the_wrong_machine_is_told(
    folder: Path, tmp_path: Path, command: str, made: str
) -> None:
    (tmp_path / "x.c").write_text("int x_number;\n")
    with pytest.raises(UserError, match=f"'{command}' writes code for {made}, not for vax"):
        library.link(tmp_path, "x", "vax", {}, [command], ".")
