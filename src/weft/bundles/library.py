"""From object code and C to a shared library and an archive, by a C compiler of the target.

The library needs the C library alone, and shows nothing but the functions of its header. Where
there is no C compiler for a target, a sentence says which would do.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from weft.bundles.elf import Elf, archive
from weft.foundation.errors import BackendUnavailable, UserError, clipped

_COMPILED: Final = (
    "-std=c99", "-O2", "-fPIC", "-fvisibility=hidden", "-g0", "-Wall", "-Wextra", "-pedantic",
)  # fmt: skip
_LINKED: Final = (
    "-shared", "-Wl,-z,noexecstack", "-Wl,-z,relro", "-Wl,-z,now", "-Wl,--build-id=none",
    "-Wl,--as-needed", "-Wl,--no-undefined",
)  # fmt: skip
_ALLOWED: Final = ("libc.so", "libm.so", "libdl.so", "libpthread.so", "ld-linux", "libgcc_s.so")


def compiler_for(machine: str, given: str | None = None) -> list[str]:
    """The command of a C compiler whose code runs on a kind of machine."""
    if given is not None:
        command = shlex.split(given)
        if not command or shutil.which(command[0]) is None:
            raise UserError(f"the C compiler {given!r} was not found")
        return command
    if machine == platform.machine():
        own = shlex.split(os.environ.get("CC", ""))
        found = next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), None)
        if own and shutil.which(own[0]):
            return own
        if found:
            return [found]
        raise BackendUnavailable(
            "no C compiler was found to link the bundle: install gcc or clang, or name one with cc="
        )
    cross = f"{machine}-linux-gnu-gcc"
    if shutil.which(cross):
        return [cross]
    if shutil.which("clang") and shutil.which("ld.lld"):
        return ["clang", f"--target={machine}-linux-gnu", "-fuse-ld=lld"]
    raise BackendUnavailable(
        f"no C compiler for {machine} was found on this {platform.machine()} to link the bundle: "
        f"install {cross}, or clang and lld with a C library for {machine}, or name one with cc="
    )


def link(
    folder: Path,
    name: str,
    machine: str,
    objects: Mapping[str, bytes],
    command: Sequence[str],
    header: str,
) -> None:
    """Compile `name.c` in a folder for a kind of machine, and write `libname.so` and `libname.a` of
    it and of objects. `header` is the folder of its header, from there."""
    parts = [f"{name}.o", *(f"{symbol}.o" for symbol in objects)]
    compiled = (*_COMPILED, f"-I{header}")
    _call([*command, *compiled, "-c", f"{name}.c", "-o", f"{name}.o"], folder)
    _check_object(folder / f"{name}.o", machine, shlex.join(command))
    try:
        for symbol, code in objects.items():
            (folder / f"{symbol}.o").write_bytes(code)
        soname = f"-Wl,-soname,lib{name}.so"
        linked = [*command, *_LINKED, soname, "-o", f"lib{name}.so", *parts, "-lpthread", "-ldl"]
        _call(linked, folder)
        members = {part: (folder / part).read_bytes() for part in parts}
        (folder / f"lib{name}.a").write_bytes(archive(members))
    finally:
        for part in parts:
            (folder / part).unlink(missing_ok=True)
    _check_symbols(folder / f"lib{name}.so", name)


def _check_object(path: Path, machine: str, command: str) -> None:
    try:
        made = Elf(path.read_bytes()).machine
    except OSError:
        made = "nothing"
    if made != machine:
        raise UserError(f"the C compiler {command!r} writes code for {made}, not for {machine}")


def _check_symbols(library: Path, name: str) -> None:
    """Nothing but the C library is needed, and nothing but the header is seen."""
    elf = Elf(library.read_bytes())
    odd = [found for found in elf.needed if not found.startswith(_ALLOWED)]
    seen = [symbol for symbol in elf.exported if not symbol.startswith(f"{name}_")]
    if odd or seen:
        what = f"needs {odd[0]}" if odd else f"shows {seen[0]}"
        raise UserError(f"the library of {name} {what}; use another C compiler")


def _call(command: Sequence[str], folder: Path) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)  # noqa: S603
    except OSError as error:
        raise UserError(f"cannot run {command[0]}: {error.strerror}") from None
    if done.returncode:
        said = clipped(" ".join(done.stderr.split()), 600)
        raise UserError(f"{command[0]} could not build the library: {said}")
