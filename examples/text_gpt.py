"""A small GPT that learns the text of this repository's documentation.

    python -m examples.text_gpt                  train for 3,000 steps, then write some text
    python -m examples.text_gpt --steps 6000     longer; runs go on from their last checkpoint

It reads the sentences of the pages word by word, in small letters, without code and tables. The
number of steps, not the clock, says when it is done, so that the text is as good on a slow machine.
The curve is saved as a picture beside the checkpoint; Ctrl-C keeps what was reached.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

import weft
from examples.documentation import ROOT, Text, documentation
from examples.training import Run, show_curve, step_count, told, train
from weft import functional as F
from weft import nn, optim


@dataclass(frozen=True)
class Sizes:
    """The sizes of the model and of a batch."""

    context: int = 48
    width: int = 64
    heads: int = 4
    layers: int = 2
    batch: int = 16


class TextGPT(nn.Module):
    """Words to scores of the next word."""

    def __init__(self, vocabulary: int, sizes: Sizes) -> None:
        self.words = nn.Embedding(vocabulary, sizes.width, deviation=0.05)
        self.positions = nn.Embedding(sizes.context, sizes.width, deviation=0.05)
        self.blocks = [nn.TransformerBlock(sizes.width, sizes.heads) for _ in range(sizes.layers)]
        self.norm = nn.LayerNorm(sizes.width)
        self.head = nn.Linear(sizes.width, vocabulary, bias=False)

    def __call__(self, text: weft.Tensor) -> weft.Tensor:
        x = self.words(text) + self.positions(weft.arange(text.shape[1], dtype=weft.int32))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def pace(steps: int, rate: float = 1e-2, rise: int = 100) -> Callable[[weft.Tensor], weft.Tensor]:
    """A rate that rises over the first steps and falls to nothing at the last; a run that goes on
    after that begins again."""
    once = optim.warmup_cosine(rate, steps, min(rise, steps - 1))
    return lambda step: once(step % steps)


def known_words(folder: Path) -> list[str]:
    """Those of the model in the checkpoint, if there is one: the documentation may have others by
    now."""
    file = folder / "checkpoint.safetensors"
    notes = weft.load_metadata(file) if file.exists() else {}
    return list(json.loads(notes.get("words", "[]")))


def make_step(optimiser: optim.Optimiser) -> Any:
    """One training step: loss, gradient, update, as one program whose state is updated in place."""

    def step(model: TextGPT, state: Any, text: Any, following: Any) -> Any:
        def loss_of(candidate: TextGPT) -> weft.Tensor:
            return F.cross_entropy(candidate(text), following)

        loss, gradients = weft.value_and_grad(loss_of)(model)
        model, state = optimiser.update(gradients, state, model)
        return model, state, loss

    return weft.jit(step, donate=("model", "state"))


def sample(model: nn.Module, text: Text, context: int, length: int, seed: int = 0) -> str:
    """Text that the model writes, word by word: each one of the likeliest, the likelier the more
    often."""
    rng = np.random.default_rng(seed)
    scores = weft.jit(lambda model, window: model(window))
    written = text.numbers[:context].copy()
    for _ in range(length):
        last = scores(model, written[None, -context:]).numpy()[0, -1].astype(np.float64)
        likely = np.argsort(last)[-20:]
        chances = np.exp((last[likely] - last.max()) / 0.5)
        written = np.append(written, rng.choice(likely, p=chances / chances.sum()))
    return text.decode(written[context:])


def show_step(step: Any, run: Run, batch: tuple[Any, Any], console: Console) -> None:
    """Where the time of one step goes."""
    console.rule("where the time of a step went")
    with weft.trace(weft.TraceConfig(profile_backend=True)) as watched:
        step(run.model, run.state, *batch)
    if watched.profile is not None:
        lines = watched.profile.summary(kinds=True).splitlines()[:12]
        console.print("\n".join(lines), highlight=False)


@told
def main() -> None:
    parser = argparse.ArgumentParser(description="train a small GPT on the documentation")
    parser.add_argument("--steps", type=step_count, default=3_000, help="how long to train")
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after this time")
    parser.add_argument("--backend", default=weft.default_backend())
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "text_gpt")
    parser.add_argument("--fresh", action="store_true", help="ignore the last checkpoint")
    options = parser.parse_args()
    weft.set_default_backend(options.backend)
    console = Console()
    known = [] if options.fresh else known_words(options.folder)
    sizes, text = Sizes(), Text(documentation(), known)
    model = TextGPT(len(text.words), sizes)
    adam = optim.AdamW(pace(options.steps), betas=(0.9, 0.98), weight_decay=0.1)
    optimiser = optim.chain(optim.clip(norm=1.0), adam)
    notes = {"words": json.dumps(text.words)}
    run = Run(model, optimiser.init(model), options.folder, notes=notes)
    if not options.fresh and run.resume():
        console.print(f"resuming from step {run.step}")
    console.print(f"{model} on {len(text.numbers):,} words, backend {options.backend}")
    step, batches = make_step(optimiser), text.batches(sizes.batch, sizes.context, run.step)
    started, last = time.perf_counter(), (run.step // options.steps + 1) * options.steps
    finished = train(run, step, batches, last, budget=options.seconds)
    console.print(f"{run.step} steps in {time.perf_counter() - started:.0f} s; {step.explain()}")
    show_curve(run, "a small GPT on Weft's documentation", console)
    if not finished:
        console.print("interrupted; run it again to resume")
        return
    console.rule("a sample")
    console.print(sample(run.model, text, sizes.context, 100), markup=False, highlight=False)
    show_step(step, run, next(batches), console)


if __name__ == "__main__":
    main()
