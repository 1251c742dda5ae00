"""Infinities and NaN stay where the reference has them: zeros that kernels pad with, copy with and
cut with are multiplied by nothing else of what a program is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.cases import each, one_in
from tests.support.example_inputs import inputs_for
from tests.support.gpu_convolutions import COPIED, FIRST_LAYERS, GROUPED, PHASES, Case
from tests.support.gpu_interpreted import InterpretedGpu
from tests.support.images import wide
from weft.driver.compile import compile_program
from weft.driver.execute import run
from weft.driver.pipeline import run_pipeline
from weft.driver.signature import make_signature
from weft.driver.stages.compilation import Compilation
from weft.foundation.numeric import as_pairs
from weft.ptir import Builder, Program, Value
from weft.region.fitting import image_copies, joined_groups, phases
from weft.region.interp import run_module
from weft.region.ir import Module
from weft.target.known import target_named

Array = NDArray[Any]
TARGETS = {"cpu": wide(), "sm80": target_named("sm80"), "sm90": target_named("sm90")}
CONVOLUTIONS: dict[str, tuple[Case, int | None]] = {
    **{f"{name}, forward": (case, None) for name, case in (COPIED | FIRST_LAYERS).items()},
    **{
        f"{name}, gradient of {of}": (case, of)
        for name, case in (PHASES | GROUPED | FIRST_LAYERS).items()
        for of in (0, 1)
        if not case.epilogue
    },
}
"""Those whose kernels copy, join and cut, and the parameter whose gradient is taken."""


@pytest.fixture
def small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ((image_copies, "WORTH"), (joined_groups, "WORTH"), (phases, "_WORTH"))
    for module, name in (*names, (phases, "_WORTH_OF_ROWS")):
        monkeypatch.setattr(module, name, 1)


def are_finite(results: list[Array]) -> list[Array]:
    return [np.isfinite(found.astype(np.float32)) for found in results]


@pytest.mark.usefixtures("small_ones_too")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", one_in(12, CONVOLUTIONS))
def test_convolutions_multiply_what_their_windows_cover(name: str, target: str) -> None:
    """By the meaning of their kernels."""
    case, of = CONVOLUTIONS[name]
    program = case.program() if of is None else case.gradient(of)
    compilation = Compilation(program, TARGETS[target], make_signature(program))
    module: Module = run_pipeline(compilation, "region")["region"]
    constants, rng = compilation["tiny"].constants, np.random.default_rng(0)
    names = [found for found in module.inputs if found not in constants]
    for number in range(len(names)):
        for value in (np.nan, np.inf):
            inputs = inputs_for(program, 3)
            inputs[number].reshape(-1)[rng.integers(inputs[number].size)] = value
            given = zip(names, map(as_pairs, inputs), strict=True)
            played = run_module(module, {**constants, **dict(given)})
            found = are_finite([played[output] for output in module.outputs])
            wanted = are_finite(run(program, inputs, backend="reference"))
            for got, want in zip(found, wanted, strict=True):
                np.testing.assert_array_equal(got, want)


@dataclass(frozen=True)
class Cut:
    """A program whose operands are parts of what it is given, with NaN around them."""

    name: str
    shapes: tuple[tuple[int, ...], ...]

    def program(self, dtype: str) -> Program:
        b = Builder(self.name)
        wholes = [b.param(dtype, [n + 9 for n in shape]) for shape in self.shapes]
        parts = [
            b.slice(whole, [1] * len(shape), shape)
            for whole, shape in zip(wholes, self.shapes, strict=True)
        ]
        return b.build(self.result(b, *parts))

    def result(self, b: Builder, *parts: Value) -> Value:
        if self.name == "product":
            return b.matmul(*parts)
        if self.name == "attention":
            found: Value = b.emit("weft.attention", *parts, causal=False)[0]
            return found
        made = b.emit("weft.conv", *parts, layout="NHWC", pad=[1] * 4, groups=2)
        assert isinstance(made, Value)
        return made

    def inputs(self, program: Program) -> list[Array]:
        found = inputs_for(program, 3)
        for whole, shape in zip(found, self.shapes, strict=True):
            part = tuple(slice(1, 1 + n) for n in shape)
            kept = whole[part].copy()
            whole[...] = np.nan
            whole[part] = kept
        return found


CUTS = (
    Cut("product", ((33, 70), (70, 41))),
    Cut("convolution", ((2, 6, 7, 40), (3, 3, 20, 24))),
    Cut("attention", ((1, 2, 40, 32), (1, 2, 77, 32), (1, 2, 77, 32))),
)


def stays_outside(cut: Cut, program: Program, results: list[Array]) -> None:
    (wanted,) = run(program, cut.inputs(program), backend="reference")
    assert np.isfinite(wanted.astype(np.float32)).all()
    np.testing.assert_allclose(
        results[0].astype(np.float32), wanted.astype(np.float32), rtol=2e-2, atol=2e-2
    )


@each("dtype", ["f32", "bf16", "f16"])
@each("cut", CUTS)
def test_what_lies_around_an_operand_is_not_multiplied(cut: Cut, dtype: str) -> None:
    program = cut.program(dtype)
    stays_outside(cut, program, compile_program(program, "cpu").run(cut.inputs(program)))


@pytest.mark.parametrize("target", ["sm80", "sm90"])
@pytest.mark.parametrize("cut", one_in(2, CUTS), ids=lambda cut: cut.name)
def test_nor_is_it_on_a_gpu(cut: Cut, target: str) -> None:
    program = cut.program("bf16")
    made = InterpretedGpu(target).compile(program)
    stays_outside(cut, program, made.execute(cut.inputs(program)))
