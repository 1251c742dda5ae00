"""Entries on disk: whole or not at all, whoever writes them; and how many there are."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

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
    (folder / KEY).write_bytes(b"weftobj1 and no more")
    assert cache.look_up(KEY) == cache.Entry(is_damaged=True)
    assert cache.load(KEY) is None
    cache.save(KEY, b"payload")
    assert cache.load(KEY) == b"payload"


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
    names = [name for name, _ in cache._sources(root)]
    assert os.path.join(os.sep, "target", "measured", "nvidia_h200.json") in names
    assert os.path.join(os.sep, "plan", "ir.py") in names
