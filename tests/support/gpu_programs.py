"""The three example programs on their way to GPU kernels, for tests: in f32 as their files say, and
the same in other dtypes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

from examples.make_programs import attention, mlp, softmax_layernorm
from weft.driver.pipeline import run_pipeline
from weft.driver.signature import make_signature
from weft.driver.stages.compilation import Compilation
from weft.ptir import Program, load
from weft.target.known import target_named

EXAMPLES = Path(__file__).parents[2] / "examples"
Maker = Callable[[str], Program]
MAKERS: dict[str, Callable[..., Program]] = {
    "mlp": mlp,
    "softmax_layernorm": softmax_layernorm,
    "attention": attention,
}
LARGE: dict[str, Maker] = {
    "mlp": lambda dtype: mlp(384, 768, 1536, 768, dtype=dtype),
    "rows in registers": lambda dtype: softmax_layernorm(1000, 4096, dtype=dtype),
    "rows of many warps": lambda dtype: softmax_layernorm(65, 16384, dtype=dtype),
    "rows of a cluster": lambda dtype: softmax_layernorm(40, 40_000, dtype=dtype),
    "rows read again": lambda dtype: softmax_layernorm(9, 120_000, dtype=dtype),
    "attention": lambda dtype: attention(4, 192, 64, 512, dtype=dtype),
}
ODD: dict[str, Maker] = {
    "mlp": lambda dtype: mlp(7, 13, 37, 5, dtype=dtype),
    "one row": lambda dtype: mlp(1, 1, 1, 1, dtype=dtype),
    "no rows": lambda dtype: mlp(0, 8, 8, 8, dtype=dtype),
    "nothing to add up": lambda dtype: mlp(4, 0, 8, 8, dtype=dtype),
    "rows": lambda dtype: softmax_layernorm(5, 37, dtype=dtype),
    "long odd rows": lambda dtype: softmax_layernorm(3, 5001, dtype=dtype),
    "attention": lambda dtype: attention(3, 7, 10, 13, dtype=dtype),
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
