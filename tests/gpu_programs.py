"""The three example programs on their way to GPU kernels, for tests: in f32 as their files say, and
the same in other dtypes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

from examples.make_programs import attention, mlp, softmax_layernorm
from weft.driver.compilation import Compilation
from weft.driver.pipeline import run_pipeline
from weft.driver.signature import make_signature
from weft.ptir import Program, load
from weft.target.known import target_named

EXAMPLES = Path(__file__).parents[1] / "examples"
MAKERS: dict[str, Callable[..., Program]] = {
    "mlp": mlp,
    "softmax_layernorm": softmax_layernorm,
    "attention": attention,
}
TARGETS = ("sm80", "sm90")
CASES = [
    (name, dtype, target) for target in TARGETS for name in MAKERS for dtype in ("f32", "bf16")
]


def program(name: str, dtype: str) -> Program:
    if dtype == "f32":
        return load(EXAMPLES / f"{name}.ptir.txt")
    return MAKERS[name](dtype=dtype)


@cache
def compiled(name: str, dtype: str, target: str) -> Compilation:
    """Every stage of an example, down to CUDA text."""
    return through_stages(program(name, dtype), target)


def through_stages(source: Program, target: str, **overrides: str) -> Compilation:
    """Every stage of a program; `overrides` are texts of stages that are read instead of made."""
    signature = make_signature(source)
    return run_pipeline(Compilation(source, target_named(target), signature, overrides))
