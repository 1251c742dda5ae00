"""The page that follows a program through every stage shows what the stages really make."""

from __future__ import annotations

import numpy as np

import weft
from docs import generate_walkthrough


def test_the_page_is_up_to_date() -> None:
    assert generate_walkthrough.PAGE.read_text() == generate_walkthrough.page(), "run `make docs`"


def test_its_program_runs() -> None:
    program = generate_walkthrough.example()
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(s).astype(np.float32) for s in ((4, 8), (8, 20), (20,))]
    want = weft.run(program, inputs, backend="reference")[0]
    assert np.allclose(weft.compile(program)(*inputs)[0], want, rtol=1e-5, atol=1e-5)
