"""GPU kernels that somebody edited are run by the dialect's interpreter."""

from __future__ import annotations

import warnings

import pytest

import weft
from weft.driver.code import gpu_races
from weft.driver.pipeline import run_pipeline
from weft.driver.signature import make_signature
from weft.driver.stages.compilation import Compilation
from weft.ptir import Builder, Program
from weft.target.known import target_named


def row_sums() -> Program:
    b = Builder()
    x = b.param("f32", [4, 2048])
    return b.build(b.softmax(x))


def divided() -> Program:
    b = Builder()
    x, y = b.param("si32", [64]), b.param("si32", [64])
    return b.build(b.div(x, y))


def through(program: Program, **overrides: str) -> Compilation:
    signature = make_signature(program)
    return run_pipeline(Compilation(program, target_named("sm90"), signature, overrides), "gpu")


def without_meetings(text: str) -> str:
    lines = text.splitlines(keepends=True)
    kept = [line for line in lines if "sync_threads" not in line]
    assert len(kept) < len(lines)
    return "".join(kept)


def test_a_dropped_barrier_is_refused() -> None:
    program = row_sums()
    text = through(program).text("gpu")
    with pytest.raises(weft.SpecViolation) as found:
        through(program, gpu=without_meetings(text))
    assert found.value.code == "KernelRace"
    assert "a load reads shared memory that another lane of warp" in found.value.why
    with pytest.raises(weft.SpecViolation, match="KernelRace"):
        weft.compile(program, target="sm90", overrides={"gpu": without_meetings(text)})


def test_sound_edits_pass_without_a_word() -> None:
    for program, old, new in ((row_sums(), "sync_threads()", "sync_threads()\n  sync_threads()"),):
        text = through(program).text("gpu")
        assert old in text
        through(program, gpu=text)
        through(program, gpu=text.replace(old, new, 1))


def test_a_kernel_that_rejects_some_numbers_is_run_on_others() -> None:
    program = divided()
    text = through(program).text("gpu")
    through(program, gpu=text.replace("let point", "let unused = 0\n  let point", 1))


def test_what_is_not_edited_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_races, "BUDGET", 0)
    program = row_sums()
    through(program, gpu=through(program).text("gpu"))


@pytest.mark.parametrize(
    ("limit", "why"),
    [("BUDGET", "stopped after 0 of 4 blocks"), ("MOST_BYTES", "its tensors are too large")],
)
def test_what_the_interpreter_cannot_afford_is_said(
    monkeypatch: pytest.MonkeyPatch, limit: str, why: str
) -> None:
    monkeypatch.setattr(gpu_races, limit, 10)
    program = row_sums()
    text = without_meetings(through(program).text("gpu"))
    with pytest.warns(weft.WeftWarning, match="it is not known whether its threads wait") as found:
        through(program, gpu=text)
    assert why in str(found[0].message)


def test_an_endless_loop_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_races, "BUDGET", 1000)
    program = row_sums()
    text = through(program).text("gpu")
    start = text.index("sync_threads()")
    loop = "for endless in (0, 1000000000000, 1) {\n  }\n  "
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        through(program, gpu=text[:start] + loop + text[start:])
    assert any("stopped after 0 of 4 blocks" in str(w.message) for w in found)
