"""The CUDA source of three kernels, one of each template that models live on, word for word: what
changes it by chance shows here."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.gpu_programs import through_stages
from weft.ptir import Builder, Program


def _elementwise() -> Program:
    b = Builder()
    x, bias = b.param("bf16", [64, 96]), b.param("bf16", [96])
    return b.build(b.silu(x + b.broadcast_to(bias, [64, 96])))


def _softmax() -> Program:
    b = Builder()
    return b.build(b.softmax(b.param("f32", [40, 100]), 1))


def _linear() -> Program:
    b = Builder()
    x, w, bias = b.param("bf16", [256, 192]), b.param("bf16", [192, 128]), b.param("bf16", [128])
    y = b.matmul(x, w) + b.broadcast_to(bias, [256, 128])
    return b.build(b.maximum(y, b.full([256, 128], 0.0, "bf16")))


PROGRAMS: dict[str, Callable[[], Program]] = {
    "elementwise": _elementwise,
    "softmax": _softmax,
    "linear": _linear,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_cuda_source(name: str, golden: Callable[[str, str], None]) -> None:
    ((symbol, source),) = through_stages(PROGRAMS[name](), "sm90")["cu"].sources.items()
    # The functions of the prelude, which come before it, have tests of their own.
    _, start, kernel = source.partition('extern "C"')
    golden(f"cu/{name}.cu", f"{start}{kernel}".replace(symbol, name))
