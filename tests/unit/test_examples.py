"""The example programs in examples/ are what their script writes, and run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import weft
from examples.make_programs import PROGRAMS, mlp, text_of
from tests.example_inputs import inputs_for

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_files_are_up_to_date(name: str) -> None:
    found = (EXAMPLES / f"{name}.ptir.txt").read_text(encoding="utf-8")
    assert found == text_of(PROGRAMS[name]()), "run python examples/make_programs.py"


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_files_load_and_verify(name: str) -> None:
    program = weft.ptir.load(EXAMPLES / f"{name}.ptir.txt")
    weft.ptir.verify(program)
    assert program == PROGRAMS[name]()


def test_the_mlp_takes_any_batch() -> None:
    program = mlp("?B")
    rng = np.random.default_rng(0)
    shapes = [(5, 64), (64, 128), (128,), (128, 32), (32,)]
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    (out,) = weft.run(program, arrays, backend="reference")
    assert out.shape == (5, 32)


def test_attention_sees_its_own_past_only() -> None:
    """Later cache entries do not matter; the piece that was just written does."""
    program = weft.ptir.load(EXAMPLES / "attention.ptir.txt")
    arrays = inputs_for(program)[:5]
    position = np.asarray(7, np.int32)
    first, keys, _ = weft.run(program, [*arrays, position], backend="reference")
    assert np.array_equal(keys[:, :, 7:23], arrays[1])
    assert np.array_equal(keys[:, :, :7], arrays[3][:, :, :7])
    arrays[3][:, :, 23:] += 1.0
    arrays[4][:, :, 23:] -= 1.0
    second, _, _ = weft.run(program, [*arrays, position], backend="reference")
    assert np.array_equal(first, second)
