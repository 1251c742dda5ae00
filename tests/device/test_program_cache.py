"""On a GPU: programs that come from disk whole do what the compiled ones do, to the bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import weft
from examples.make_programs import attention, mlp
from tests.support.example_inputs import inputs_for
from weft.driver.cuda import target_of_device
from weft.ptir import Program
from weft.runtime.cuda.driver import compute_capability

pytestmark = pytest.mark.skipif(compute_capability() is None, reason="there is no GPU")


@pytest.mark.parametrize(
    "program",
    [mlp(64, 128, 256, 64, dtype="bf16"), attention(2, 64, 32, 128, dtype="f32")],
    ids=["mlp", "attention"],
)
def test_a_program_from_disk_gives_the_same_bits(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    first, again = (weft.compile(program, target=target_of_device()) for _ in range(2))
    assert "machine code" in first._latest.times
    assert list(again._latest.times) == ["disk"]
    inputs = inputs_for(program, 1)
    want, got = ([np.asarray(a).tobytes() for a in e.run(inputs)] for e in (first, again))
    assert got == want
