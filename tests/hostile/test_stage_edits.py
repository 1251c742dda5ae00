"""Every field of every dumped stage, made wrong: what comes of it is a result that the edited stage
means, or an error that Weft raises on purpose. Nothing crashes, hangs, or is ignored."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.hostile import stage_worker
from tests.hostile.stage_edits import edits
from tests.hostile.stage_worker import PROGRAMS, Outcome, judged, stages_that_read_back

SAMPLE = 3
CPU = [(name, "cpu") for name in PROGRAMS if name != "mlp_bf16"]
GPU = [(name, "sm90") for name in PROGRAMS if name != "mlp"]
STAGES = [
    (name, target, stage) for name, target in CPU + GPU for stage in stages_that_read_back(target)
]


def crashes(outcomes: list[Outcome]) -> str:
    return "\n\n".join(
        f"{found.case}: {found.edit}\n{found.said}"
        for found in outcomes
        if found.verdict == "CRASH"
    )


@pytest.mark.parametrize("target", ["cpu", "sm90"])
def test_edited_dumps_work_or_are_refused(target: str) -> None:
    groups = [group for group in STAGES if group[1] == target]
    places = [
        f"{(number + place / len(groups)) / SAMPLE:.6f}"
        for number in range(SAMPLE)
        for place in range(len(groups))
    ]
    cases = [
        " ".join((*group, place)) for place, group in zip(places, groups * SAMPLE, strict=True)
    ]
    outcomes = judged(cases)
    assert not crashes(outcomes)
    # Edits that nothing survives would test the readers only.
    verdicts = Counter(found.verdict for found in outcomes)
    assert verdicts["ok"] >= len(outcomes) // 50
    assert len(verdicts) >= 6


@pytest.mark.slow
@pytest.mark.parametrize(("name", "target", "stage"), STAGES)
def test_all_edits_of_a_dump_work_or_are_refused(name: str, target: str, stage: str) -> None:
    count = len(stage_worker.edits_of(name, target, stage))
    assert not crashes(judged([f"{name} {target} {stage} {number}" for number in range(count)]))


def test_the_edits_reach_everything_and_change_something() -> None:
    dump = '{"a": {"size": 3, "names": ["x", "y"], "on": true}}'
    found = {edit.what: edit.text() for edit in edits(dump)}
    for wanted in ("a.size = -1", "a.size removed", 'a.names.1 = "nobody"', "a.on = false"):
        assert wanted in found
    assert dump not in found.values()
    text = "load v0 = b0[4*i]\nstore b1[i] = v0\n"
    lines = {edit.what: edit.text() for edit in edits(text)}
    assert lines["line 1 removed"] == "store b1[i] = v0\n"
    assert lines["line 1: 4 -> 5"] == "load v0 = b0[5*i]\nstore b1[i] = v0\n"
