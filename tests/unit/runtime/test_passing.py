"""Outputs that are inputs."""

from __future__ import annotations

import random

import pytest

from weft.runtime.kept_results import Passing


@pytest.mark.parametrize("seed", range(40))
def test_inputs_are_where_outputs_are(seed: int) -> None:
    rng = random.Random(seed)
    inputs = [object() for _ in range(rng.randrange(1, 12))]
    passed: list[int | None] = []
    for _ in range(rng.randrange(12)):
        before = passed[-1] if passed else None
        follows = before is not None and before + 1 < len(inputs) and rng.random() < 0.6
        other = rng.choice([None, rng.randrange(len(inputs))])
        passed.append(before + 1 if follows and before is not None else other)
    passing = Passing(passed)
    expected = [None if given is None else inputs[given] for given in passed]
    for _ in range(2):
        outputs = passing.outputs(inputs)
        assert outputs == expected
        outputs.clear()  # They are the caller's.
    assert passing.others == [number for number, given in enumerate(passed) if given is None]
