"""Entries on disk: whole or not at all, whoever writes them; and how many there are."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import weft
from weft.runtime import cache

KEY = f"{7:064x}"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    return tmp_path


def test_nothing_damaged_and_sound_are_told_apart(folder: Path) -> None:
    assert cache.look_up(KEY) == cache.Entry()
    cache.save(KEY, b"payload")
    assert cache.look_up(KEY) == cache.Entry(b"payload")
    (folder / KEY).write_bytes(b"weftobj2 and no more")
    assert cache.look_up(KEY) == cache.Entry(is_damaged=True)
    assert cache.load(KEY) is None
    cache.save(KEY, b"payload")
    assert cache.load(KEY) == b"payload"


def test_an_entry_in_the_place_of_another_is_damaged(folder: Path) -> None:
    other = f"{8:064x}"
    cache.save(KEY, b"payload")
    (folder / other).write_bytes((folder / KEY).read_bytes())
    assert cache.look_up(other) == cache.Entry(is_damaged=True)
    assert cache.look_up(KEY) == cache.Entry(b"payload")


def test_who_reads_while_others_write_finds_one_of_their_payloads() -> None:
    payloads = {bytes([number]) * 50_000 for number in range(4)}

    def write(payload: bytes) -> None:
        for _ in range(20):
            cache.save(KEY, payload)

    writers = [threading.Thread(target=write, args=(payload,)) for payload in payloads]
    cache.save(KEY, next(iter(payloads)))
    for writer in writers:
        writer.start()
    found = {cache.load(KEY)}
    while any(writer.is_alive() for writer in writers):
        found.add(cache.load(KEY))
    for writer in writers:
        writer.join()
    assert found <= payloads


def test_a_folder_that_cannot_be_written_is_no_reason_to_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "file"))
    cache.save(KEY, b"payload")
    assert cache.load(KEY) is None


def test_who_has_no_home_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("WEFT_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    cache.save(KEY, b"payload")
    assert cache.look_up(KEY) == cache.Entry()


def test_a_key_that_is_a_folder_leaves_nothing_behind(folder: Path) -> None:
    (folder / KEY).mkdir()
    cache.save(KEY, b"payload")
    assert cache.load(KEY) is None
    assert [path.name for path in folder.iterdir()] == [KEY]


def test_what_was_not_used_for_long_goes_first(folder: Path) -> None:
    for number in range(6):
        cache.save(f"{number:064x}", bytes(1000))
        os.utime(folder / f"{number:064x}", (number, number))
    (folder / "holiday.jpg").write_bytes(bytes(5000))
    os.utime(folder / "holiday.jpg", (0, 0))
    cache.load(f"{0:064x}")
    cache.tidy(folder, most=3200)
    (folder / "holiday.jpg").unlink()
    assert sorted(int(path.name, 16) for path in folder.iterdir()) == [0, 4, 5]


def test_what_a_dead_process_was_writing_goes_after_a_while(folder: Path) -> None:
    for name, when in (("unfinished-old", 0.0), ("unfinished-new", None)):
        (folder / name).write_bytes(b"weftobj1")
        if when is not None:
            os.utime(folder / name, (when, when))
    cache.tidy(folder)
    assert [path.name for path in folder.iterdir()] == ["unfinished-new"]


def test_sources_that_have_changed_since_the_start_are_nobody_elses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fresh = cache.source_digest.__wrapped__
    monkeypatch.setattr(cache, "_STARTED", 1e12)
    assert fresh() == fresh()
    monkeypatch.setattr(cache, "_STARTED", 0.0)
    assert fresh() != fresh()


def test_tables_that_plans_are_chosen_by_are_sources() -> None:
    root = str(Path(cache.__file__).parents[1])
    names = [name for name, _ in cache._source_files(root)]
    assert os.path.join(os.sep, "target", "measured", "nvidia_h200.json") in names
    assert os.path.join(os.sep, "plan", "ir.py") in names


# -- who may write to it -------------------------------------------------------------------------


@pytest.fixture
def untold(monkeypatch: pytest.MonkeyPatch) -> None:
    """No warning was given yet."""
    monkeypatch.setattr(cache, "_TOLD", set())


@pytest.mark.usefixtures("untold")
@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
def test_a_folder_that_others_may_write_to_is_not_used(folder: Path, mode: int) -> None:
    cache.save(KEY, b"payload")
    folder.chmod(mode)
    with pytest.warns(weft.WeftWarning, match=rf"mode {mode:o}.* run chmod go-w on it"):
        assert cache.look_up(KEY) == cache.Entry()
    # It is said once.
    assert not cache.save(KEY, b"another")
    assert cache.folder() is None
    folder.chmod(0o700)
    assert cache.load(KEY) == b"payload"


@pytest.mark.usefixtures("untold")
def test_a_folder_of_another_user_is_not_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.save(KEY, b"payload")
    monkeypatch.setattr(cache, "_ROOT", -1)
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    with pytest.warns(weft.WeftWarning, match="belongs to another user .* WEFT_CACHE$"):
        assert cache.load(KEY) is None
    assert not cache.save(KEY, b"another")


def test_a_folder_of_root_is_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.save(KEY, b"payload")
    monkeypatch.setattr(cache, "_ROOT", folder.stat().st_uid)
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    assert cache.load(KEY) == b"payload"


@pytest.mark.usefixtures("untold")
@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_an_entry_that_others_may_write_to_is_not_used(folder: Path, mode: int) -> None:
    cache.save(KEY, b"payload")
    (folder / KEY).chmod(mode)
    with pytest.warns(weft.WeftWarning, match=f"others may write to .*{KEY}"):
        assert cache.look_up(KEY) == cache.Entry(is_damaged=True)
    assert cache.save(KEY, b"payload")
    assert stat.S_IMODE((folder / KEY).stat().st_mode) == 0o600
    assert cache.load(KEY) == b"payload"


@pytest.mark.usefixtures("untold")
def test_an_entry_of_another_user_is_not_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.save(KEY, b"payload")
    plain = os.fstat

    def foreign(handle: int) -> os.stat_result:
        found = list(plain(handle))
        found[4] = 1234
        return os.stat_result(found)

    monkeypatch.setattr(os, "fstat", foreign)
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid)
    with pytest.warns(weft.WeftWarning, match=r"another user \(number 1234\).*; remove it$"):
        assert cache.look_up(KEY) == cache.Entry(is_damaged=True)


def test_only_plain_files_of_bounded_size_are_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe would be waited for, and a link to an endless file read until memory is full."""
    place, elsewhere = folder / KEY, folder / f"{8:064x}"
    cache.save(KEY, b"payload")
    place.rename(elsewhere)
    makers: dict[str, Callable[[], None]] = {
        "pipe": lambda: os.mkfifo(place),
        "endless": lambda: place.symlink_to("/dev/zero"),
        "link": lambda: place.symlink_to(elsewhere),
        "nowhere": lambda: place.symlink_to(folder / "nothing"),
        "folder": place.mkdir,
    }
    for name, make in makers.items():
        make()
        assert cache.load(KEY) is None, name
        if name != "folder":
            assert cache.save(KEY, b"payload"), name
            assert not place.is_symlink()
            assert cache.load(KEY) == b"payload"
            place.unlink()
    place.rmdir()
    monkeypatch.setattr(cache, "MOST_ENTRY_BYTES", 6)
    assert not cache.save(KEY, b"payload")
    monkeypatch.undo()
    monkeypatch.setenv("WEFT_CACHE", str(folder))
    cache.save(KEY, b"payload")
    monkeypatch.setattr(cache, "MOST_ENTRY_BYTES", 6)
    assert cache.look_up(KEY) == cache.Entry(is_damaged=True)


def test_a_large_file_is_not_read_at_all(folder: Path) -> None:
    with (folder / KEY).open("wb") as file:
        file.truncate(1 << 40)
    assert cache.look_up(KEY) == cache.Entry(is_damaged=True)


@pytest.mark.usefixtures("untold")
def test_where_the_folder_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for off in ("off", "OFF", "Off"):
        monkeypatch.setenv("WEFT_CACHE", off)
        assert cache.folder() is None
    monkeypatch.setenv("WEFT_CACHE", "~/x")
    assert cache.folder() == tmp_path / "x"
    monkeypatch.setenv("WEFT_CACHE", "~nobody-has-this-name/x")
    with pytest.warns(weft.WeftWarning, match="there is no such home"):
        assert cache.folder() is None
    monkeypatch.delenv("WEFT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.folder() == tmp_path / "xdg" / "weft"
    for relative in ("", "not/absolute"):
        monkeypatch.setenv("XDG_CACHE_HOME", relative)
        assert cache.folder() == tmp_path / ".cache" / "weft"
