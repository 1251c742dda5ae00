"""The search for cycles is paused for as long as anybody asks, and then as it was."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

import weft
from weft.driver import pipeline
from weft.foundation.garbage_collector import collector_paused


@pytest.fixture(autouse=True)
def running() -> Iterator[None]:
    was = gc.isenabled()
    gc.enable()
    yield
    if not was:
        gc.disable()


def test_it_is_paused_until_the_last_has_left() -> None:
    with collector_paused:
        with collector_paused:
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_who_switched_it_off_finds_it_off() -> None:
    gc.disable()
    with collector_paused:
        pass
    assert not gc.isenabled()


def test_an_error_ends_the_pause() -> None:
    with pytest.raises(ValueError, match="inside"), collector_paused:
        raise ValueError("inside")
    assert gc.isenabled()


def test_compiling_pauses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    enter = pipeline._enter

    def looked_at(stage: object, compilation: object) -> None:
        seen.append(gc.isenabled())
        enter(stage, compilation)  # type: ignore[arg-type]

    monkeypatch.setattr(pipeline, "_enter", looked_at)
    program = weft.jit(lambda x: x * 3 + 41).program(weft.zeros((3,)))
    monkeypatch.setenv("WEFT_CACHE", "off")
    weft.compile(program, "cpu")
    assert seen
    assert not any(seen)
    assert gc.isenabled()


def test_what_was_made_meanwhile_is_old() -> None:
    """The next search among what is young does not go through it."""
    gc.unfreeze()  # The tests' own.
    try:
        with type(collector_paused)():  # The process's own may have seen the tests' frozen objects.
            made = [[number] for number in range(100)]
        frozen = gc.get_freeze_count()
        young = {id(each) for age in (0, 1) for each in gc.get_objects(age)}
    finally:
        gc.freeze()
    # All that is looked at is young, old or frozen, and of the old there are millions.
    assert all(map(gc.is_tracked, made))
    assert not frozen
    assert young.isdisjoint(map(id, made))


def test_what_somebody_froze_stays_frozen() -> None:
    gc.freeze()
    with collector_paused:
        pass
    assert gc.get_freeze_count()


def test_what_is_frozen_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """To count them takes as long as to look at each of them, in every call that compiles."""
    counted: list[int] = []

    def count() -> int:
        counted.append(1)
        return 1_000_000

    monkeypatch.setattr(gc, "get_freeze_count", count)
    paused = type(collector_paused)()
    for _ in range(5):
        with paused:
            pass
    assert len(counted) == 1
