"""A character-level GPT that learns the text of this repository's documentation.

    python -m examples.char_gpt                  train for 5,000 steps, then write some text
    python -m examples.char_gpt --steps 10000    longer; runs go on from their last checkpoint

It reads the sentences of the pages, in small letters, without code and tables: few characters, so
that 5,000 steps are enough for words: the loss, near 3.7 at first, is under 1.3 then. The number of
steps, not the clock, says when it is done, so that the text is as good on a slow machine. The curve
is saved as a picture beside the checkpoint; Ctrl-C keeps what was reached.
"""

from __future__ import annotations

import argparse
import math
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

import weft
from examples.training import Run, show_curve, step_count, told, train
from weft import functional as F
from weft import nn, optim

ROOT = Path(__file__).parents[1]
Array = NDArray[Any]
STEPS_PER_MINUTE = 2_000
"""On two cores that nobody else uses, with room for slower ones: steps of 14 to 17 ms were measured
on two cores with vectors of 512 bits."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of the model and of a batch."""

    context: int = 64
    width: int = 64
    heads: int = 4
    layers: int = 2
    batch: int = 16


class CharGPT(nn.Module):
    """Characters to scores of the next character."""

    def __init__(self, vocabulary: int, sizes: Sizes) -> None:
        self.characters = nn.Embedding(vocabulary, sizes.width, deviation=0.05)
        self.positions = nn.Embedding(sizes.context, sizes.width, deviation=0.05)
        self.blocks = [nn.TransformerBlock(sizes.width, sizes.heads) for _ in range(sizes.layers)]
        self.norm = nn.LayerNorm(sizes.width)
        self.head = nn.Linear(sizes.width, vocabulary, bias=False)

    def __call__(self, text: weft.Tensor) -> weft.Tensor:
        x = self.characters(text) + self.positions(weft.arange(text.shape[1], dtype=weft.int32))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Text:
    """A text as numbers of characters, which are those of a model or else the frequent ones; all
    others become spaces."""

    def __init__(self, text: str, characters: str = "") -> None:
        counts = {c: text.count(c) for c in set(text)}
        frequent = sorted(c for c, count in counts.items() if count >= 5 or c == " ")
        self.characters = characters or "".join(frequent)
        number = {c: i for i, c in enumerate(self.characters)}
        space = number[" "]
        self.numbers = np.array([number.get(c, space) for c in text], np.int32)

    def batches(self, sizes: Sizes, seed: int) -> Iterator[tuple[Array, Array]]:
        """Random pieces, and the same pieces one character later."""
        rng = np.random.default_rng(seed)
        while True:
            starts = rng.integers(0, len(self.numbers) - sizes.context - 1, sizes.batch)
            rows = starts[:, None] + np.arange(sizes.context)
            yield self.numbers[rows], self.numbers[rows + 1]

    def decode(self, numbers: Array) -> str:
        return "".join(self.characters[i] for i in numbers)


def documentation() -> str:
    """The sentences of the repository's pages, in order: what is neither code, table nor heading,
    in small letters."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
    text = "\n\n".join(page.read_text(encoding="utf-8") for page in pages)
    text = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"\]\([^)]*\)", "", text)
    lines = [line for line in text.splitlines() if not line.startswith(("|", "#", "!"))]
    plain = re.sub(r"[^a-z0-9 .,:;'()\n-]", "", "\n".join(lines).lower())
    return re.sub(r"\s+", " ", plain)


def pace(steps: int, rate: float = 1e-2, rise: int = 20) -> Callable[[weft.Tensor], weft.Tensor]:
    """A rate that rises over the first steps and falls to nothing at the last; a run that goes on
    after that begins again."""
    once = optim.warmup_cosine(rate, steps, min(rise, steps - 1))
    return lambda step: once(step % steps)


def known_characters(folder: Path) -> str:
    """Those of the model in the checkpoint, if there is one: the documentation may have others by
    now."""
    file = folder / "checkpoint.safetensors"
    return weft.load_metadata(file).get("characters", "") if file.exists() else ""


def make_step(optimiser: optim.Optimiser) -> Any:
    """One training step: loss, gradient, update, as one program whose state is updated in place."""

    def step(model: CharGPT, state: Any, text: Any, following: Any) -> Any:
        def loss_of(candidate: CharGPT) -> weft.Tensor:
            return F.cross_entropy(candidate(text), following)

        loss, gradients = weft.value_and_grad(loss_of)(model)
        model, state = optimiser.update(gradients, state, model)
        return model, state, loss

    return weft.jit(step, donate=("model", "state"))


def sample(model: nn.Module, text: Text, sizes: Sizes, length: int, seed: int = 0) -> str:
    """Text that the model writes, character by character."""
    rng = np.random.default_rng(seed)
    scores = weft.jit(lambda model, window: model(window))
    written = text.numbers[: sizes.context].copy()
    for _ in range(length):
        last = scores(model, written[None, -sizes.context :]).numpy()[0, -1].astype(np.float64)
        chances = np.exp((last - last.max()) / 0.5)
        written = np.append(written, rng.choice(len(chances), p=chances / chances.sum()))
    return text.decode(written[sizes.context :])


@told
def main() -> None:
    parser = argparse.ArgumentParser(description="train a character-level GPT on the docs")
    parser.add_argument("--steps", type=step_count, default=5_000, help="how long to train")
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after this time")
    parser.add_argument("--backend", default=weft.default_backend())
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "char_gpt")
    parser.add_argument("--fresh", action="store_true", help="forget the last checkpoint")
    options = parser.parse_args()
    weft.set_default_backend(options.backend)
    console = Console()
    known = "" if options.fresh else known_characters(options.folder)
    sizes, text = Sizes(), Text(documentation(), known)
    model = CharGPT(len(text.characters), sizes)
    adam = optim.AdamW(pace(options.steps), betas=(0.9, 0.98), weight_decay=0.1)
    optimiser = optim.chain(optim.clip(norm=1.0), adam)
    notes = {"characters": text.characters}
    run = Run(model, optimiser.init(model), options.folder, notes=notes)
    if not options.fresh and run.resume():
        console.print(f"going on from step {run.step}")
    step = make_step(optimiser)
    console.print(f"{model} on {len(text.numbers):,} characters, backend {options.backend}")
    started = time.perf_counter()
    last = (run.step // options.steps + 1) * options.steps
    minutes = math.ceil((last - run.step) / STEPS_PER_MINUTE)
    console.print(
        f"{last - run.step:,} steps: about {minutes} min on two free cores, after some seconds of "
        "compiling; Ctrl-C keeps what was reached",
        highlight=False,
    )
    batches = text.batches(sizes, run.step)
    finished = train(run, step, batches, last, budget=options.seconds)
    console.print(f"{run.step} steps in {time.perf_counter() - started:.0f} s; {step.explain()}")
    show_curve(run, "character GPT on Weft's documentation", console)
    if not finished:
        console.print("interrupted; run it again to go on")
        return
    console.rule("a sample")
    console.print(sample(run.model, text, sizes, 300), markup=False, highlight=False)
    console.rule("where the time of a step went")
    with weft.trace(weft.TraceConfig(profile_backend=True)) as watched:
        step(run.model, run.state, *next(text.batches(sizes, 0)))
    if watched.profile is not None:
        console.print(
            "\n".join(watched.profile.summary(kinds=True).splitlines()[:12]), highlight=False
        )


if __name__ == "__main__":
    main()
