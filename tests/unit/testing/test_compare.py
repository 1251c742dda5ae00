"""Planted faults: the comparison finds each one and names the instruction."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

import weft
from tests.support.cases import one_in
from tests.unit.testing.faulty import FaultyBackend
from weft.driver.reference import ReferenceBackend, ReferenceExecutable
from weft.foundation.errors import SpecViolation, Unimplemented, UserError
from weft.ptir import Builder, Program
from weft.ptir.streams import assign_streams
from weft.testing import Report, compare, disagrees, random_program
from weft.testing.sensitivity import disturbed


def chain() -> tuple[Program, list[Any]]:
    """%2 tanh, %3 exp, %4 reduce_sum, %6 mul, %7 top_k, %8 add."""
    b = Builder()
    x, n = b.param("f32", [4]), b.param("si32", [4])
    y = b.exp(b.tanh(x))
    total = b.reduce_sum(y, [0])
    scaled = b.emit("mul", n, n)
    top = b.emit("top_k", scaled, k=2, axis=0, largest=True, indices_dtype="si64")
    program = b.build(total, top, b.emit("add", top[0], top[0]))
    return program, [np.asarray([0.1, -0.2, 0.3, 2.0], np.float32), np.arange(4, dtype=np.int32)]


@pytest.mark.parametrize(
    ("spelling", "value_id"),
    [("tanh", 2), ("exp", 3), ("reduce_sum", 4), ("mul", 5), ("top_k", 6), ("add", 7)],
)
def test_a_fault_in_one_op_is_named(spelling: str, value_id: int) -> None:
    program, inputs = chain()
    report = compare(program, inputs, FaultyBackend(spelling))
    assert not report.agrees
    assert report.deviation is not None
    assert report.deviation.instruction.id == value_id
    assert report.deviation.instruction.op.mnemonic == spelling
    assert report.deviation.place.startswith(f"%{value_id} = {spelling}(")
    assert "in function @main" in report.deviation.place
    assert not report.deviation.around


def test_the_element_of_a_tuple_is_named() -> None:
    program, inputs = chain()

    def second_only(array: Any) -> Any:
        return array + 1 if array.dtype == np.int64 else array

    report = compare(program, inputs, FaultyBackend("top_k", second_only))
    assert report.deviation is not None
    assert report.deviation.element == 1
    assert "%6 = top_k(%5) in function @main" in report.deviation.place
    assert ", element 1\n" in str(report)


def test_agreement() -> None:
    program, inputs = chain()
    report = compare(program, inputs, "reference")
    assert report.agrees
    assert report.deviation is None
    assert len(report.results) == 4
    assert str(report) == "reference agrees with reference on 4 results"
    assert not disagrees(program, inputs, "reference")


def test_the_report_says_what_and_where() -> None:
    program, inputs = chain()
    text = str(compare(program, inputs, FaultyBackend("mul")))
    lines = text.splitlines()
    assert lines[0] == "faulty-mul differs from reference"
    assert lines[1].startswith("result 1: 2 of 2 elements differ; at [0] it is 8, not 9")
    assert "first at %5 = mul(%1, %1) in function @main" in text
    assert lines[-1].startswith("  4 of 4 elements differ; at [0] it is 1, not 0")


# -- backends that cannot return everything ------------------------------------------------------


@pytest.mark.parametrize("spelling", ["tanh", "exp", "reduce_sum"])
def test_prefixes_are_tried_when_not_all_values_can_be_returned(spelling: str) -> None:
    b = Builder()
    x = b.param("f32", [3])
    program = b.build(b.reduce_sum(b.exp(b.tanh(x)), [0]))
    backend = FaultyBackend(spelling, most_results=1)
    report = compare(program, [np.asarray([0.5, 1.0, -1.0], np.float32)], backend)
    assert report.deviation is not None
    assert report.deviation.instruction.op.mnemonic == spelling


def test_long_programs_are_searched_by_halving() -> None:
    b = Builder()
    x = b.param("f32", [3])
    y = x
    for index in range(200):
        y = b.tanh(y) if index == 120 else b.emit("neg", y)
    backend = FaultyBackend("tanh", most_results=1)
    report = compare(b.build(y), [np.asarray([0.5, 1.0, -1.0], np.float32)], backend)
    assert report.deviation is not None
    assert report.deviation.instruction.id == 121
    assert backend.compiled < 20


class FusingBackend(FaultyBackend):
    """Wrong only when exp is not returned: as if it were fused with what follows."""

    def compile(self, program: Program) -> ReferenceExecutable:
        returned = set(program.main.result_ids)
        inner = [i for i in program.main.body if i.op.mnemonic == "exp" and i.id not in returned]
        if inner:
            return super().compile(program)
        return ReferenceBackend.compile(self, program)


def test_a_fault_that_disappears_when_looked_at() -> None:
    b = Builder()
    x = b.param("f32", [3])
    program = b.build(b.emit("neg", b.exp(x)))
    report = compare(program, [np.asarray([0.5, 1.0, -1.0], np.float32)], FusingBackend("exp"))
    assert not report.agrees
    assert report.deviation is not None
    assert report.deviation.instruction.op.mnemonic == "neg"


class Crashing(ReferenceBackend):
    name = "crashing"

    def compile(self, program: Program) -> ReferenceExecutable:
        if any(i.op.mnemonic == "exp" for i in program.main.body):
            raise RuntimeError("no such kernel")
        return super().compile(program)


def test_a_backend_that_fails_is_reported_with_the_instruction() -> None:
    program, inputs = chain()
    report = compare(program, inputs, Crashing())
    assert not report.agrees
    assert report.failure.startswith(
        "it failed in compile with RuntimeError: no such kernel (test_"
    )
    assert report.deviation is not None
    assert report.deviation.instruction.id == 3
    assert str(report).count("no such kernel") == 1
    assert disagrees(program, inputs, Crashing())


class Refusing(ReferenceBackend):
    name = "refusing"

    def compile(self, program: Program) -> ReferenceExecutable:
        if any(i.op.mnemonic == "exp" for i in program.main.body):
            raise Unimplemented("exp", "not today")
        return super().compile(program)


def test_a_backend_that_refuses_a_program_does_not_differ() -> None:
    program, inputs = chain()
    report = compare(program, inputs, Refusing())
    assert not report.agrees
    assert report.unimplemented
    lines = str(report).splitlines()
    assert lines[0] == "refusing refuses the program: Unimplemented exp: not today"
    assert lines[1].startswith("first at %3 = exp(%2) in function @main")
    assert len(lines) == 2
    assert not disagrees(program, inputs, Refusing())


# -- control flow --------------------------------------------------------------------------------


def loops() -> tuple[Program, list[Any]]:
    """A scan whose body has a cond with a tanh in one branch, and a while."""
    b = Builder()
    xs, start = b.param("f32", [4, 2]), b.param("f32", [2])

    def step(r: Any, carry: Any, x: Any) -> Any:
        flag = r.compare(r.reduce_sum(x, [0]), r.literal(np.float32(0.5)), "less")
        inner = r.cond(flag, lambda q, v: q.tanh(v), lambda q, v: q.emit("neg", v), x)
        return [carry + inner, inner]

    scanned = b.scan(step, [start], [xs])

    def test(r: Any, count: Any, v: Any) -> Any:
        return [r.compare(count, r.literal(np.int32(3)), "less"), count, v]

    def body(r: Any, count: Any, v: Any) -> Any:
        return [count + 1, r.exp(v * 0.25)]

    looped = b.while_(test, body, b.literal(np.int32(0)), scanned[0])
    data = np.asarray([[1, 1], [2, 2], [-1, 0.25], [3, 3]], np.float32)
    return b.build(looped[1], scanned[1]), [data, np.zeros(2, np.float32)]


@pytest.mark.parametrize(
    ("spelling", "around"),
    [("tanh", ["scan", "cond"]), ("neg", ["scan", "cond"]), ("exp", ["while"])],
)
def test_a_fault_inside_a_region_is_named_with_its_path(spelling: str, around: list[str]) -> None:
    program, inputs = loops()
    report = compare(program, inputs, FaultyBackend(spelling))
    found = report.deviation
    assert found is not None
    assert found.instruction.op.mnemonic == spelling
    assert "in region ^" in found.place
    assert [text.split(" = ")[1].split("(")[0] for text in found.around] == around
    assert f"inside {found.around[0]}" in str(report)


def test_a_fault_of_the_control_flow_itself_stays_there() -> None:
    program, inputs = loops()

    class Backend(ReferenceBackend):
        name = "wrong-scan"

        def compile(self, program: Program) -> ReferenceExecutable:
            scans = any(i.op.mnemonic == "scan" for i in program.main.body)
            return _Tampered(super().compile(program), scans)

    report = compare(program, inputs, Backend())
    assert report.deviation is not None
    assert report.deviation.instruction.op.mnemonic == "scan"
    assert not report.deviation.around


class _Tampered(ReferenceExecutable):
    """Everything that a program with a loop returns is wrong."""

    def __init__(self, inner: ReferenceExecutable, tamper: bool) -> None:
        self._inner = inner
        self._tamper = tamper

    def execute(self, inputs: Any, *, seed: int = 0, observer: Any = None) -> Any:
        results = self._inner.execute(inputs, seed=seed, observer=observer)
        return [array + 1 for array in results] if self._tamper else results


# -- random programs -----------------------------------------------------------------------------


class OtherRounding(ReferenceBackend):
    """A correct backend that rounds differently wherever it may."""

    name = "other-rounding"

    def compile(self, program: Program) -> ReferenceExecutable:
        return super().compile(disturbed(assign_streams(program), 1001, ulps=1.0))


@pytest.mark.parametrize("first", one_in(3, range(0, 30, 10)))
def test_a_backend_that_only_rounds_differently_agrees(first: int) -> None:
    differing = 0
    for seed in range(first, first + 10):
        case = random_program(seed)
        report = compare(case.program, case.inputs, OtherRounding())
        assert report.agrees, f"seed {seed}: {report}"
        plain = weft.run(case.program, case.inputs)
        other = weft.run(case.program, case.inputs, backend=OtherRounding())
        differing += any(a.tobytes() != b.tobytes() for a, b in zip(plain, other, strict=True))
    assert differing > 2


def test_faults_in_random_programs_are_hardly_ever_blamed_on_another_op() -> None:
    """A narrow value may be wrong within its bound; the first to leave its own then comes later."""
    found = right = 0
    for seed in range(30):
        case = random_program(seed, 12)
        plain = [
            i.op.mnemonic for body in case.program.bodies for i in body.body if not i.op.regions
        ]
        if not plain:
            continue
        spelling = plain[len(plain) // 2]
        report = compare(case.program, case.inputs, FaultyBackend(spelling))
        if not report.agrees:
            found += 1
            assert report.deviation is not None
            right += report.deviation.instruction.op.mnemonic == spelling
    assert found > 15
    assert right >= 0.9 * found


# -- what else it tells --------------------------------------------------------------------------


def test_a_result_that_hangs_on_one_ulp_is_marked() -> None:
    b = Builder()
    x = b.param("f32", [64])
    program = b.build(b.emit("floor", b.exp(x) * 1000.0), b.cast(b.exp(x) * 1e6, "si32"))
    inputs = [np.linspace(0.1, 0.9, 64, dtype=np.float32)]
    report = compare(program, inputs, FaultyBackend("cast"))
    assert "a rounding error upstream changes it on the reference as well" in str(report)


def test_signs_of_factors_are_open() -> None:
    b = Builder()
    x = b.param("f64", [3, 3])
    q, r = b.emit("qr", x, mode="reduced")
    program = b.build(b.matmul(q, r))
    inputs = [np.arange(9.0).reshape(3, 3) + 4 * np.eye(3)]
    assert compare(program, inputs, FaultyBackend("qr", np.negative)).agrees
    assert not compare(program, inputs, FaultyBackend("qr")).agrees


def test_seeds_reach_the_random_ops() -> None:
    b = Builder()
    program = b.build(b.emit("rng_uniform", shape=[4], dtype="f32"))
    assert compare(program, [], "reference", seed=3).agrees
    assert weft.run(program, seed=3)[0].tolist() != weft.run(program, seed=4)[0].tolist()


def test_dynamic_programs_are_compared_for_the_sizes_of_the_inputs() -> None:
    b = Builder()
    x = b.param("f32", ["?B", 2])
    program = b.build(b.tanh(x))
    inputs = [np.full((3, 2), 0.5, np.float32)]
    assert compare(program, inputs, "reference").agrees
    assert not compare(program, inputs, FaultyBackend("tanh")).agrees


def test_invalid_programs_are_refused() -> None:
    program, inputs = chain()
    broken = Program("nowhere", program.functions)
    with pytest.raises(SpecViolation, match="EntryUndefined"):
        compare(broken, inputs, "reference")


def test_an_empty_report_agrees() -> None:
    assert Report("x", ()).agrees
    assert str(Report("x", ())) == "x agrees with reference on 0 results"


class Spoils(ReferenceBackend):
    """Answers rightly, and writes over its inputs afterwards, past NumPy."""

    name = "spoils"

    def compile(self, program: Program) -> Any:
        right = ReferenceExecutable(program)

        class Spoiling:
            def execute(self, inputs: Any, **options: Any) -> Any:
                results = right.execute(inputs, **options)
                for array in inputs:
                    ctypes.memset(array.ctypes.data, 0, array.nbytes)
                return results

        return Spoiling()


def test_a_backend_that_overwrites_its_inputs_is_caught_and_spoils_nothing() -> None:
    program, inputs = chain()
    before = [array.tobytes() for array in inputs]
    report = compare(program, inputs, Spoils())
    assert not report.agrees
    assert report.failure == "it overwrites input 0"
    assert disagrees(program, inputs, Spoils())
    assert [array.tobytes() for array in inputs] == before


@pytest.mark.parametrize("backend", [None, 3, ReferenceBackend])
def test_what_is_no_backend_is_a_wrong_call(backend: Any) -> None:
    program, inputs = chain()
    for question in (compare, disagrees):
        with pytest.raises(UserError, match="backend"):
            question(program, inputs, backend)
