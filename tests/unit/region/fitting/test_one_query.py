"""Attentions of one query: one kernel, with an axis for the query, where keys are many."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.example_inputs import inputs_for
from tests.support.lowered import Lowered, given, lowered
from weft.driver.legalise import without_composites
from weft.ptir import Builder, Program
from weft.region.forms.attention import find_attention
from weft.region.interp import run_module
from weft.region.ir import Pattern
from weft.tiny.from_ptir import lower_program


def attention(keys: int, depth: int = 32, shared: int = 1, queries: int = 1) -> Program:
    b = Builder("attention")
    q = b.param("bf16", [2, 4, queries, depth])
    k, v = (b.param("bf16", [2, 4 // shared, keys, depth]) for _ in range(2))
    return b.build(b.emit("weft.attention", q, k, v, causal=False)[0])


def made(program: Program, target: str = "sm90") -> Lowered:
    return lowered(lower_program(without_composites(program)), target)


@pytest.mark.parametrize("shared", [1, 2, 4])
def test_one_query_is_one_kernel_on_a_gpu(shared: int) -> None:
    program = attention(200, shared=shared)
    found = made(program)
    (kernel,) = found.module.kernels
    parts = find_attention(kernel)
    assert kernel.pattern is Pattern.ATTENTION
    assert parts is not None
    assert kernel.sizes[parts.query] == shared
    arrays = given(found.graph, inputs_for(program, 1))
    results, wanted = run_module(found.module, arrays), found.expected(arrays)
    for name, array in wanted.items():
        near = np.asarray(array, np.float32)
        assert np.allclose(np.asarray(results[name], np.float32), near, atol=2e-2)


@pytest.mark.parametrize("program", [attention(100), attention(200, depth=264)])
def test_few_keys_and_wide_rows_stay_several_kernels(program: Program) -> None:
    assert len(made(program).module.kernels) > 1


@pytest.mark.parametrize("shared", [1, 4])
def test_rows_of_256_elements_are_one_kernel(shared: int) -> None:
    assert len(made(attention(200, depth=256, shared=shared)).module.kernels) == 1


def test_a_processor_has_one_query_in_several_kernels() -> None:
    assert len(made(attention(200), "cpu").module.kernels) > 1
