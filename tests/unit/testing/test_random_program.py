"""The generator of random programs: what occurs in them, what it knows about their values, and
that a seed means one program."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from tests.support.cases import each, one_in
from weft.foundation.dtypes import ALL, BF16, F32, I1, SI32, DType, as_dtype
from weft.foundation.errors import UserError
from weft.ptir import Program, TensorType, TupleType, all_ops, dumps, verify
from weft.ptir.ir import ElementRef, operand_type
from weft.ptir.literal import TensorLiteral
from weft.ptir.op import Op
from weft.ptir.ops.callback import Callback
from weft.ptir.ops.collective import OfRanks, Reshard
from weft.ptir.ops.constant import CustomCall
from weft.ptir.ops.contraction import DotGeneral
from weft.ptir.ops.control import Cond, Scan, While
from weft.ptir.types import Symbol, leaves, symbols_of
from weft.testing import GENERATORS, random_program
from weft.testing.choices import Choices
from weft.testing.data import DataSource
from weft.testing.draft import Draft, Item
from weft.testing.generators import NOT_GENERATED
from weft.testing.random_programs import drafted, rules_for

Array = NDArray[Any]
SOURCE = str(Path(weft.__file__).parents[1])
SEEDS = 2200


def test_every_op_has_a_generator() -> None:
    """An op without one would silently never be tested: write it, in `weft.testing.generators`."""
    ours = {cls for cls in all_ops() if cls.__module__.startswith("weft.ptir")}
    several = {cls for cls in ours if issubclass(cls, OfRanks)}
    assert set(NOT_GENERATED) == {Callback, CustomCall, Reshard, *several}
    assert ours - set(GENERATORS) == set(NOT_GENERATED)
    assert not set(GENERATORS) & set(NOT_GENERATED)


# -- coverage ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cases() -> list[tuple[Program, list[Array]]]:
    made = (random_program(seed, 8) for seed in range(SEEDS))
    return [(case.program, case.inputs) for case in made]


def types_of(program: Program) -> Iterator[Any]:
    for body in program.bodies:
        for kind in (*body.parameters, *(i.output for i in body.body)):
            yield from leaves(kind)


def test_every_op_occurs(cases: list[tuple[Program, list[Array]]]) -> None:
    found = Counter(type(i.op) for p, _ in cases for body in p.bodies for i in body.body)
    assert set(found) == set(GENERATORS)
    rare = {cls.name: count for cls, count in found.items() if count < 10}
    assert not rare


def test_every_spelling_occurs(cases: list[tuple[Program, list[Array]]]) -> None:
    found = {i.op.mnemonic for p, _ in cases for body in p.bodies for i in body.body}
    wanted = {name for cls in GENERATORS for name in cls.spellings()}
    assert found == wanted


def test_every_dtype_occurs_as_input_and_as_result(
    cases: list[tuple[Program, list[Array]]],
) -> None:
    given = {as_dtype(array.dtype) for _, inputs in cases for array in inputs}
    made = {leaf.dtype for p, _ in cases for kind in p.main.results for leaf in leaves(kind)}
    assert given == made == set(ALL)


def test_ops_meet_the_dtypes_of_their_tables(cases: list[tuple[Program, list[Array]]]) -> None:
    """Nearly all of the some 1500 pairs; with more seeds, all."""
    wanted = {
        (spelling, dtype)
        for cls in GENERATORS
        for spelling, row in cls.rows().items()
        for dtype in (next(iter(row.values())) if names_an_operand(cls, row) else ())
    }
    seen = {pair for program, _ in cases for pair in pairs_of(program)}
    assert len(wanted) > 1200
    assert len(wanted - seen) < 0.04 * len(wanted)


def names_an_operand(cls: type[Op], row: Mapping[str, object]) -> bool:
    return bool(row) and next(iter(row)) in [name.strip("*?") for name in cls.operands]


def pairs_of(program: Program) -> Iterator[tuple[str, DType]]:
    """Every op with the dtype of the operand after which its row in the table is named."""
    for body in program.bodies:
        types = dict(zip(body.parameter_ids, body.parameters, strict=True))
        for i in body.body:
            types[i.id] = i.output
            row = next(iter(i.op.dtype_table), None)
            names = [i.op.operand_name(index) for index in range(len(i.operands))]
            if row in names:
                kind = operand_type(i.operands[names.index(row)], types)
                assert isinstance(kind, TensorType)
                yield i.op.mnemonic, kind.dtype


def test_shapes_of_every_kind_occur(cases: list[tuple[Program, list[Array]]]) -> None:
    shapes = [kind.shape for p, _ in cases[:500] for kind in types_of(p)]
    assert {len(shape) for shape in shapes} >= {0, 1, 2, 3, 4, 5}
    assert any(0 in shape for shape in shapes)
    assert any(isinstance(dim, Symbol) for shape in shapes for dim in shape)
    derived = {dim.name[0] for shape in shapes for dim in shape if isinstance(dim, Symbol)}
    assert derived == {"N", "d"}


def test_structure_of_every_kind_occurs(cases: list[tuple[Program, list[Array]]]) -> None:
    programs = [p for p, _ in cases[:800]]
    bodies = [body for p in programs for body in p.bodies]
    operands = [o for body in bodies for i in body.body for o in i.operands]
    assert any(isinstance(o, ElementRef) for o in operands)
    assert any(isinstance(o, TensorLiteral) for o in operands)
    assert any(isinstance(k, TupleType) for p in programs for k in p.main.parameters)
    assert any(isinstance(k, TupleType) for p in programs for k in p.main.results)
    assert any(len(p.main.results) > 3 for p in programs)
    nested = {type(i.op) for p in programs for r in p.regions for i in r.body}
    assert {Cond, While, Scan} <= nested
    uses = [Counter(use for i in body.body for use in i.uses) for body in bodies]
    assert any(count >= 3 for counter in uses for count in counter.values())


def test_special_values_occur(cases: list[tuple[Program, list[Array]]]) -> None:
    floats = [a.astype(np.float64) for _, x in cases for a in x if as_dtype(a.dtype).is_float]
    assert any(np.isnan(a).any() for a in floats)
    assert any(np.isposinf(a).any() for a in floats)
    assert any(np.isneginf(a).any() for a in floats)
    assert any((np.signbit(a) & (a == 0)).any() for a in floats)


def test_dots_have_batch_axes_and_odd_contractions(
    cases: list[tuple[Program, list[Array]]],
) -> None:
    ops = [i.op for p, _ in cases for body in p.bodies for i in body.body]
    dots = [op for op in ops if isinstance(op, DotGeneral)]
    assert any(op.batch_lhs and op.contract_lhs for op in dots)
    assert any(len(op.contract_lhs) > 1 for op in dots)
    assert any(op.batch_lhs != op.batch_rhs for op in dots)
    assert any(op.accum_dtype is not None for op in dots)


# -- what the generator knows is true ------------------------------------------------------------


def facts_against_values(seed: int) -> Iterator[str]:
    """What the generator believes of every value, held against the values themselves."""
    draft, _, values = executed(seed)
    for item in draft.items:
        if isinstance(item.operand, TensorLiteral):
            continue
        place = draft.values[item.operand.id].operand
        assert not isinstance(place, TensorLiteral)
        if place.id not in values:
            continue
        index = item.operand.index if isinstance(item.operand, ElementRef) else 0
        for problem in problems(item, values[place.id][index]):
            yield f"seed {seed}, %{place.id} : {item.type}: {problem}, {item.facts}"


def executed(seed: int) -> tuple[Draft, Program, dict[int, list[Array]]]:
    rules = rules_for(None, None, control_flow=True, dynamic=True)
    draft, results = drafted(seed, 20, rules)
    program = draft.build("main", results)
    body = program.main.body
    every = replace(
        program.main,
        result_ids=tuple(i.id for i in body),
        results=tuple(i.output for i in body),
    )
    outs = iter(weft.run(program.with_main(every), draft.arrays()))
    return draft, program, {i.id: [next(outs) for _ in leaves(i.output)] for i in body}


def problems(item: Item, array: Array) -> Iterator[str]:
    facts = item.facts
    if item.dtype.is_complex:
        array = np.stack([array.real, array.imag])
    if not item.dtype.is_integer and item.dtype is not I1:
        array = array.astype(np.float64)
        if not facts.special and not np.isfinite(array).all():
            yield "not finite"
        array = array[np.isfinite(array)]
        if facts.step is not None and np.any(array % facts.step != 0):
            yield "not exact"
    numbers = [int(v) for v in array.reshape(-1)] if item.dtype.is_integer else array.reshape(-1)
    if len(numbers) and not (facts.low <= min(numbers) and max(numbers) <= facts.high):
        yield f"range {min(numbers)} to {max(numbers)}"


@pytest.mark.parametrize("first", one_in(3, range(0, 150, 50)))
def test_facts_hold(first: int) -> None:
    found = [text for seed in range(first, first + 50) for text in facts_against_values(seed)]
    assert not found, "\n".join(found)


def test_the_facts_test_can_fail() -> None:
    draft, _, values = executed(0)
    item = next(i for i in draft.items if i.dtype.is_float and i.type.rank)
    wrong = np.full(item.sizes, 1e9).astype(np.float32)
    assert list(problems(item, wrong))
    assert values


# -- one seed, one program -----------------------------------------------------------------------

DIGEST = """
import hashlib
from weft.ptir import dumps
from weft.testing import random_program
digest = hashlib.sha256()
for seed in range(30):
    case = random_program(seed)
    digest.update(dumps(case.program, "text").encode())
    for array in case.inputs:
        digest.update(array.tobytes())
print(digest.hexdigest())
"""


def test_a_seed_means_the_same_in_every_process() -> None:
    """Sets of dtypes come in another order in each process: no choice may depend on it."""
    digests = set()
    for hash_seed in ("1", "2"):
        env = {**os.environ, "PYTHONPATH": SOURCE, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            [sys.executable, "-c", DIGEST], env=env, capture_output=True, text=True, check=True
        )
        digests.add(done.stdout)
    digest = hashlib.sha256()
    for seed in range(30):
        case = random_program(seed)
        digest.update(str(dumps(case.program, "text")).encode())
        for array in case.inputs:
            digest.update(array.tobytes())
    assert digests == {digest.hexdigest() + "\n"}


def test_choices_are_pinned() -> None:
    """The stream of decisions is integer arithmetic: these numbers are SplitMix64's own."""
    choices = Choices(1234567)
    first = [choices.integer(0, 2**64 - 1) for _ in range(3)]
    assert first == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_data_is_pinned() -> None:
    source = DataSource(7)
    assert source.integers((4,), -3, 3).tolist() == DataSource(7).integers((4,), -3, 3).tolist()
    wide = source.integers((1000,), -(2**63), 2**63 - 1)
    assert wide.dtype == np.int64
    assert wide.min() < -(2**61)
    assert wide.max() > 2**61
    assert source.integers((1000,), 0, 2**64 - 1).dtype == np.uint64


# -- options -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", one_in(4, range(12)))
def test_only_the_given_ops_and_dtypes_occur(seed: int) -> None:
    ops = {"add", "mul", "exp", "dot_general", "reduce_sum", "reshape", "compare", "take"}
    case = random_program(seed, 15, ops=ops, dtypes=["f32", SI32, I1])
    assert {i.op.mnemonic for body in case.program.bodies for i in body.body} <= ops
    assert {kind.dtype for kind in types_of(case.program)} <= {F32, SI32, I1}
    assert dtype_attributes(case.program) <= {F32, SI32, I1}
    verify(case.program)
    weft.run(case.program, case.inputs)


def dtype_attributes(program: Program) -> set[DType]:
    """Accumulators and the like: dtypes that occur in no type."""
    ops = [i.op for body in program.bodies for i in body.body]
    values = [getattr(op, name) for op in ops for name in op.all_attributes()]
    return {value for value in values if isinstance(value, DType)}


@each("cls", list(GENERATORS))
def test_programs_of_a_single_op(cls: Any) -> None:
    """Nothing else may slip in, whatever an op needs of its operands."""
    spellings = set(cls.spellings())
    found = 0
    for seed in range(3):
        case = random_program(seed, 4, ops=[cls])
        used = {i.op.mnemonic for body in case.program.bodies for i in body.body}
        assert used <= spellings
        found += bool(used)
        weft.run(case.program, case.inputs)
    assert found, f"{cls.name} never occurs alone"


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_programs_of_a_single_dtype(dtype: Any) -> None:
    for seed in range(2):
        case = random_program(seed, 12, dtypes=[dtype])
        assert {kind.dtype for kind in types_of(case.program)} <= {dtype}
        assert dtype_attributes(case.program) <= {dtype}
        assert case.program.main.body
        weft.run(case.program, case.inputs)


def test_without_control_flow_and_symbols() -> None:
    for seed in range(30):
        case = random_program(seed, control_flow=False, dynamic=False)
        assert not case.program.regions
        assert not any(True for kind in types_of(case.program) for _ in symbols_of(kind))


def test_wrong_arguments_are_told() -> None:
    with pytest.raises(UserError, match="there is no op called 'frobnicate'"):
        random_program(0, ops=["frobnicate"])
    with pytest.raises(UserError, match="unknown dtype 'f31'"):
        random_program(0, dtypes=["f31"])
    seeds: tuple[Any, ...] = (-1, 2**64, 1.5, "7", None, True, np.float32(1))
    for wrong in seeds:
        with pytest.raises(UserError, match=r"^seed .* is not a whole number from 0 to 2\^64 - 1$"):
            random_program(wrong)
    sizes: tuple[Any, ...] = (-1, 10**7, 2.5, "7", None, False)
    for wrong in sizes:
        with pytest.raises(UserError, match=r"^size .* is not a whole number from 0 to 1,000,000$"):
            random_program(0, wrong)
    ops: tuple[Any, ...] = ("add", 3, [3], [int])
    for wrong in ops:
        with pytest.raises(UserError, match=r"ops must be a list, not|there is no op called"):
            random_program(0, ops=wrong)
    with pytest.raises(UserError, match="dtypes must be a list, not 'f32'"):
        random_program(0, dtypes="f32")
    with pytest.raises(UserError, match="at least one op and one dtype"):
        random_program(0, ops=[])


def test_rules_that_allow_nothing_are_told() -> None:
    with pytest.raises(UserError, match="none of the ops that are allowed can be used"):
        random_program(0, ops=["exp"], dtypes=["i1"])
    with pytest.raises(UserError, match="none of the ops that are allowed can be used"):
        random_program(0, ops=[Cond], control_flow=False)
    assert not random_program(0, 0, ops=["exp"], dtypes=["i1"]).program.main.body
    for seed in range(40):
        random_program(seed, 1, ops=["exp"], dtypes=["f32"])


def test_a_case_knows_its_seed_and_is_reproducible() -> None:
    case, again = random_program(5), random_program(5)
    assert case.seed == 5
    assert case.program == again.program
    assert [a.tobytes() for a in case.inputs] == [a.tobytes() for a in again.inputs]
    assert random_program(6).program != case.program


def test_numbers_of_numpys_are_whole_numbers() -> None:
    numbers: Any = (np.uint64(5), np.int32(8))
    assert random_program(*numbers).program == random_program(5, 8).program


def test_an_empty_program_can_be_asked_for() -> None:
    case = random_program(1, 0)
    assert weft.run(case.program, case.inputs) is not None


def _calls(size: int) -> int:
    """How many functions are called to make programs of a size: time that no other load changes."""
    count = 0

    def on_event(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(on_event)
    try:
        for seed in range(2):
            random_program(seed, size, control_flow=False)
    finally:
        sys.setprofile(None)
    return count


def test_the_work_grows_with_the_size_and_no_faster() -> None:
    small, large = _calls(200), _calls(800)
    assert large < 6 * small


def test_narrow_programs_are_not_trivial() -> None:
    case = random_program(11, 20, dtypes=[BF16])
    assert len(case.program.main.body) >= 15
