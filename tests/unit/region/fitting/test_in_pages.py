"""Keys and values gathered from pages: read where they lie, unless somebody else reads what was
gathered."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.example_inputs import inputs_for
from tests.support.lowered import Lowered, given, lowered
from weft.driver.legalise import without_composites
from weft.ptir import Builder, Program, Value
from weft.region.forms.few_queries import pages_of
from weft.region.interp import run_module
from weft.region.ir import Pattern, attention_parts
from weft.tiny.from_ptir import lower_program

PAGES, SIZE = 6, 64


def program(*, size: int = SIZE, handed_out: bool = False, two_tables: bool = False) -> Program:
    b = Builder("paged")
    q = b.param("bf16", [2, 2, 1, 32])
    k, v = (b.param("bf16", [2 * PAGES, 2, size, 32]) for _ in range(2))
    table = b.param("si32", [2, PAGES])
    other = b.param("si32", [2, PAGES]) if two_tables else table

    def gathered(cache: Value, pages: Value) -> Value:
        found = b.transpose(b.take(cache, pages), [0, 2, 1, 3, 4])
        return b.reshape(found, [2, 2, PAGES * size, 32])

    keys, values = gathered(k, table), gathered(v, other)
    mixed = b.emit("weft.attention", q, keys, values, causal=False)[0]
    return b.build(mixed, keys) if handed_out else b.build(mixed)


def made(found: Program) -> Lowered:
    return lowered(lower_program(without_composites(found)), "sm90")


def arrays(found: Program) -> list[NDArray[Any]]:
    rng = np.random.default_rng(2)
    return [
        rng.permutation(2 * PAGES).reshape(2, PAGES).astype(np.int32)
        if array.dtype == np.int32
        else array
        for array in inputs_for(found, 1)
    ]


def patterns(found: Lowered) -> list[Pattern]:
    return [kernel.pattern for kernel in found.module.kernels]


def test_what_is_left_of_gathers_are_the_numbers_of_pages() -> None:
    found = made(program())
    checks, attention = found.module.kernels
    assert patterns(found) == [Pattern.MAP, Pattern.ATTENTION]
    (output,) = checks.outputs
    assert found.module.tensors[output.tensor].shape == (2, PAGES)
    pages = pages_of(attention, attention_parts(attention))
    assert pages is not None
    assert pages.size == SIZE
    assert {"in1", "in2", output.tensor} <= set(attention.inputs)


def test_kernels_that_read_pages_mean_the_same() -> None:
    source = program()
    found = made(source)
    named = given(found.graph, arrays(source))
    results, wanted = run_module(found.module, named), found.expected(named)
    for name, array in wanted.items():
        near = np.asarray(array, np.float32)
        assert np.allclose(np.asarray(results[name], np.float32), near, atol=2e-2)


@pytest.mark.parametrize(
    "source", [program(handed_out=True), program(size=20), program(two_tables=True)]
)
def test_others_are_gathered(source: Program) -> None:
    """Keys that are a result, pages that tiles do not fit, and tables that differ."""
    found = made(source)
    attentions = [k for k in found.module.kernels if k.pattern is Pattern.ATTENTION]
    assert all(pages_of(k, attention_parts(k)) is None for k in attentions)
    named = given(found.graph, arrays(source))
    results, wanted = run_module(found.module, named), found.expected(named)
    for name, array in wanted.items():
        near = np.asarray(array, np.float32)
        assert np.allclose(np.asarray(results[name], np.float32), near, atol=2e-2)
