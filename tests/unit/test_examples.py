"""The examples: programs are what their script writes, and run; those that train learn."""

from __future__ import annotations

import argparse
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress

import weft
from examples import digits, gpt2_generate, text_gpt
from examples.digits_conv import DigitsConv
from examples.digits_mlp import DigitsMLP
from examples.documentation import Text, documentation
from examples.make_programs import WRITTEN, mlp, text_of
from examples.training import (
    Run,
    estimate,
    show_curve,
    smoothed,
    sparkline,
    step_count,
    told,
    train,
)
from tests.support.example_inputs import inputs_for
from weft import nn, optim

Array = NDArray[Any]
pytestmark = pytest.mark.usefixtures("default_backend")

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("name", WRITTEN)
def test_the_files_are_up_to_date(name: str) -> None:
    found = (EXAMPLES / f"{name}.ptir.txt").read_text(encoding="utf-8")
    assert found == text_of(WRITTEN[name]()), "run python examples/make_programs.py"


@pytest.mark.parametrize("name", WRITTEN)
def test_the_files_load_and_verify(name: str) -> None:
    program = weft.ptir.load(EXAMPLES / f"{name}.ptir.txt")
    weft.ptir.verify(program)
    assert program == WRITTEN[name]()


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


# -- training ------------------------------------------------------------------------------------


def test_the_mlp_learns_the_digits_and_goes_on(tmp_path: Path) -> None:
    nn.manual_seed(0)
    run, data, finished = digits.learn(DigitsMLP(64), tmp_path, 120, rate=5e-3)
    assert finished
    assert digits.accuracy(run.model, data) >= 0.9
    again, _, _ = digits.learn(DigitsMLP(64), tmp_path, 125, rate=5e-3)
    assert again.losses[:120] == run.losses
    assert again.step == 125
    assert float(again.state["step"]) == 125
    show_curve(again, "a curve", Console(quiet=True))
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "steps", "share"), [(DigitsMLP, 1000, 0.97), (DigitsConv, 600, 0.95)]
)
def test_the_digits_are_learnt_as_well_as_is_said(
    make: Any, steps: int, share: float, tmp_path: Path
) -> None:
    nn.manual_seed(0)
    run, data, _ = digits.learn(make(), tmp_path, steps, rate=3e-3)
    assert digits.accuracy(run.model, data) >= share


@pytest.mark.slow
def test_the_conv_net_learns(tmp_path: Path) -> None:
    nn.manual_seed(0)
    run, _, _ = digits.learn(DigitsConv(4), tmp_path, 25, rate=2e-2, batch=32)
    assert np.mean(run.losses[-5:]) < np.mean(run.losses[:5]) - 0.1


def test_the_gpt_learns_and_writes(tmp_path: Path) -> None:
    nn.manual_seed(0)
    sizes = text_gpt.Sizes(context=16, width=16, heads=2, layers=1, batch=8)
    text = Text("the weft goes through the warp, and the warp holds the weft. " * 40)
    model = text_gpt.TextGPT(len(text.words), sizes)
    optimiser = optim.AdamW(1e-2)
    run = Run(model, optimiser.init(model), tmp_path)
    assert train(run, text_gpt.make_step(optimiser), text.batches(8, 16, 0), 40)
    assert np.mean(run.losses[-5:]) < run.losses[0] / 2
    written = text_gpt.sample(run.model, text, 16, 12)
    assert len(written) >= 12
    assert set(written) <= set("".join(text.words))


def test_an_interruption_keeps_what_was_reached(tmp_path: Path) -> None:
    data = digits.Digits.load()
    optimiser = optim.SGD(0.1, 0.9)

    def interrupted() -> Iterator[tuple[Array, Array]]:
        batches = data.batches(16, 0)
        yield from (next(batches) for _ in range(3))
        raise KeyboardInterrupt

    model = DigitsMLP(16)
    run = Run(model, optimiser.init(model), tmp_path)
    assert not train(run, digits.make_step(optimiser), interrupted(), 10)
    other = DigitsMLP(16)
    resumed = Run(other, optimiser.init(other), tmp_path)
    assert resumed.resume()
    assert resumed.losses == run.losses
    assert len(run.losses) == 3
    for mine, theirs in zip(resumed.model.parameters(), run.model.parameters(), strict=True):
        np.testing.assert_array_equal(mine.numpy(), theirs.numpy())


def test_an_interruption_waits_for_the_end_of_a_step(tmp_path: Path) -> None:
    """Ctrl-C in the middle of a step whose model is updated in place."""
    data = digits.Digits.load()
    optimiser = optim.SGD(0.1, 0.9)
    inner = digits.make_step(optimiser)
    calls: list[int] = []

    def step(model: Any, state: Any, *batch: Any) -> Any:
        found = inner(model, state, *batch)
        calls.append(len(calls))
        if len(calls) == 3:
            signal.raise_signal(signal.SIGINT)
        return found

    model = DigitsMLP(16)
    run = Run(model, optimiser.init(model), tmp_path)
    assert not train(run, step, data.batches(16, 0), 10)
    assert len(run.losses) == len(calls) == 3
    other = DigitsMLP(16)
    resumed = Run(other, optimiser.init(other), tmp_path)
    assert resumed.resume()
    assert resumed.losses == run.losses


def test_a_checkpoint_of_another_model_is_told(tmp_path: Path) -> None:
    optimiser = optim.SGD(0.1)
    first, other = DigitsMLP(16), DigitsMLP(8)
    Run(first, optimiser.init(first), tmp_path).save()
    with pytest.raises(weft.UserError, match=r"of another model \(.*begin anew with --fresh"):
        Run(other, optimiser.init(other), tmp_path).resume()
    own = {f"model.{name}": tensor for name, tensor in first.state_dict().items()}
    weft.save(tmp_path / "checkpoint.safetensors", own)
    with pytest.raises(weft.UserError, match=r"of another model \(.*holds tensors by name"):
        Run(first, optimiser.init(first), tmp_path).resume()


def test_a_checkpoint_is_one_file(tmp_path: Path) -> None:
    """So that none of it can be older than the rest."""
    optimiser = optim.SGD(0.1)
    model = DigitsMLP(8)
    Run(model, optimiser.init(model), tmp_path, [2.5], 1.5).save()
    assert [file.name for file in tmp_path.iterdir()] == ["checkpoint.safetensors"]
    again = Run(model, optimiser.init(model), tmp_path)
    assert again.resume()
    assert (again.losses, again.seconds) == ([2.5], 1.5)


def test_a_model_keeps_its_words_when_the_text_changes(tmp_path: Path) -> None:
    assert text_gpt.known_words(tmp_path) == []
    optimiser = optim.SGD(0.1)
    text = Text("the weft and the warp " * 5)
    assert " weft" in text.words
    sizes = text_gpt.Sizes(context=4, width=4, heads=1, layers=1, batch=1)
    model = text_gpt.TextGPT(len(text.words), sizes)
    notes = {"words": json.dumps(text.words)}
    Run(model, optimiser.init(model), tmp_path, notes=notes).save()
    known = text_gpt.known_words(tmp_path)
    assert known == text.words
    other = Text("the xx weft wrap and", known)
    assert other.words == text.words
    assert other.decode(other.numbers) == "the weft and"


def test_how_long_a_run_takes_is_said_in_words() -> None:
    assert estimate(3000, 12.2) == "3,000 steps: about 13 s; Ctrl-C keeps what was reached"
    assert estimate(3000, 130.0) == "3,000 steps: about 3 min; Ctrl-C keeps what was reached"


def test_the_gpt_reads_sentences() -> None:
    text = documentation()
    assert set(text) <= set("abcdefghijklmnopqrstuvwxyz0123456789 .,:;'()-")
    assert len(text) > 50_000
    assert "  " not in text
    assert text.startswith("weft is a deep-learning compiler")
    assert len(Text(text).words) < 4_000


def test_the_rate_falls_to_nothing_with_the_last_step_and_begins_again() -> None:
    rate = text_gpt.pace(24, 0.1, rise=4)
    rates = [float(rate(weft.asarray(step))) for step in range(48)]
    assert max(rates) == pytest.approx(0.1)
    assert rates.index(max(rates)) in (3, 4)
    assert rates[4:24] == sorted(rates[4:24], reverse=True)
    assert rates[23] < 0.002
    assert rates[24:] == rates[:24]


def test_the_bar_counts_to_what_is_used_up_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, optimiser, shown = digits.Digits.load(), optim.SGD(0.1), []
    update = Progress.update

    def watched(self: Progress, task: Any, **fields: Any) -> None:
        shown.append(fields["completed"])
        update(self, task, **fields)

    monkeypatch.setattr(Progress, "update", watched)
    model = DigitsMLP(4)
    run = Run(model, optimiser.init(model), tmp_path)
    train(run, digits.make_step(optimiser), data.batches(16, 0), 4)
    assert shown == [0.25, 0.5, 0.75, 1.0]
    shown.clear()
    train(run, digits.make_step(optimiser), data.batches(16, 0), 10**9, budget=1e-9)
    assert shown[-1] >= 1.0


@pytest.mark.parametrize("text", ["0", "-1", "x", "1.5"])
def test_no_steps_are_no_number_of_steps(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a whole number over 0"):
        step_count(text)


def test_a_command_tells_its_mistakes_in_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    def wrong() -> None:
        raise weft.UserError("it is wrong")

    def stopped() -> None:
        raise KeyboardInterrupt

    for main, code, said in ((wrong, 1, "error: it is wrong\n"), (stopped, 130, "interrupted\n")):
        with pytest.raises(SystemExit) as end:
            told(main)()
        assert end.value.code == code
        assert capsys.readouterr().err == said


def test_the_curve_of_few_steps() -> None:
    assert smoothed([3.0, 1.0], 60) == [3.0, 1.0]
    assert sparkline([3.0, 2.0, 1.0]) == "█▅▁"
    assert sparkline([1.0]) == "▁"


# -- a generator like GPT-2 ----------------------------------------------------------------------

TINY = gpt2_generate.Config(layers=2, width=64, heads=1, vocabulary=11, context=12)


def published() -> dict[str, Array]:
    """Random weights with the names and layouts of the published files."""
    rng = np.random.default_rng(0)
    shapes = {"wte.weight": (11, 64), "wpe.weight": (12, 64), "ln_f.weight": (64,)}
    shapes["ln_f.bias"] = (64,)
    for block in ("h.0.", "h.1."):
        for name, inputs, outputs in (
            ("attn.c_attn", 64, 192),
            ("attn.c_proj", 64, 64),
            ("mlp.c_fc", 64, 256),
            ("mlp.c_proj", 256, 64),
        ):
            shapes[f"{block}{name}.weight"] = (inputs, outputs)
            shapes[f"{block}{name}.bias"] = (outputs,)
        for name in ("ln_1", "ln_2"):
            shapes |= {f"{block}{name}.weight": (64,), f"{block}{name}.bias": (64,)}
    return {n: rng.normal(0, 0.2, s).astype(np.float32) for n, s in shapes.items()}


def norm(x: Array, w: dict[str, Array], name: str) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return np.asarray(scaled * w[f"{name}.weight"] + w[f"{name}.bias"])


def linear(x: Array, w: dict[str, Array], name: str) -> Array:
    return np.asarray(x @ w[f"{name}.weight"] + w[f"{name}.bias"])


def gpt2(tokens: list[int], w: dict[str, Array]) -> Array:
    """GPT-2 with one head, in NumPy."""
    count = len(tokens)
    x = w["wte.weight"][tokens] + w["wpe.weight"][:count]
    for block in ("h.0.", "h.1."):
        q, k, v = np.split(linear(norm(x, w, f"{block}ln_1"), w, f"{block}attn.c_attn"), 3, -1)
        scores = q @ k.T / 8 + np.triu(np.full((count, count), -np.inf), 1)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        x = x + linear(weights @ v, w, f"{block}attn.c_proj")
        h = linear(norm(x, w, f"{block}ln_2"), w, f"{block}mlp.c_fc")
        h = 0.5 * h * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3)))
        x = x + linear(h, w, f"{block}mlp.c_proj")
    return np.asarray(norm(x, w, "ln_f") @ w["wte.weight"].T)


@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_published_weights_and_the_cache_give_what_gpt2_gives(prefix: str, tmp_path: Path) -> None:
    weights = published()
    file = tmp_path / "model.safetensors"
    weft.save(file, {f"{prefix}{name}": weft.asarray(a) for name, a in weights.items()})
    loaded = weft.load(file)
    assert gpt2_generate.config_of(loaded) == TINY
    model = gpt2_generate.with_published_weights(gpt2_generate.GPT2(TINY), loaded)
    tokens = [3, 1, 4]
    found = model(weft.asarray(np.array([tokens], np.int32))).numpy()[0]
    np.testing.assert_allclose(found, gpt2(tokens, weights), rtol=1e-3, atol=1e-3)
    while len(tokens) < 8:
        tokens.append(int(gpt2(tokens, weights)[-1].argmax()))
    assert list(gpt2_generate.generate(model, [3, 1, 4], 5, temperature=0.0)) == tokens[3:]


def test_a_prompt_that_does_not_fit_is_told() -> None:
    model = gpt2_generate.GPT2(TINY)
    for prompt, count, temperature, message in (
        ([], 3, 1.0, "do not fit"),
        ([1] * 10, 3, 1.0, "do not fit"),
        ([1], 0, 1.0, "do not fit"),
        ([1, 11], 3, 1.0, "11 is not a token: the model has 0 to 10"),
        ([1], 3, -1.0, "the temperature is -1.0"),
    ):
        with pytest.raises(weft.UserError, match=message):
            next(gpt2_generate.generate(model, prompt, count, temperature=temperature))
    with pytest.raises(weft.UserError, match="it is not a GPT-2"):
        gpt2_generate.config_of({"x": weft.asarray(1.0)})


def test_a_file_without_some_weights_is_told() -> None:
    weights = {name: weft.asarray(a) for name, a in published().items() if name != "h.1.ln_1.bias"}
    with pytest.raises(weft.UserError, match=r"the file has no h\.1\.ln_1\.bias"):
        gpt2_generate.with_published_weights(gpt2_generate.GPT2(TINY), weights)


def test_an_interruption_keeps_the_tokens_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: Any, **kwargs: Any) -> Iterator[int]:
        yield 7
        raise KeyboardInterrupt

    monkeypatch.setattr(gpt2_generate, "generate", interrupted)
    assert gpt2_generate.write(gpt2_generate.GPT2(TINY), [1], 5, 0.0) == [7]
