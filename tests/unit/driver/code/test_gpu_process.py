"""What processes do before the first kernel comes."""

from __future__ import annotations

import pytest

from weft.driver.code import gpu_tasks
from weft.driver.code.gpu_process import answer, rehearsed


@pytest.mark.parametrize("message", list(rehearsed()))
def test_what_is_rehearsed_is_done_to_its_end(message: bytes) -> None:
    """Tasks are texts of the stages: whoever changes these writes the tasks anew, with `pack_task`
    of those that a program such as `softmax(exp(softmax(x) @ w))` has."""
    assert gpu_tasks.is_task(message)
    assert gpu_tasks.read_done(answer(message)).texts
