"""Picking cases of the conformance kit, and taking up a run that was cut off."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.unit.testing.conformance.running import Answering, run_all
from weft.driver.reference import BACKEND
from weft.foundation.errors import UserError
from weft.testing.conformance import parse_shard, select
from weft.testing.conformance.records import Journal, decode, encode_result


def test_shards_partition_the_cases() -> None:
    whole = [case.id for case in select("add/*")]
    parts = [[case.id for case in select("add/*", (i, 4))] for i in (1, 2, 3, 4)]
    assert sorted(name for part in parts for name in part) == sorted(whole)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert parse_shard("2/5") == (2, 5)


@pytest.mark.parametrize("text", ["", "3", "0/2", "3/2", "a/b", "1/0", "-1/2"])
def test_shards_that_do_not_exist(text: str) -> None:
    with pytest.raises(UserError, match=r"the shard"):
        parse_shard(text)


def test_results_survive_the_way_to_json_and_back() -> None:
    results = run_all(select("neg/f32/*"), Answering(lambda xs: [np.abs(xs[0])]))
    assert any(result.failure is not None for result in results)
    for result in results:
        assert decode(json.loads(json.dumps(encode_result(result)))) == result


def test_a_journal_is_taken_up_after_a_line_that_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "done.jsonl"
    results = run_all(select("neg/f32/*"), BACKEND)
    journal = Journal(path, "reference")
    for result in results[:3]:
        journal.add(result)
    journal.close()
    path.write_text(path.read_text() + '{"backend": "reference", "id": "neg/f')
    again = Journal(path, "reference")
    assert list(again.done) == [result.id for result in results[:3]]
    again.add(results[3])
    again.close()
    last = Journal(path, "reference")
    assert list(last.done.values()) == results[:4]
    last.close()
    other = Journal(path, "other")
    assert other.done == {}
    other.close()


def test_a_journal_does_not_touch_other_files(tmp_path: Path) -> None:
    path = tmp_path / "thesis.txt"
    path.write_text("Chapter 1\n")
    with pytest.raises(UserError, match="does not hold conformance results; it was not changed"):
        Journal(path, "reference")
    assert path.read_text() == "Chapter 1\n"
