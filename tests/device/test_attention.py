"""Attention and its gradients on a GPU: every case of masks, bands, shared heads and odd sizes."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.example_inputs import inputs_for
from tests.support.gpu_attention import CASES, FEW, GRADIENTS, Case
from tests.support.gpu_dropped import CASES as DROPPED
from tests.support.gpu_packed import CASES as PACKED
from tests.support.spelled_attention import SPELLED, program_of
from tests.support.written_attention import FACTORS, STORED, sinks_trained, stored, with_factors
from weft.driver.compile import compile_program
from weft.driver.cuda import CudaBackend
from weft.ptir import Program
from weft.ptir.gradient import vjp
from weft.runtime.cuda.driver import compute_capability
from weft.testing.compare import compare

pytestmark = pytest.mark.skipif(
    compute_capability() != (9, 0), reason="these programs are for an SM90 GPU"
)

DROPPED_STATE = np.array([12345678901, 77], np.int64)
LONG = {
    "causal": Case(heads=3, queries=1100, keys=1100, causal=True, depth=128, width=128),
    "shared heads": Case(heads=8, shared=4, queries=700, keys=900, causal=True),
    "window": Case(heads=2, queries=1500, keys=1500, window=100),
}
"""With blocks enough that rings turn and tiles are dealt out."""


def agree(program: Program, target: str = "sm90") -> None:
    report = compare(program, inputs_for(program, 3), CudaBackend(target))
    assert report.agrees, str(report)


@pytest.mark.parametrize("name", CASES)
def test_attentions_agree(name: str) -> None:
    agree(CASES[name].program())


@pytest.mark.parametrize("name", FEW)
def test_few_queries_agree(name: str) -> None:
    agree(FEW[name].program())


@pytest.mark.parametrize("name", CASES)
def test_attentions_by_single_warps_agree(name: str) -> None:
    agree(CASES[name].program(), "sm80")


@pytest.mark.parametrize("name", FEW)
def test_few_queries_by_single_warps_agree(name: str) -> None:
    agree(FEW[name].program(), "sm80")


@pytest.mark.parametrize(("heads", "keys"), [(1, 16384), (96, 1000)])
def test_few_queries_agree_in_many_parts_and_in_one(heads: int, keys: int) -> None:
    agree(Case(heads=4 * heads, shared=4, queries=1, keys=keys, depth=128, width=128).program())


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_agree(name: str) -> None:
    agree(GRADIENTS[name].gradients())


@pytest.mark.parametrize("name", PACKED)
def test_packed_sequences_agree(name: str) -> None:
    case = PACKED[name]
    for program in (case.program(), vjp(case.program(), (0, 1, 2))):
        report = compare(program, case.inputs(program), CudaBackend("sm90"))
        assert report.agrees, str(report)


@pytest.mark.parametrize("name", DROPPED)
def test_dropped_weights_agree(name: str) -> None:
    program = DROPPED[name].program()
    for wanted in (program, vjp(program, (0, 1, 2))):
        inputs = inputs_for(wanted, 3)
        inputs[3] = DROPPED_STATE
        report = compare(wanted, inputs, CudaBackend("sm90"))
        assert report.agrees, str(report)


@pytest.mark.parametrize("target", ["sm90", "sm80"])
@pytest.mark.parametrize("name", SPELLED)
def test_attention_in_any_spelling_agrees_with_gradients(name: str, target: str) -> None:
    agree(program_of(SPELLED[name]), target)


@pytest.mark.parametrize("target", ["sm90", "sm80"])
@pytest.mark.parametrize("name", FACTORS)
def test_other_weights_than_powers_over_their_sum_agree(name: str, target: str) -> None:
    for queries, keys in ((40, 40), (1, 200), (700, 700)):
        agree(with_factors(FACTORS[name], queries, keys), target)


@pytest.mark.parametrize("target", ["sm90", "sm80"])
def test_sinks_are_trained(target: str) -> None:
    agree(sinks_trained(), target)


@pytest.mark.parametrize("target", ["sm90", "sm80"])
@pytest.mark.parametrize("name", STORED)
def test_what_lies_otherwise_agrees(name: str, target: str) -> None:
    agree(stored(name), target)


@pytest.mark.parametrize("name", LONG)
def test_gradients_of_many_blocks_agree(name: str) -> None:
    agree(LONG[name].gradients())


@pytest.mark.parametrize("name", LONG)
def test_gradients_have_the_same_bits_in_every_run(name: str) -> None:
    program = LONG[name].gradients()
    executable, inputs = compile_program(program, "sm90"), inputs_for(program, 5)
    first = executable.run(inputs)
    for _ in range(5):
        for one, other in zip(first, executable.run(inputs), strict=True):
            np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
