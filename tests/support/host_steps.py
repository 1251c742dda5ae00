"""Programs with steps that the host carries out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import weft
from examples import gpt
from examples.digits import make_step
from examples.digits_conv import DigitsConv
from examples.digits_mlp import DigitsMLP
from examples.gpt2_generate import GPT2, Config
from weft import functional as F
from weft import nn, optim
from weft.ptir import Program, load
from weft.ptir.specialise import is_static
from weft.testing.conformance import Case, Holds, Values

ROOT = Path(__file__).parents[2]

EXAMPLES = sorted((ROOT / "examples").glob("*.ptir.txt"))


def programs_of(cases: Iterator[Case]) -> Iterator[tuple[str, Program]]:
    for case in cases:
        with np.errstate(all="ignore"):
            trial = case.trial()
            if case.dtype is None or not isinstance(trial.expected, Values | Holds):
                continue
            program = trial.program()
        if is_static(program):
            yield case.dtype.name, program


class Block(nn.Module):
    """Two convolutions around which the input passes by, as in ResNet-18."""

    def __init__(self, narrow: int, wide: int, stride: int) -> None:
        self.first = nn.Conv2d(narrow, wide, 3, stride=stride, padding=1, bias=False)
        self.second = nn.Conv2d(wide, wide, 3, padding=1, bias=False)
        self.norms = [nn.LayerNorm(wide), nn.LayerNorm(wide)]
        self.across = nn.Conv2d(narrow, wide, 1, stride=stride, bias=False)

    def __call__(self, x: weft.Tensor) -> weft.Tensor:
        y = F.relu(normalised(self.norms[0], self.first(x)))
        return F.relu(normalised(self.norms[1], self.second(y)) + self.across(x))


def normalised(norm: nn.LayerNorm, x: weft.Tensor) -> Any:
    turned = weft.permute_dims(x, (0, 2, 3, 1))
    return weft.permute_dims(norm(turned), (0, 3, 1, 2))


class Residual(nn.Module):
    """A net of the shape of ResNet-18, but narrow."""

    def __init__(self) -> None:
        self.stem = nn.Conv2d(3, 8, 7, stride=2, padding=3)
        self.blocks = [Block(8, 8, 1), Block(8, 16, 2), Block(16, 32, 2)]
        self.out = nn.Linear(32, 10)

    def __call__(self, images: weft.Tensor) -> weft.Tensor:
        x = F.max_pool2d(F.relu(self.stem(images)), 2)
        for block in self.blocks:
            x = block(x)
        return self.out(weft.mean(x, axis=(2, 3)))


def training(model: nn.Module, x: Any, y: Any) -> Program:
    optimiser = optim.AdamW(1e-3)
    found: Program = make_step(optimiser).program(model, optimiser.init(model), x, y)
    return found


def forward(model: nn.Module, x: Any) -> Program:
    found: Program = weft.jit(lambda model, x: model(x)).program(model, x)
    return found


IMAGES, LABELS = np.zeros((2, 1, 8, 8), np.float32), np.zeros(2, np.int32)

PICTURES = np.zeros((1, 3, 32, 32), np.float32)

TOKENS = np.zeros((1, 8), np.int32)


def small_gpt() -> GPT2:
    return GPT2(Config(vocabulary=32, context=8, width=16, heads=2, layers=2))


def decode() -> Program:
    model = small_gpt()
    step = weft.jit(lambda model, tokens, position, caches: model.step(tokens, position, caches))
    found: Program = step.program(model, TOKENS[:, :1], np.int32(3), model.empty_caches(8))
    return found


PROGRAMS: dict[str, Callable[[], Program]] = {
    **{path.name: partial(load, path) for path in EXAMPLES},
    "gpt.py": lambda: gpt.build_gpt(gpt.Shape())[0],
    "GPT, forward": lambda: forward(small_gpt(), TOKENS),
    "GPT, decode": decode,
    "GPT, training": lambda: training(small_gpt(), TOKENS, TOKENS),
    "MLP, training": lambda: training(DigitsMLP(), IMAGES, LABELS),
    "convolutions, training": lambda: training(DigitsConv(), IMAGES, LABELS),
    "residual net, forward": lambda: forward(Residual(), PICTURES),
    "residual net, training": lambda: training(Residual(), PICTURES, LABELS[:1]),
}
