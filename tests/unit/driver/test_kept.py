"""Whole programs on disk: what another process finds, and when it must not find it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import weft
from weft.driver import kept
from weft.driver.signature import make_signature
from weft.ptir import Builder, Program
from weft.runtime import cache
from weft.target.known import target_named


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    return tmp_path


def program(factor: float = 2.0) -> Program:
    """A product, a sort that no kernel expresses, and an update of a state."""
    b = Builder("mixed")
    x, w, past = b.param("f32", [4, 8]), b.param("f32", [8, 6]), b.param("f32", [4, 6])
    y = b.tanh(x @ w) * factor
    return b.build(b.sort(y, axis=1), past + y)


def inputs() -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    return [rng.standard_normal(shape).astype(np.float32) for shape in ((4, 8), (8, 6))]


def test_a_kept_program_does_what_the_compiled_one_does() -> None:
    first = weft.compile(program(), params=[1], state=[2])
    again = weft.compile(program(), params=[1], state=[2])
    (cluster,) = again.clusters.values()
    assert list(cluster.times) == ["disk"]
    assert (cluster.built.compiled, cluster.built.reused) == (
        0,
        len(set(cluster.built.symbols.values())),
    )
    for executable in (first, again):
        executable.state[0][...] = 1.0
    for _ in range(2):
        want, got = ([a.tobytes() for a in e(*inputs())] for e in (first, again))
        assert got == want
    bound = again.bind(inputs()[1:])
    assert np.array_equal(bound(inputs()[0])[0], first(*inputs())[0])


def test_a_kept_program_still_tells_its_stages() -> None:
    first, again = weft.compile(program()), weft.compile(program())
    assert again.stages == first.stages
    assert again.report()[1:] == first.report()[1:]
    assert "from the cache" in again.explain()


def test_another_process_compiles_nothing(folder: Path) -> None:
    path = folder / "program.ptir.txt"
    path.write_text(str(weft.ptir.dumps(program(), "text")))
    code = (
        "import sys, weft\n"
        f"executable = weft.compile(weft.ptir.load({str(path)!r}))\n"
        "(cluster,) = executable.clusters.values()\n"
        "print(*cluster.times, 'weft.driver.pipeline' in sys.modules)"
    )
    environment = {**os.environ, "WEFT_CACHE": str(folder / "cache")}
    found = [
        subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for _ in range(2)
    ]
    assert found[0][-2:] == ["code", "True"]
    assert found[1] == ["disk", "False"]


def test_everything_a_compilation_depends_on_is_in_the_key() -> None:
    target = target_named("cpu")
    plain = make_signature(program())
    key = kept.key_of(program(), target, plain)
    assert key is not None
    assert kept.key_of(program(), target, plain) == key
    lines = {place: f"{line}0" for place, line in program().locations.items()}
    others = [
        (program(3.0), target, plain),
        (replace(program(), locations=lines), target, plain),
        (program(), target, make_signature(program(), params=[1])),
        (program(), target, make_signature(program(), donate=[2])),
        (program(), replace(target, features=frozenset({"other"})), plain),
        (program(), replace(target, rates=replace(target.rates, bandwidth=1.0)), plain),
    ]
    assert len({key, *(kept.key_of(*other) for other in others)}) == 7
    assert kept.key_of(program(), target_named("sm90"), plain) is None


def test_an_edited_stage_neither_finds_nor_leaves_anything(folder: Path) -> None:
    text = weft.compile(program()).stages["plan"]
    before = set(folder.iterdir())
    (cluster,) = weft.compile(program(), overrides={"plan": text}).clusters.values()
    assert "machine code" in cluster.times
    assert set(folder.iterdir()) == before


def test_a_broken_entry_is_compiled_again(folder: Path) -> None:
    key = kept.key_of(program(), target_named("cpu"), make_signature(program()))
    assert key is not None
    weft.compile(program())
    for damage in (b"", b"weftobj1", (folder / key).read_bytes()[:-1]):
        (folder / key).write_bytes(damage)
        (cluster,) = weft.compile(program()).clusters.values()
        assert "machine code" in cluster.times
    cache.save(key, b"something else")
    (cluster,) = weft.compile(program()).clusters.values()
    assert "machine code" in cluster.times


def test_programs_with_huge_constants_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "MOST_BYTES", 1 << 10)
    for _ in range(2):
        (cluster,) = weft.compile(program()).clusters.values()
        assert "machine code" in cluster.times


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
