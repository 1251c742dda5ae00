"""What the examples on handwritten digits share: scikit-learn's 1,797 pictures of 8 x 8 pixels,
a training step, the share of test pictures that a model gets right, and pictures as text."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

import weft
from examples.training import Run, show_curve, step_count, told, train
from weft import data, nn, optim
from weft import functional as F

ROOT = Path(__file__).parents[1]
SHADES = " ░▒▓█"
Array = NDArray[Any]
Loss = Callable[[Any, Any, Any], weft.Tensor]
"""Of a model, pictures and what they show."""


@dataclass(frozen=True)
class Digits:
    """Pictures [n, 1, 8, 8] from 0 to 1 and what they show, for training and for testing."""

    images: Array
    labels: Array
    test_images: Array
    test_labels: Array

    @classmethod
    def load(cls, tested: int = 360, seed: int = 0) -> Digits:
        try:
            # Here, not above: whoever does not have it is told so in a sentence.
            from sklearn.datasets import load_digits  # noqa: PLC0415
        except ImportError:
            raise weft.UserError(
                "the digits come with scikit-learn, which is not installed here; from the folder "
                "of the repository: pip install '.[examples]'"
            ) from None
        found = load_digits()
        images = (found.images / 16.0).astype(np.float32)[:, None]
        labels = found.target.astype(np.int32)
        order = np.random.default_rng(seed).permutation(len(labels))
        test, rest = order[:tested], order[tested:]
        return cls(images[rest], labels[rest], images[test], labels[test])

    def batches(self, size: int, start: int) -> Iterator[tuple[Array, Array]]:
        """Batches in random order without end, from batch `start` on."""
        source, key = (self.images, self.labels), weft.random.key(0)
        return data.batches(source, size, key=key, epochs=None, start=start)


def misread(model: Any, images: Any, labels: Any) -> weft.Tensor:
    """The loss of a model that says what a picture shows."""
    return F.cross_entropy(model(images), labels)


def make_step(optimiser: optim.Optimiser, loss_of: Loss = misread) -> Any:
    """One step: loss, gradient and update as one program, in place. Random numbers follow from the
    number of the step, so that a run that goes on draws what an unbroken one does."""

    def step(model: nn.Module, state: dict[str, Any], images: Any, labels: Any) -> Any:
        number = weft.astype(state["step"], weft.int32)
        with nn.training(weft.random.fold_in(weft.random.key(0), number)):
            loss, gradients = weft.value_and_grad(loss_of)(model, images, labels)
        model, state = optimiser.update(gradients, state, model)
        return model, state, loss

    return weft.jit(step, donate=("model", "state"))


def accuracy(model: nn.Module, digits: Digits) -> float:
    """The share of test pictures that the model gets right."""
    scores = weft.jit(lambda model, images: model(images))(model, digits.test_images)
    return float((scores.numpy().argmax(1) == digits.test_labels).mean())


def right(model: nn.Module, digits: Digits) -> str:
    return f"{accuracy(model, digits):.1%} of the test pictures are right"


def drawn(images: Array) -> str:
    """Pictures [n, 8, 8] from 0 to 1, side by side, a pixel as two letters."""
    levels = np.clip(images * len(SHADES), 0, len(SHADES) - 1).astype(int)
    rows = levels.transpose(1, 0, 2)
    return "\n".join("  ".join("".join(SHADES[v] * 2 for v in r) for r in row) for row in rows)


def learn(
    model: nn.Module,
    folder: Path,
    steps: int,
    *,
    rate: float,
    loss_of: Loss = misread,
    batch: int = 64,
    fresh: bool = False,
) -> tuple[Run, Digits, bool]:
    """Train on the digits, or go on with it; the last is False after Ctrl-C."""
    digits = Digits.load()
    optimiser = optim.AdamW(optim.warmup(optim.cosine(rate, steps), 20), weight_decay=0.05)
    run = Run(model, optimiser.init(model), folder)
    if not fresh and run.resume():
        Console().print(f"resuming from step {run.step}")
    with data.prefetch(digits.batches(batch, run.step)) as batches:
        finished = train(run, make_step(optimiser, loss_of), batches, steps)
    return run, digits, finished


@told
def main(
    name: str,
    make: Callable[[], nn.Module],
    steps: int,
    rate: float,
    loss_of: Loss = misread,
    shown: Callable[[Any, Digits], str] = right,
) -> None:
    """The command line of the examples; `shown` says what a model has learnt."""
    parser = argparse.ArgumentParser(description=f"train {name} on handwritten digits")
    parser.add_argument("--steps", type=step_count, default=steps)
    parser.add_argument("--backend", default=weft.default_backend())
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / name)
    parser.add_argument("--fresh", action="store_true", help="ignore the last checkpoint")
    options = parser.parse_args()
    weft.set_default_backend(options.backend)
    console = Console()
    model = make()
    console.print(f"{model}, backend {options.backend}")
    run, digits, finished = learn(
        model, options.folder, options.steps, rate=rate, loss_of=loss_of, fresh=options.fresh
    )
    show_curve(run, f"{name} on handwritten digits", console)
    console.print(f"{run.step} steps in {run.seconds:.0f} s: {shown(run.model, digits)}")
    if not finished:
        console.print("interrupted; run it again to resume")
