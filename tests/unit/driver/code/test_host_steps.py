"""What is left to the host: the page lists all of it, and no example program has any."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from examples import gpt
from examples.digits import make_step
from examples.digits_conv import DigitsConv
from examples.digits_mlp import DigitsMLP
from examples.gpt2_generate import GPT2, Config
from weft import functional as F
from weft import nn, optim
from weft.driver.pipeline import run_pipeline
from weft.driver.signature import make_signature
from weft.driver.stages.compilation import Compilation
from weft.ptir import Builder, Program, load
from weft.ptir.op import Op
from weft.ptir.ops.bits import Bitcast
from weft.ptir.specialise import is_static
from weft.runtime.artifact import HostCall
from weft.target.known import target_named
from weft.testing.conformance import Case, Holds, Values, all_cases
from weft.testing.conformance.table import one_of_each
from weft.tiny.ir import Graph, Opaque

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "cpu.md").read_text().split("## What runs on the host")[1].split("\n## ")[0]
EXAMPLES = sorted((ROOT / "examples").glob("*.ptir.txt"))
PLAIN = {"f32", "f64", "f16", "bf16", "si32", "si64", "i1"}


def lowered(program: Program) -> Graph:
    target = target_named("cpu")
    start = Compilation(program, target, make_signature(program, (), ()), {})
    graph = run_pipeline(start, "tiny")["tiny"]
    assert isinstance(graph, Graph)
    return graph


def host_ops(program: Program) -> set[str]:
    """The ops of a program that neither kernels nor native steps carry out."""
    whole = (value.op for value in lowered(program).values if isinstance(value, Opaque))
    # A bitcast is a copy of bytes, which is a step of its own.
    found = [op for op in whole if isinstance(op, Op) and not op.regions]
    return {op.mnemonic for op in found if not isinstance(op, Bitcast)}


def programs_of(cases: Iterator[Case]) -> Iterator[tuple[str, Program]]:
    for case in cases:
        with np.errstate(all="ignore"):
            trial = case.trial()
            if case.dtype is None or not isinstance(trial.expected, Values | Holds):
                continue
            program = trial.program()
        if is_static(program):
            yield case.dtype.name, program


def test_the_page_lists_what_is_left_to_the_host() -> None:
    found = defaultdict(set)
    for dtype, program in programs_of(one_of_each(all_cases())):
        for op in host_ops(program):
            found[dtype].add(op)
    table, complex_only = PAGE.split("Complex numbers")
    rows = re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE)
    listed = set(re.findall(r"`(\w+)`", " ".join(rows)))
    pairs = set(re.findall(r"`(\w+)`", complex_only))
    assert set().union(*(found[dtype] for dtype in PLAIN)) == listed
    others = set().union(*found.values())
    assert others - listed == pairs
    assert set().union(*(ops for dtype, ops in found.items() if dtype[0] != "c")) == listed


def test_a_bitcast_copies_bytes() -> None:
    b = Builder()
    x = b.param("f32", [5, 7])
    program = b.build(b.bitcast(x + x, dtype="si32") + 1, b.bitcast(x, dtype="ui32"))
    given = np.linspace(-3, 4, 35, dtype=np.float32).reshape(5, 7)
    compiled = weft.compile(program)
    first, second = compiled.run([given])
    assert (first == (given + given).view(np.int32) + 1).all()
    assert (second == given.view(np.uint32)).all()
    assert not any(isinstance(step, HostCall) for step in compiled.artifact.steps)


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


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_example_has_a_host_step(name: str) -> None:
    program = PROGRAMS[name]()
    assert len(program.main.body) > 3
    assert host_ops(program) == set()
