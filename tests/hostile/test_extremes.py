"""A systematic table: every attribute of every op at its extremes, every op on strange operands.

Whatever a file says, it is rejected, refused or works; there are too many to say which of the three
each one is, but some of each are among them for every op.
"""

from __future__ import annotations

import pytest

from tests.hostile.bases import bases
from tests.hostile.worker import judged
from weft.ptir.op import all_ops

NAMES = [cls.name for cls in all_ops()]
CHUNK = 10


def test_every_op_has_a_program() -> None:
    assert sorted(bases()) == sorted(NAMES)
    outcomes = judged([f"base {name}" for name in NAMES])
    wrong = {o.name: (o.verdict, o.crash) for o in outcomes if o.verdict != "ok"}
    assert list(wrong) == ["base custom_call"]
    assert wrong["base custom_call"][0] == "Unimplemented"


@pytest.mark.parametrize("start", range(0, len(NAMES), CHUNK))
def test_no_extreme_crashes_an_op(start: int) -> None:
    outcomes = judged([f"op {name}" for name in NAMES[start : start + CHUNK]])
    crashed = [f"{o.name}: {o.crash}" for o in outcomes if o.crash]
    assert not crashed, "\n\n".join(crashed[:5])
    for name in NAMES[start : start + CHUNK]:
        verdicts = {o.verdict for o in outcomes if o.name.startswith((f"{name} ", f"{name}."))}
        assert len(verdicts) >= 3
        assert "ok" in verdicts or name == "custom_call"
