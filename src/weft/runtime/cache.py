"""Compiled code on disk, so that the next process need not compile it again.

An entry is a file named by its key: a magic word, the SHA-256 of key and payload, the payload. It
is written whole under another name and renamed into place, so that any number of processes may
write and read at once; it is checked when read, and never used when anything is wrong with it, also
where it is a sound entry in the place of another one. Now and then what was not used for the
longest time is removed. `WEFT_CACHE=off` switches it off; any other value is the folder.

What lies here is machine code that this process runs. So the folder, and every entry, belongs to
the user (or to root), nobody else may write to it, and an entry is a plain file of bounded size: no
link, no pipe, no device. What is otherwise is not used, and a warning says so once.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from weft.foundation.errors import WeftWarning

_MAGIC: Final = b"weftobj2"
_HEAD: Final = len(_MAGIC) + 32
MOST_BYTES: Final = 1 << 30
"""Of all entries: the oldest are removed beyond."""
MOST_ENTRY_BYTES: Final = 256 << 20
"""No entry is larger: what claims to be is not read."""
_TIDY_BELOW: Final = 4
"""The folder is tidied when the last byte of a digest, any of 256, is below this."""
_UNFINISHED: Final = "unfinished-"
"""How the names of entries begin that are being written."""
_GIVEN_UP: Final = 3600.0
"""Seconds after which nobody is writing an entry any more."""
_FRONT: Final = frozenset({"bundles", "cli", "explorer", "interop", "ops", "testing"})
"""Packages that make programs or look at them, and have no part in compiling one."""
_COMPILED_FROM: Final = (".py", ".json")
"""Sources, and tables of measurements that plans are chosen by."""
_STARTED: Final = time.time()
_KEY: Final = re.compile(r"[0-9a-f]{64}")
_READING: Final = os.O_RDONLY | sum(
    getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY")
)
"""How entries are opened: no link is followed, and no pipe is waited for."""
_ROOT: Final = 0
_TOLD: Final = set[str]()
"""Warnings that were given."""


@dataclass(frozen=True)
class Entry:
    """What lies under a key: a payload, or something that is none, or nothing."""

    payload: bytes | None = None
    is_damaged: bool = False


def folder() -> Path | None:
    """Where entries live; None when caching is off, or the folder cannot be trusted."""
    where = chosen_folder()
    why = "" if where is None else refusal(where)
    if why:
        _warn(f"Weft's cache is not used: {why}")
    return None if why else where


def chosen_folder() -> Path | None:
    """The folder that was asked for, whatever it is; None when caching is off."""
    chosen = os.environ.get("WEFT_CACHE", "")
    if chosen.lower() == "off":
        return None
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        if chosen:
            return Path(chosen).expanduser()
        return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "weft"
    except RuntimeError:
        # Whoever is named, or runs this process, is no user that the machine knows.
        if chosen:
            _warn(f"Weft's cache is not used: WEFT_CACHE is {chosen!r}, and there is no such home")
        return None


def refusal(where: Path) -> str:
    """Why what lies in a folder must not be run, and what to do; nothing where it may, or where
    there is no folder yet."""
    try:
        found = os.stat(where)
    except OSError:
        return ""
    return _not_ours(where, found, "name a folder of your own with WEFT_CACHE")


def _not_ours(path: Path, found: os.stat_result, advice: str) -> str:
    """Why others decide what a file or folder holds; nothing where they do not."""
    if not hasattr(os, "geteuid"):
        return ""
    if found.st_uid not in (os.geteuid(), _ROOT):
        return (
            f"{path} belongs to another user (number {found.st_uid}), whose machine code would run "
            f"here; {advice}"
        )
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return (
            f"others may write to {path} (mode {stat.S_IMODE(found.st_mode):o}), and their machine "
            f"code would run here; run chmod go-w on it if you trust what it holds, or {advice}"
        )
    return ""


def _warn(message: str) -> None:
    """A warning, once in a process."""
    if message not in _TOLD:
        _TOLD.add(message)
        warnings.warn(message, WeftWarning, stacklevel=2)


def key_of(*parts: str) -> str:
    """A key that changes when any part, or Weft itself, does."""
    text = "\0".join([*parts, source_digest()])
    return hashlib.sha256(text.encode()).hexdigest()


@cache
def source_digest() -> str:
    """A digest of Weft's own sources: code generated by another version is not used."""
    digest = hashlib.sha256()
    for name, path in _source_files(str(Path(__file__).parents[1])):
        digest.update(name.encode())
        with open(path, "rb", buffering=0) as file:
            digest.update(file.read())
            if os.fstat(file.fileno()).st_mtime > _STARTED:
                # Somebody edits Weft: what this process runs is not what lies there now.
                digest.update(os.urandom(16))
    return digest.hexdigest()


def _source_files(root: str) -> Iterator[tuple[str, str]]:
    """Every file that has a part in compiling, in order: its name in the package, its path."""
    for where, inner, files in os.walk(root):
        left_out = _FRONT if where == root else ()
        inner[:] = sorted(name for name in inner if name not in left_out)
        for name in sorted(files):
            if name.endswith(_COMPILED_FROM):
                path = f"{where}{os.sep}{name}"
                yield path[len(root) :], path


def load(key: str) -> bytes | None:
    """The payload under a key, or None where there is no sound one."""
    return look_up(key).payload


def look_up(key: str) -> Entry:
    """What there is under a key."""
    where = folder()
    if where is None:
        return Entry()
    try:
        data = _read_entry(where / key)
    except OSError:
        return Entry()
    if data is None or data[:_HEAD] != _entry_head(key, data[_HEAD:]):
        return Entry(is_damaged=True)
    return Entry(data[_HEAD:])


def _entry_head(key: str, payload: bytes) -> bytes:
    """What stands before a payload: it belongs to this key, and is whole."""
    # The key is part of the digest: a whole entry that was renamed is as wrong as a damaged one.
    digest = hashlib.sha256(key.encode())
    digest.update(payload)
    return _MAGIC + digest.digest()


def _read_entry(path: Path) -> bytes | None:
    """The bytes of an entry, which is used from now on; None for anything but a plain file of ours
    that is not too large."""
    with os.fdopen(os.open(path, _READING), "rb", buffering=0) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_size > _HEAD + MOST_ENTRY_BYTES:
            return None
        why = _not_ours(path, found, "remove it")
        if why:
            _warn(f"an entry of Weft's cache is not used: {why}")
            return None
        with contextlib.suppress(OSError):
            os.utime(file.fileno() if os.utime in os.supports_fd else path)
        return file.read(found.st_size)


def save(key: str, payload: bytes) -> bool:
    """Keep a payload; whether it is kept. A cache that cannot be written is no reason to fail."""
    where = folder()
    if where is None or len(payload) > MOST_ENTRY_BYTES:
        return False
    head = _entry_head(key, payload)
    try:
        where.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write_entry(where / key, head + payload)
    except OSError:
        return False
    with contextlib.suppress(OSError):
        # A digest is as good as chance: one save in 64 tidies, without a counter that processes
        # would have to share.
        if head[-1] < _TIDY_BELOW:
            tidy(where)
    return True


def _write_entry(path: Path, data: bytes) -> None:
    """A file that is there whole or not at all."""
    handle, name = tempfile.mkstemp(prefix=_UNFINISHED, dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


def tidy(where: Path, most: int = MOST_BYTES) -> None:
    """Remove what a process that died was writing, and entries that were not used for the longest
    time until no more than `most` bytes are left. Whatever else lies in the folder is not ours."""
    entries = []
    for path in where.iterdir():
        with contextlib.suppress(OSError):
            state = path.lstat()
            if _KEY.fullmatch(path.name):
                entries.append((state.st_mtime, state.st_size, path))
            elif path.name.startswith(_UNFINISHED) and state.st_mtime < time.time() - _GIVEN_UP:
                path.unlink()
    total = sum(size for _, size, _ in entries)
    for _, size, path in sorted(entries):
        if total <= most:
            break
        with contextlib.suppress(OSError):
            path.unlink()
            total -= size
