"""Programs whose kernels have stages on a GPU, by the meaning of its dialect."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from tests.support.gpu_interpreted import InterpretedExecutable
from tests.support.staged_programs import blur
from weft import functional
from weft.driver.pipeline import run_pipeline
from weft.driver.signature import make_signature
from weft.driver.stages.compilation import Compilation
from weft.foundation.dtypes import BY_NAME
from weft.ptir import Program
from weft.region.ir import Kernel, Module
from weft.target.known import target_named

Function = Callable[[Any], Any]
SHAPE = (13, 72)


def taps(x: Any, axis: int, count: int, step: int = 1) -> Any:
    """A sum of slices that are so far apart, with weights."""
    size, total = x.shape[axis] - (count - 1) * step, None
    for place in range(0, count * step, step):
        at = tuple(slice(place, place + size) if n == axis else slice(None) for n in range(x.ndim))
        part = x[at] * (place + 2)
        total = part if total is None else total + part
    return total


def steps(x: Any) -> Any:
    for _ in range(2):
        x = x[:-2, 1:-1] + x[2:, 1:-1] - x[1:-1, :-2] + x[1:-1, 2:]
    return x


def padded(x: Any) -> Any:
    h = weft.tanh(functional.pad(x, [(1, 1), (2, 1)], value=1.0))
    return functional.pad(h[:, :-2] * h[:, 2:], [(2, 0), (0, 3)], value=2.0)[2:] + 0.5


def sharpened(x: Any) -> Any:
    centre = x[1:-1, 1:-1]
    return centre + 1.5 * (centre - blur(x))


def two(x: Any) -> Any:
    h = blur(x)
    g = h[1:] * h[:-1]
    return g[:, 1:] + g[:, :-1], g[:, 1:] - g[:, :-1]


def pooled(x: Any) -> Any:
    h = functional.max_pool2d(weft.abs(x)[None, None], (3, 2), stride=1, padding=1)
    return functional.avg_pool2d(h, (2, 3), stride=1)[0, 0]


def weighted(x: Any) -> Any:
    """With something of every row and of every column."""
    rows, columns = x[:, :1] * 2, x[:1] * 3
    h = x * rows + columns
    return blur(h * h)


def colours(x: Any) -> Any:
    """Images whose channels lie side by side, with a weight for each, beyond a border."""
    h = functional.pad(x[:, :-2] + x[:, 2:] * x[0, 0], [(1, 1), (2, 2), (0, 0)], value=2.0)
    return h[:-2] - h[1:-1] + h[2:]


PROGRAMS: dict[str, tuple[Function, tuple[int, ...], str]] = {
    "blurs": (lambda x: blur(blur(x)), SHAPE, "f32"),
    "blurs of odd rows": (lambda x: blur(blur(x)), (11, 71), "f32"),
    "blurs of halves": (lambda x: blur(blur(x)), SHAPE, "f16"),
    "blurs of bf16": (lambda x: blur(blur(x)), SHAPE, "bf16"),
    "blurs of f64": (lambda x: blur(blur(x)), SHAPE, "f64"),
    "images": (lambda x: blur(blur(x)), (2, 9, 72), "f32"),
    "integers": (steps, SHAPE, "si32"),
    "bytes": (steps, SHAPE, "si8"),
    "padded": (lambda x: blur(padded(x)), SHAPE, "f32"),
    "sharpened": (lambda x: sharpened(sharpened(x)), SHAPE, "f32"),
    "two results": (two, SHAPE, "f32"),
    "windows": (lambda x: blur(pooled(x)), SHAPE, "f32"),
    "channels": (colours, (11, 30, 3), "f32"),
    "rows and columns": (weighted, SHAPE, "f32"),
    "channels of halves": (lambda x: colours(colours(x)), (11, 30, 4), "f16"),
}


def program_of(function: Function, shape: tuple[int, ...] = SHAPE, dtype: str = "f32") -> Program:
    given = weft.tensor(np.zeros(shape, BY_NAME[dtype].numpy))
    made: Program = weft.jit(function).program(given)
    return made


def compiled(program: Program, target: str = "sm90", **overrides: str) -> InterpretedExecutable:
    made = Compilation(program, target_named(target), make_signature(program), overrides)
    return InterpretedExecutable(run_pipeline(made))


def with_stages(made: InterpretedExecutable) -> tuple[Module, list[Kernel]]:
    module: Module = made.compilation["region"]
    return module, [kernel for kernel in module.kernels if kernel.stages]


def agrees(program: Program, made: InterpretedExecutable, seed: int = 0) -> None:
    module: Module = made.compilation["region"]
    (given,) = (module.tensors[name] for name in module.inputs)
    drawn = 4 * np.random.default_rng(seed).standard_normal(given.shape)
    x = drawn.astype(given.dtype.numpy)
    wanted = weft.run(program, [x], backend="reference")
    for got, want in zip(made.execute([x]), wanted, strict=True):
        off = np.abs(np.asarray(got, np.float64) - np.asarray(want, np.float64))
        allowed = 1e-2 if given.dtype.bits == 16 else 1e-5
        assert (off <= allowed * (1 + np.abs(np.asarray(want, np.float64)))).all()


def make_stages_cheap(patch: pytest.MonkeyPatch) -> None:
    """Small programs have stages as large ones have."""
    for name in ("slide_seconds", "shared_seconds"):
        patch.setattr(f"weft.region.cost.{name}", lambda *given: 0.0)
    patch.setattr("weft.region.from_poly_view._Lowering._repeats", lambda *given: True)
    patch.setattr("weft.region.from_poly_view._cheapest", lambda found, _: [*found.values()][-1])


def replanned(program: Program, **fields: Any) -> str:
    plans = json.loads(compiled(program).compilation.text("plan"))
    for plan in plans["plans"]:
        if plan["kind"] == "staged":
            plan |= fields
    return json.dumps(plans)
