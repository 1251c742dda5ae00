"""Models on a GPU: a training step with donated weights, in which nothing is the host's; a decoder
whose position is a number on the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from examples.documentation import Text, documentation
from examples.gpt2_generate import GPT2, Config, generate
from examples.text_gpt import Sizes, TextGPT, make_step
from weft import nn, optim
from weft.driver.compile import compile_program
from weft.runtime.artifact import HostCall
from weft.runtime.cuda.driver import compute_capability

pytestmark = pytest.mark.skipif(compute_capability() is None, reason="there is no GPU")
SIZES = Sizes(context=32, width=64, heads=4, layers=2, batch=8)
STEPS = 30


def losses(backend: str) -> list[float]:
    """The losses of a few steps, from the same start on every backend."""
    with weft.graph(backend=backend):
        text = Text(documentation()[:20000])
        nn.manual_seed(3)
        model = TextGPT(len(text.words), SIZES)
        optimiser = optim.AdamW(3e-3, weight_decay=0.1)
        state, step = optimiser.init(model), make_step(optimiser)
        found, batches = [], text.batches(SIZES.batch, SIZES.context, 1)
        for _ in range(STEPS):
            model, state, loss = step(model, state, *next(batches))
            found.append(loss)
        return [float(loss.numpy()) for loss in found]


def test_a_text_model_learns_as_on_the_cpu() -> None:
    got, want = losses("cuda"), losses("cpu")
    np.testing.assert_allclose(got[:5], want[:5], rtol=2e-3)
    np.testing.assert_allclose(got, want, rtol=5e-2)
    assert got[-1] < got[0] - 0.5


def test_a_training_step_leaves_nothing_to_the_host() -> None:
    model = TextGPT(40, SIZES)
    optimiser = optim.AdamW(3e-3)
    text = np.zeros((SIZES.batch, SIZES.context), np.int32)
    program = make_step(optimiser).program(model, optimiser.init(model), text, text)
    steps = compile_program(program, "sm90").artifact.steps
    assert not [step.label for step in steps if isinstance(step, HostCall)]


def written(backend: str) -> list[Any]:
    with weft.graph(backend=backend):
        nn.manual_seed(7)
        model = GPT2(Config(vocabulary=50, context=24, width=32, heads=4, layers=2))
        return [int(token) for token in generate(model, [1, 2, 3], 12, seed=4)]


def test_a_decoder_writes_what_it_writes_on_the_cpu() -> None:
    assert written("cuda") == written("cpu")
