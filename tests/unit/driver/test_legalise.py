"""Legalisation: what a backend lacks is decomposed, and what cannot be is refused by name."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import weft
from tests.support.cases import each
from tests.support.one_op import bits, random_array
from weft.driver import backends
from weft.driver.backends import register_backend
from weft.driver.conversion import LegalitySpec, check_program_legality
from weft.driver.legalise import legalise
from weft.driver.reference import ReferenceBackend, ReferenceExecutable
from weft.foundation.dtypes import ANY, F32, I1
from weft.foundation.errors import Unimplemented
from weft.ptir import Builder, Program
from weft.ptir.composite import Composite
from weft.ptir.decompositions import DECOMPOSITIONS
from weft.ptir.ir import HintKind, HintPolicy, HintRegion
from weft.ptir.op import CORE, Op
from weft.ptir.passes.log import PassLog
from weft.ptir.types import TensorType, leaves
from weft.ptir.verify import verify

PUBLIC = frozenset(cls.wire_name for tag, cls in CORE.items() if tag <= 36)
PLAIN = LegalitySpec("plain", PUBLIC, ANY)
"""The 37 ops of the public contract, no custom call, no hint."""


class PlainBackend(ReferenceBackend):
    """The reference backend, as if it knew the public contract only."""

    name = "plain"
    ops = PUBLIC
    hints = frozenset[HintKind]()

    def supports(self, op: Op) -> bool:
        return False

    def compile(self, program: Program) -> ReferenceExecutable:
        assert check_program_legality(program, self) == []
        return super().compile(program)


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends.REGISTRY, "registered", {})
    register_backend(PlainBackend())


def names(program: Program) -> list[str]:
    return [i.op.mnemonic for body in program.bodies for i in body.body]


def clamp(b: Any) -> Any:
    return b.clamp(b.param("f32", [5]), -1.0, 1.0)


def built(build: Callable[[Any], Any]) -> Program:
    b = Builder()
    return b.build(build(b))


def results(program: Program, backend: str) -> list[bytes]:
    arrays = []
    for kind in program.main.parameters:
        for index, leaf in enumerate(leaves(kind)):
            arrays.append(random_array(leaf.dtype, leaf.static_shape, index))
    return [bits(array) for array in weft.run(program, arrays, backend=backend, seed=7)]


# -- every op that has a decomposition -----------------------------------------------------------

NO_GRADIENT = "ptir.v0.4\nentry @none\n\nfunc @none() -> () {\n  return\n}\n"
ONE_OPERAND = ["isnan", "isinf", "isfinite", "sign", "trunc", "floor", "ceil", "round"]
EXAMPLES: dict[str, Callable[[Any], Any]] = {
    "clamp": clamp,
    "layer_norm": lambda b: b.layer_norm(
        b.param("f64", [3, 4]), b.param("f64", [4]), b.param("f64", [4]),
        epsilon=1e-5, feature_axis=1,
    ),
    "bitwise_not": lambda b: b.bitwise_not(b.param("si32", [5])),
    "bitwise_and": lambda b: b.bitwise_and(b.param("i1", [5]), b.param("i1", [5])),
    "bitwise_or": lambda b: b.bitwise_or(b.param("i1", [5]), b.param("i1", [5])),
    "bitwise_xor": lambda b: b.bitwise_xor(b.param("i1", [5]), b.param("i1", [5])),
    "fmod": lambda b: b.fmod(b.param("si32", [5]), b.literal([3, 5, -7, 2, 1], "si32")),
    "real": lambda b: b.real(b.param("cf32", [5])),
    "custom_gradient": lambda b: b.emit(
        "custom_gradient", b.param("f32", [5]), b.param("f32", [4]),
        results=1, kept=1, inputs=0, backward=NO_GRADIENT,
    ),
    "barrier": lambda b: b.barrier(b.param("f32", [5]), b.param("si32", [2])),
    "reduce_any": lambda b: b.reduce_any(b.param("i1", [3, 4]), axes=[1], keepdims=False),
    "reduce_all": lambda b: b.reduce_all(b.param("i1", [3, 4]), axes=[0], keepdims=True),
    "argmin": lambda b: b.argmin(
        b.param("f32", [3, 4]), axis=-1, keepdims=False, output_dtype="si32"
    ),
    "sort": lambda b: b.sort(b.param("f32", [7]), axis=0, descending=False),
    "argsort": lambda b: b.argsort(
        b.param("f32", [7]), axis=0, descending=True, output_dtype="si32"
    ),
    "searchsorted": lambda b: b.searchsorted(
        b.literal([1.0, 2.0, 4.0]), b.param("f32", [6]), side="left", output_dtype="si32"
    ),
    "cumulative_sum": lambda b: b.cumulative_sum(b.param("si32", [3, 4]), axis=1, reverse=False),
    "cumulative_max": lambda b: b.cumulative_max(
        b.param("f32", [3, 4]), axis=0, reverse=True
    ),
    "cumulative_min": lambda b: b.cumulative_min(
        b.param("f32", [3, 4]), axis=1, reverse=False
    ),
    **{
        name: (lambda b, name=name: b.emit(name, b.param("f32", [6])))  # type: ignore[misc]
        for name in ONE_OPERAND
    },
}  # fmt: skip


def test_every_decomposition_has_an_example() -> None:
    own = {cls.name for cls in DECOMPOSITIONS if not issubclass(cls, Composite)}
    assert own == set(EXAMPLES)


@each("name", sorted(EXAMPLES))
def test_decomposed_program_is_legal_and_computes_the_same(name: str) -> None:
    program = built(EXAMPLES[name])
    assert name in names(program)
    assert check_program_legality(program, PLAIN)
    log = PassLog()
    legal = legalise(program, PLAIN, log)
    verify(legal)
    assert check_program_legality(legal, PLAIN) == []
    assert name not in names(legal)
    assert [fired.rule for fired in log.fired][:1] == [f"decompose-{name}"]
    if name != "layer_norm":  # a square root of its own in the last bits
        assert results(program, "plain") == results(program, "reference")
    else:
        ours, wanted = (
            np.frombuffer(results(program, backend)[0], np.float64)
            for backend in ("plain", "reference")
        )
        np.testing.assert_allclose(ours, wanted, rtol=1e-12, atol=1e-12)


# -- only what is needed -------------------------------------------------------------------------


def test_program_that_fits_is_returned_as_it_is() -> None:
    program = built(clamp)
    everything = replace(PLAIN, ops=PUBLIC | {"Clamp"})
    log = PassLog()
    assert legalise(program, everything, log) is program
    assert log.entries == []


def test_supported_ops_stay() -> None:
    program = built(lambda b: b.clamp(b.floor(b.param("f32", [5])), -1.0, 1.0))
    spec = replace(PLAIN, targets=frozenset({"weft.floor.v1"}))
    found = names(legalise(program, spec))
    assert "floor" in found
    assert "clamp" not in found
    spec = replace(PLAIN, ops=PUBLIC | {"Clamp"})
    found = names(legalise(program, spec))
    assert "floor" not in found
    assert "clamp" in found


def test_regions_are_legalised_too() -> None:
    def build(b: Any) -> Any:
        pred, x = b.param("i1"), b.param("f32", [5])
        return b.cond(pred, lambda r, v: r.clamp(v, 0.0, 1.0), lambda r, v: r.neg(v), x)

    program = built(build)
    legal = legalise(program, PLAIN)
    assert "clamp" not in names(legal)
    assert results(program, "plain") == results(program, "reference")


def test_lines_are_kept() -> None:
    program = built(clamp)
    spec = replace(PLAIN, ops=PUBLIC - {"ElementwiseBinary"})
    with pytest.raises(Unimplemented, match=r"it is %\d+ = maximum.*\(test_legalise.py:\d+\)$"):
        legalise(program, spec)


def test_random_numbers_stay_the_same() -> None:
    def build(b: Any) -> Any:
        first = b.rng_uniform(shape=[8], dtype="f32")
        clamped = b.clamp(first, 0.25, 0.75)
        return clamped + b.rng_normal(shape=[8], dtype="f32")

    program = built(build)
    assert results(program, "plain") == results(program, "reference")


# -- what is left --------------------------------------------------------------------------------


def test_op_without_decomposition_is_named_with_place_and_reason() -> None:
    program = built(lambda b: b.sqrt(clamp(b)))
    with pytest.raises(Unimplemented) as caught:
        legalise(program, PLAIN)
    assert caught.value.op == "custom call 'weft.sqrt.v1'"
    assert re.fullmatch(
        r"Unimplemented custom call 'weft.sqrt.v1': the backend 'plain' does not support the "
        r"custom call 'weft.sqrt.v1'; it is %\d+ = sqrt\(%\d+\) in function @main "
        r"\(test_legalise.py:\d+\)",
        str(caught.value),
    )


def test_instance_without_exact_form_is_refused() -> None:
    """`sign` has an exact form for real numbers only."""
    program = built(lambda b: b.sign(b.param("cf32", [2])))
    with pytest.raises(Unimplemented, match=r"does not support the custom call 'weft.sign.v1'"):
        legalise(program, PLAIN)


def test_unknown_custom_call_is_refused() -> None:
    def build(b: Any) -> Any:
        x = b.param("f32", [2])
        return b.custom_call("acme.kernel.v1", x, output=x.type)

    with pytest.raises(Unimplemented, match=r"does not support the custom call 'acme.kernel.v1'"):
        legalise(built(build), PLAIN)
    with pytest.raises(Unimplemented, match=r"custom call 'acme.kernel.v1'"):
        weft.run(built(build), [np.zeros(2, np.float32)])


def test_dtypes_are_not_changed() -> None:
    program = built(lambda b: b.clamp(b.param("f64", [2]), 0.0, 1.0))
    with pytest.raises(Unimplemented, match=r"parameter: .* does not support the dtype f64"):
        legalise(program, replace(PLAIN, dtypes=frozenset({F32, I1})))


# -- hints ---------------------------------------------------------------------------------------


def hinted(policy: HintPolicy) -> Program:
    b = Builder()
    x, lo, hi = (b.param("f32", [5]) for _ in range(3))
    program = b.build(b.clamp(b.neg(x), lo, hi))
    body = program.main.body
    hint = HintRegion(0, HintKind.ELEMENTWISE_DAG, policy, (0, 1, 2), (body[-1].id,), body)
    made = program.with_main(replace(program.main, hints=(hint,)))
    verify(made)
    return made


@pytest.mark.parametrize("policy", HintPolicy)
def test_hint_follows_its_instructions(policy: HintPolicy) -> None:
    spec = replace(PLAIN, hints=frozenset(HintKind))
    legal = legalise(hinted(policy), spec)
    verify(legal)
    (hint,) = legal.main.hints
    assert [i.op.mnemonic for i in hint.body] == ["neg", "maximum", "minimum"]


def test_unmet_required_hint_is_unimplemented() -> None:
    with pytest.raises(Unimplemented, match="cannot run a required elementwise_dag"):
        legalise(hinted(HintPolicy.REQUIRED), PLAIN)
    assert legalise(hinted(HintPolicy.PREFERRED), PLAIN).main.hints


def test_required_hint_of_a_dynamic_program_is_not_forgotten() -> None:
    b = Builder()
    program = b.build(b.neg(b.param("f32", ["?B"])))
    body = program.main.body
    hint = HintRegion(0, HintKind.ELEMENTWISE_DAG, HintPolicy.REQUIRED, (0,), (1,), body)
    program = program.with_main(replace(program.main, hints=(hint,)))
    array = np.ones(3, np.float32)
    assert weft.run(program, [array], backend="cpu")[0].tolist() == [-1, -1, -1]
    with pytest.raises(Unimplemented, match="cannot run a required elementwise_dag"):
        weft.run(program, [array], backend="plain")


# -- weft.run ------------------------------------------------------------------------------------


def test_run_legalises_and_tells_the_log() -> None:
    program = built(clamp)
    log = PassLog()
    array = np.array([-3, -0.5, 0, np.inf, np.nan], np.float32)
    (found,) = weft.run(program, [array], backend="plain", log=log)
    np.testing.assert_array_equal(found, np.array([-1, -0.5, 0, 1, np.nan], np.float32))
    (fired,) = log.fired
    assert str(fired).startswith("decompose-clamp: %3 = clamp(%0, %1, %2) in function @main (")


def test_run_on_the_reference_decomposes_nothing() -> None:
    log = PassLog()
    weft.run(built(clamp), [np.zeros(5, np.float32)], log=log)
    assert log.entries == []


def test_dynamic_program_is_legalised_for_its_sizes() -> None:
    program = built(lambda b: b.clamp(b.param("f32", ["?B"]), -1.0, 1.0))
    for size in (0, 1, 4):
        (found,) = weft.run(program, [np.full(size, 9, np.float32)], backend="plain")
        assert found.tolist() == [1.0] * size


def test_results_have_the_declared_types() -> None:
    for build in EXAMPLES.values():
        program = built(build)
        legal = legalise(program, PLAIN)
        assert legal.main.results == program.main.results
        assert all(isinstance(kind, TensorType) for kind in legal.main.results)
