"""Attention whose result a program uses in several ways: one kernel makes it, and a map what
is made of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

import weft
from tests.support.example_inputs import inputs_for
from tests.support.gpu_interpreted import InterpretedGpu
from weft import functional as F
from weft.ptir import Builder, Program
from weft.testing.compare import compare

SHAPE: Final = (1, 2, 96, 64)


def kernels(program: Program) -> list[str]:
    code = InterpretedGpu("sm90").compile(program).compilation["gpu"]
    return [name.rstrip("0123456789") for name in code.launches]


def agree(program: Program) -> None:
    report = compare(program, inputs_for(program, 3), InterpretedGpu("sm90"))
    assert report.agrees, str(report)


def with_its_own() -> Program:
    b = Builder("own")
    q, k, v = (b.param("bf16", list(SHAPE)) for _ in range(3))
    y = b.emit("weft.attention", q, k, v)[0]
    return b.build(y, b.exp(y))


def without_its_own() -> Program:
    b = Builder("others")
    q, k, v = (b.param("bf16", list(SHAPE)) for _ in range(3))
    y = b.emit("weft.attention", q, k, v)[0]
    return b.build(b.exp(y), y * y)


def before_rounding() -> Program:
    b = Builder("wide")
    q, k, v = (b.param("bf16", list(SHAPE)) for _ in range(3))
    sides: dict[str, Any] = {"contract": ([3], [3]), "batch": ([0, 1], [0, 1])}
    scores = b.dot_general(q, k, **sides, accum_dtype="f32", out_dtype="f32")
    weights = b.cast(b.softmax(scores), "bf16")
    across: dict[str, Any] = {"contract": ([3], [2]), "batch": ([0, 1], [0, 1])}
    y = b.dot_general(weights, v, **across, accum_dtype="f32", out_dtype="f32")
    return b.build(b.cast(y, "bf16"), b.cast(b.exp(y), "bf16"))


PROGRAMS: Final[dict[str, Callable[[], Program]]] = {
    "itself and more": with_its_own,
    "two that are made of it": without_its_own,
    "rounded and made of what was not": before_rounding,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_made_of_the_result_is_a_map(name: str) -> None:
    program = PROGRAMS[name]()
    assert [found[:3] for found in kernels(program)] == ["att", "map"]
    agree(program)


def test_a_loss_of_the_result_alone_leaves_attention_one_kernel() -> None:
    """Its cotangent is made of the result, beside it."""

    def trained(q: Any, k: Any, v: Any) -> Any:
        def loss(*given: Any) -> Any:
            return (F.attention(*given, causal=True).astype("f32") ** 2).mean()

        return weft.grad(loss, argnums=(0, 1, 2))(q, k, v)

    x = weft.zeros(SHAPE, dtype="bf16")
    program = weft.jit(trained).program(x, x, x)
    found = kernels(program)
    assert found.count("attention") == 1
    assert found.count("stream") == 2
    assert "matmul" not in found
    agree(program)
