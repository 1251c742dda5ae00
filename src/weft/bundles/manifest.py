"""The manifest of a bundle: what it is, and the digest of each of its files.

A manifest that is read is a stranger's file: whatever is wrong with it, or with a file that it
names, is a sentence.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from weft.foundation.errors import UserError

FILE: Final = "manifest.json"
FORMAT: Final = 1
"""What reads a bundle must know: older ones stay readable."""
ABI: Final = 1
CODE: Final = "kernels.cubins"
"""The machine code of a GPU."""
_MOST_BYTES: Final = 64 << 20
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_PART: Final = re.compile(r"([A-Za-z0-9_]{1,32}/)?[A-Za-z0-9_][A-Za-z0-9_.\-]{0,127}")
"""A file of a bundle, which may be in the folder of a kind of machine."""
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class TensorEntry:
    """An input, a result or a state; a text in its shape is the name of an open size."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


@dataclass(frozen=True)
class Manifest:
    """What a loader needs to know of a bundle."""

    folder: Path
    name: str
    targets: dict[str, str]
    """What it has code for, and the machine that each needs."""
    inputs: tuple[TensorEntry, ...]
    results: tuple[TensorEntry, ...]
    states: tuple[TensorEntry, ...]
    sizes: dict[str, tuple[int, int]]
    files: dict[str, tuple[int, str]]
    """The bytes and the digest of each."""
    content: dict[str, Any]
    """All that it says."""

    def library(self, machine: str) -> Path:
        """The library for a kind of machine; those for several are in folders of their names."""
        several = len(set(self.targets.values())) > 1
        return (self.folder / machine if several else self.folder) / f"lib{self.name}.so"

    @property
    def on_gpu(self) -> bool:
        """Whether it has machine code for a GPU."""
        return CODE in self.files

    def check_files(self) -> None:
        """Every file is there, and is what it was when the bundle was built."""
        for name, (_, digest) in self.files.items():
            self._check_length(name)
            if digest_of(self.folder / name) != digest:
                raise self._changed_file(name, "its digest differs")

    def check_library(self, machine: str) -> None:
        """The library for a kind of machine is whole: the system ends a process that loads one
        which was cut off."""
        self._check_length(self.library(machine).relative_to(self.folder).as_posix())

    def _check_length(self, name: str) -> None:
        wanted, _ = self.files[name]
        try:
            with (self.folder / name).open("rb") as file:
                found = os.fstat(file.fileno()).st_size
        except OSError as error:
            raise _damaged_bundle(self.folder, f"{name} cannot be read: {error.strerror}") from None
        if found != wanted:
            raise self._changed_file(name, f"it has {found} bytes, not {wanted}")

    def _changed_file(self, name: str, how: str) -> UserError:
        return _damaged_bundle(self.folder, f"{name} is not the file that was built: {how}")


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_entries(folder: Path) -> dict[str, dict[str, Any]]:
    """The files of a bundle as its manifest lists them."""
    return {
        path.relative_to(folder).as_posix(): {
            "bytes": path.stat().st_size,
            "sha256": digest_of(path),
        }
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != FILE
    }


def write_manifest(folder: Path, content: dict[str, Any]) -> None:
    (folder / FILE).write_text(json.dumps(content, indent=1) + "\n")


def read_manifest(folder: Path) -> Manifest:
    """The manifest in a folder, whose files are not looked at."""
    path = folder / FILE
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise _damaged_bundle(folder, f"{FILE} has more than {_MOST_BYTES} bytes")
        data = path.read_bytes()
    except OSError as error:
        raise UserError(
            f"{folder} is not a bundle: {FILE} cannot be read ({error.strerror}); weft.build "
            "writes bundles",
            "NoBundle",
        ) from None
    try:
        content = json.loads(data)
        _check_format(folder, content)
        return _parse_content(folder, content)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise _damaged_bundle(folder, f"{FILE} was not written by weft.build") from None


def _check_format(folder: Path, content: dict[str, Any]) -> None:
    for what, own in (("format", FORMAT), ("abi", ABI)):
        found = content[what]
        if type(found) is not int or not 1 <= found <= own:
            made = content.get("made_by", "another version")
            raise UserError(
                f"the bundle {folder} has {what} {found!r:.20}, made by {made!s:.40}; this version "
                f"reads 1 to {own}: build it again, or use a newer Weft",
                "BundleVersion",
            )


def _parse_content(folder: Path, content: dict[str, Any]) -> Manifest:
    name = _checked_text(content["name"], _NAME)
    sizes = {
        _checked_text(n): (_checked_size(a), _checked_size(b))
        for n, (a, b) in content["sizes"].items()
    }
    inputs, results, states = (
        tuple(map(_parse_tensor, content[side])) for side in ("inputs", "results", "states")
    )
    files = {
        _checked_text(n, _PART): (_checked_size(f["bytes"]), _checked_text(f["sha256"], _DIGEST))
        for n, f in content["files"].items()
    }
    targets = {
        _checked_text(each["name"]): _checked_text(each["machine"]) for each in content["targets"]
    }
    found = Manifest(folder, name, targets, inputs, results, states, sizes, files, content)
    for machine in targets.values():
        if found.library(machine).relative_to(folder).as_posix() not in files:
            raise KeyError(machine)
    return found


def _parse_tensor(entry: dict[str, Any]) -> TensorEntry:
    shape = tuple(
        _checked_text(size) if isinstance(size, str) else _checked_size(size)
        for size in entry["shape"]
    )
    return TensorEntry(_checked_text(entry["name"]), _checked_text(entry["dtype"]), shape)


def _checked_text(value: Any, pattern: re.Pattern[str] | None = None) -> str:
    if not isinstance(value, str) or (pattern is not None and not pattern.fullmatch(value)):
        raise TypeError
    return value


def _checked_size(value: Any) -> int:
    # Sums of two of them still fit 64 bits.
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise TypeError
    return value


def _damaged_bundle(folder: Path, why: str) -> UserError:
    return UserError(
        f"the bundle {folder} is damaged: {why}; build it again, or copy it again", "DamagedBundle"
    )
