"""Decompositions: each against the op's own meaning, over its dtypes and special values; and
portable files, which hold ops of the public contract only."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

import weft
from tests.support.cases import one_in
from tests.support.one_op import Array, by_name, random_array, ulp
from tests.unit.ptir.passes.programs import Case, is_nan, mnemonics, same, special_array, specials
from weft.foundation.dtypes import (
    ANY,
    BF16,
    BOOL,
    COMPLEX,
    F16,
    F32,
    F64,
    FLOATS,
    FP8_E4M3,
    FP8_E5M2,
    INTEGERS,
    NUMBERS,
    ORDERED,
    REALS,
    SI32,
    DType,
    as_dtype,
)
from weft.foundation.errors import SpecViolation, Unimplemented
from weft.ptir import BodyBuilder, Builder, HintRegion, Program, Value, dumps, loads, verify
from weft.ptir.composite import Composite
from weft.ptir.decompose import decompose, portable
from weft.ptir.decompositions import DECOMPOSITIONS
from weft.ptir.ir import HintKind, HintPolicy
from weft.ptir.op import SPELLINGS
from weft.ptir.ops.complex_parts import PART
from weft.ptir.ops.elementwise import Clamp
from weft.ptir.ops.functions import IsNan
from weft.ptir.passes import PassLog

PUBLIC = frozenset(range(37))
Compare = Callable[[Sequence[Array], Sequence[Array]], None]


def same_values(before: Sequence[Array], after: Sequence[Array]) -> None:
    """Equal, but for which zero: that is not specified for `maximum(-0, +0)`."""
    for a, b in zip(before, after, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        nan = is_nan(a)
        np.testing.assert_array_equal(nan, is_nan(b))
        assert (a[~nan] == b[~nan]).all()


def close(before: Sequence[Array], after: Sequence[Array]) -> None:
    """Integers equal; floats within 4 units in the last place of the largest element."""
    for a, b in zip(before, after, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        dtype = as_dtype(a.dtype)
        if dtype.is_integer:
            assert (a == b).all()
        elif a.size:
            exact, got = (z.astype(np.complex128) for z in (a, b))
            part = PART.get(dtype, dtype)
            assert np.abs(got - exact).max() <= 4 * ulp(np.abs(exact).max(), part)


@dataclass(frozen=True)
class Sample:
    """An op with attributes over operands of the given shapes."""

    attrs: tuple[tuple[str, object], ...]
    shapes: tuple[tuple[int, ...], ...]


def samples(*shapes: tuple[int, ...], **attrs: object) -> list[Sample]:
    return [Sample(tuple(attrs.items()), shapes)]


def each(count: int, **attrs: object) -> list[Sample]:
    """The same shape for all operands: rank 0, empty, and an ordinary one."""
    shapes: list[tuple[int, ...]] = [(), (0, 3), (40,), (5, 7, 3)]
    return [Sample(tuple(attrs.items()), (shape,) * count) for shape in shapes]


def along(**attrs: object) -> list[Sample]:
    """Every axis of a few shapes, positive and negative; no axis is empty."""
    return [
        Sample((("axis", axis), *attrs.items()), (shape,))
        for shape in [(1,), (40,), (3, 8), (2, 5, 3), (0, 4)]
        for axis in range(-len(shape), len(shape))
        if shape[axis] > 0
    ]


def also_empty(**attrs: object) -> list[Sample]:
    return [*along(**attrs), *samples((0,), axis=0, **attrs), *samples((3, 0), axis=1, **attrs)]


def reductions(**attrs: object) -> list[Sample]:
    return [
        Sample((("axes", axes), ("keepdims", keep), *attrs.items()), ((3, 4, 2),))
        for axes in ((), (0,), (1, 2), (0, 1, 2))
        for keep in (False, True)
    ] + samples((3, 0), axes=(1,), keepdims=False)


@dataclass(frozen=True)
class Trial:
    """Where an op is decomposed, and how closely."""

    dtypes: frozenset[DType]
    samples: list[Sample]
    compare: Compare = same


NO_GRADIENT = "ptir.v0.4\nentry @none\n\nfunc @none() -> () {\n  return\n}\n"
TRIALS: dict[str, Trial] = {
    "clamp": Trial(ORDERED, each(3)),
    "layer_norm": Trial(
        FLOATS,
        [
            *samples((4, 8), (8,), (8,), epsilon=1e-5, feature_axis=-1),
            *samples((8, 4), (8,), (8,), epsilon=1e-3, feature_axis=0),
            *samples((2, 5, 3), (5,), (5,), epsilon=0.5, feature_axis=1),
            *samples((2, 0), (0,), (0,), epsilon=0.5, feature_axis=1),
        ],
        close,
    ),
    "isnan": Trial(FLOATS | COMPLEX, each(1)),
    "isinf": Trial(FLOATS | COMPLEX, each(1)),
    "isfinite": Trial(FLOATS | COMPLEX, each(1)),
    "sign": Trial(REALS, each(1)),
    "trunc": Trial(FLOATS, each(1)),
    "floor": Trial(FLOATS, each(1)),
    "ceil": Trial(FLOATS, each(1)),
    "round": Trial(FLOATS, each(1)),
    "bitwise_not": Trial(INTEGERS | BOOL, each(1)),
    "bitwise_and": Trial(BOOL, each(2)),
    "bitwise_or": Trial(BOOL, each(2)),
    "bitwise_xor": Trial(BOOL, each(2)),
    "fmod": Trial(INTEGERS, each(2)),
    "real": Trial(COMPLEX, each(1)),
    "barrier": Trial(ANY, each(2)),
    "custom_gradient": Trial(
        ANY,
        [
            *samples((3,), (4,), results=1, kept=1, inputs=0, backward=NO_GRADIENT),
            *samples((3,), (2, 2), results=2, kept=0, inputs=0, backward=NO_GRADIENT),
        ],
    ),
    "reduce_any": Trial(BOOL, reductions()),
    "reduce_all": Trial(BOOL, reductions()),
    "argmin": Trial(
        ORDERED,
        along(keepdims=False, output_dtype="si32") + along(keepdims=True, output_dtype="si64"),
    ),
    "sort": Trial(ORDERED, also_empty(descending=False) + also_empty(descending=True)),
    "argsort": Trial(
        ORDERED, also_empty(descending=False) + also_empty(descending=True, output_dtype="si32")
    ),
    "searchsorted": Trial(
        ORDERED,
        [
            sample
            for side in ("left", "right")
            for shapes in (((9,), (5, 4)), ((9,), ()), ((0,), (3,)), ((4,), (0, 2)))
            for sample in samples(*shapes, side=side, output_dtype="si32")
        ],
    ),
    "cumulative_sum": Trial(NUMBERS, also_empty(reverse=False) + also_empty(reverse=True), close),
    "cumulative_max": Trial(
        ORDERED, also_empty(reverse=False) + also_empty(reverse=True), same_values
    ),
    "cumulative_min": Trial(
        ORDERED, also_empty(reverse=False) + also_empty(reverse=True), same_values
    ),
}


def test_every_decomposition_has_a_trial() -> None:
    own = {cls for cls in DECOMPOSITIONS if not issubclass(cls, Composite)}
    assert {SPELLINGS[name][0] for name in TRIALS} == own


def build(name: str, dtype: DType, sample: Sample, seed: int) -> tuple[Program, list[Array]]:
    inputs = [operand(name, dtype, shape, at, seed) for at, shape in enumerate(sample.shapes)]
    b = Builder()
    params = [b.param(dtype, shape) for shape in sample.shapes]
    attrs = dict(sample.attrs)
    return b.build(b.emit(name, *params, output=None, **attrs)), inputs


def operand(name: str, dtype: DType, shape: tuple[int, ...], at: int, seed: int) -> Array:
    if name == "layer_norm" or (name == "cumulative_sum" and not dtype.is_integer):
        return random_array(dtype, shape, seed + at, 1.0)
    array = special_array(dtype, shape, seed + at)
    if name == "fmod" and at == 1:
        array = np.where(array == np.zeros((), array.dtype), np.ones((), array.dtype), array)
    if name == "searchsorted" and at == 0:
        keys = array if array.dtype.kind in "iub" else array.astype(np.float64)
        array = array[np.argsort(keys, kind="stable")]
    return array


def public_only(program: Program) -> None:
    for body in program.bodies:
        for instruction in body.body:
            assert instruction.op.tag in PUBLIC, instruction.summary


@pytest.mark.parametrize("every", one_in(2, [False, True]), ids=["some pairs", "all pairs"])
@pytest.mark.parametrize("name", TRIALS)
def test_decomposition_has_the_meaning_of_the_op(name: str, every: bool) -> None:
    """Every dtype and every sample; all pairs of them in long runs."""
    trial = TRIALS[name]
    for number, dtype in enumerate(by_name(trial.dtypes)):
        for at, sample in enumerate(trial.samples):
            if not (every or number == 0 or at == number % len(trial.samples)):
                continue
            program, inputs = build(name, dtype, sample, seed=len(sample.shapes))
            after = portable(program)
            verify(after)
            public_only(after)
            trial.compare(weft.run(program, inputs), weft.run(after, inputs))


# -- rounding, exhaustively ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["trunc", "floor", "ceil", "round", "sign", "isinf", "isfinite"])
@pytest.mark.parametrize("dtype", [F16, BF16, FP8_E4M3, FP8_E5M2], ids=str)
def test_every_narrow_value(name: str, dtype: DType) -> None:
    values = np.arange(2**dtype.bits, dtype=f"u{dtype.bits // 8}").view(dtype.numpy)
    b = Builder()
    program = b.build(b.emit(name, b.param(dtype, values.shape)))
    same(weft.run(program, [values]), weft.run(portable(program), [values]))


@pytest.mark.parametrize("name", ["isnan", "isinf", "isfinite"])
@pytest.mark.parametrize("dtype", by_name(COMPLEX), ids=str)
def test_every_pair_of_special_parts(name: str, dtype: DType) -> None:
    """Among them two large parts, whose absolute value overflows, and infinity beside NaN."""
    real, imag = np.meshgrid(*[specials(PART[dtype].numpy)] * 2)
    values = np.empty(real.shape, dtype.numpy)
    values.real, values.imag = real, imag
    b = Builder()
    program = b.build(b.emit(name, b.param(dtype, values.shape)))
    expected = {"isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite}[name]
    same([expected(values)], weft.run(portable(program), [values]))


@pytest.mark.parametrize("name", ["trunc", "floor", "ceil", "round"])
@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_rounding_around_every_power_of_two(name: str, dtype: DType) -> None:
    scalar = dtype.numpy.type
    powers = scalar(2) ** np.arange(-4, 70, dtype=dtype.numpy)
    steps = np.array([-1.5, -1, -0.5, -0.25, 0, 0.25, 0.5, 1, 1.5, 2.5], dtype.numpy)
    around = (powers[:, None] + steps).reshape(-1)
    values = np.concatenate([f(around) for f in (np.positive, np.negative)])
    near = [np.nextafter(values, scalar(goal)) for goal in (-np.inf, np.inf)]
    values = np.concatenate([values, *near])
    b = Builder()
    program = b.build(b.emit(name, b.param(dtype, values.shape)))
    expected = {"trunc": np.trunc, "floor": np.floor, "ceil": np.ceil, "round": np.rint}[name]
    same([expected(values)], weft.run(portable(program), [values]))


def test_a_running_sum_carries_infinity_and_nan() -> None:
    values = np.array([1, np.inf, 2, -np.inf, 3, np.nan, 4], np.float32)
    b = Builder()
    x = b.param("f32", [7])
    sums = [b.emit("cumulative_sum", x, axis=0, reverse=reverse) for reverse in (False, True)]
    forward, backward = weft.run(portable(b.build(*sums)), [values])
    nan = np.nan
    np.testing.assert_array_equal(forward, [1, np.inf, np.inf, nan, nan, nan, nan])
    np.testing.assert_array_equal(backward, [nan, nan, nan, nan, nan, nan, 4])


# -- dynamic dims --------------------------------------------------------------------------------


def test_dynamic_dims_are_no_obstacle_where_no_size_is_needed() -> None:
    b = Builder()
    x, g = b.param("f32", ["?B", "?D"]), b.param("f32", ["?D"])
    results = [
        b.emit("layer_norm", x, g, g, epsilon=1e-5, feature_axis=-1),
        b.emit("floor", x),
        b.emit("argmin", x, axis=0, keepdims=False, output_dtype="si32"),
        b.emit("cumulative_max", b.full(["?B", 3], 1.0, "f32"), axis=1),
        b.emit("searchsorted", g, x),
    ]
    program = b.build(*results)
    after = portable(program)
    verify(after)
    public_only(after)
    inputs = [random_array(F32, (3, 5)), np.sort(random_array(F32, (5,)))]
    before, got = weft.run(program, inputs), weft.run(after, inputs)
    close(before[:1], got[:1])
    same(before[1:], got[1:])


REFUSED: dict[str, Callable[[Builder], Value]] = {
    "sqrt": lambda b: b.emit("sqrt", b.param("f32", [2])),
    "sin": lambda b: b.emit("sin", b.param("f32", [2])),
    "sign": lambda b: b.emit("sign", b.param("cf32", [2])),
    "sort": lambda b: b.emit("sort", b.param("f32", ["?B"]), axis=0),
    "argsort": lambda b: b.emit("argsort", b.param("f32", ["?B"]), axis=0),
    "cumulative_sum": lambda b: b.emit("cumulative_sum", b.param("f32", ["?B"]), axis=0),
    "fmod": lambda b: b.emit("fmod", b.param("f32", [2]), b.literal([1.0, 2.0])),
    "bitwise_and": lambda b: b.emit("bitwise_and", b.param("si32", [1]), b.literal([1], SI32)),
    "imag": lambda b: b.emit("imag", b.param("cf32", [2])),
    "reduce_prod": lambda b: b.emit("reduce_prod", b.param("f32", [2]), axes=[0]),
    "cholesky": lambda b: b.emit("cholesky", b.param("f32", [2, 2]), upper=False),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_exact_form_is_refused_by_name(name: str) -> None:
    b = Builder()
    program = b.build(REFUSED[name](b))
    with pytest.raises(Unimplemented) as caught:
        dumps(program, "json", portable=True)
    assert caught.value.op == name
    assert "test_decompose.py:" in caught.value.reason
    assert "has no exact form in portable ops for a result of type" in caught.value.reason


# -- portable files ------------------------------------------------------------------------------


def everything() -> Program:
    """Ops beyond the contract in a function and in a region."""

    def body(r: BodyBuilder, x: Value) -> Value:
        return r.emit("clamp", x, r.emit("floor", x), r.emit("ceil", x))

    b = Builder()
    x = b.param("f32", [4])
    ordered = b.emit("sort", x, axis=0)
    out = b.cond(b.emit("reduce_all", b.emit("isfinite", x), axes=[0]), body, body, ordered)
    call = b.custom_call("somebody.kernel.v1", out, output=out.type)
    return b.build(ordered, out, call)


@pytest.mark.parametrize("format", ["json", "bincode", "text"])
def test_a_portable_file_has_contract_ops_only(format: str) -> None:
    back = loads(dumps(everything(), format, portable=True))
    verify(back)
    public_only(back)
    targets = [i.op.target for b in back.bodies for i in b.body if hasattr(i.op, "target")]
    assert targets == ["somebody.kernel.v1"]


def test_the_json_names_no_op_of_ours() -> None:
    text = dumps(everything(), "json", portable=True)
    assert isinstance(text, str)
    assert "weft." not in text
    assert "Clamp" not in text
    assert "weft.sort.v1" in str(dumps(everything(), "json"))
    assert json.loads(text)["spec_version"] == "ptir.v0.4"


def test_a_program_of_contract_ops_is_left_as_it_is() -> None:
    b = Builder()
    program = b.build(b.exp(b.param("f32", [2])))
    assert portable(program) is program


def test_an_invalid_program_is_reported_before_it_is_decomposed() -> None:
    b = Builder()
    program = b.build(b.emit("sort", b.param("f32", [2]), axis=0))
    (sort,) = program.main.body
    wrong = replace(program.main, body=(replace(sort, operands=()),))
    with pytest.raises(SpecViolation) as caught:
        portable(program.with_main(wrong))
    assert caught.value.code == "ArityMismatch"


def test_saving_can_be_portable(tmp_path: Path) -> None:
    path = tmp_path / "program.json"
    b = Builder()
    weft.ptir.save(b.build(b.emit("isnan", b.param("f32", [2]))), path, portable=True)
    assert mnemonics(weft.ptir.load(path)) == ["compare"]


def test_a_tuple_that_is_returned_whole_is_returned_in_its_elements() -> None:
    b = Builder()
    x, y = b.param("f32", [2]), b.param("si32", [3])
    pair = b.emit("make_tuple", b.emit("floor", x), y, b.literal([1.0, 2.0]))
    program = b.build(b.emit("ceil", x), pair, y)
    back = loads(dumps(program, "json", portable=True))
    verify(back)
    public_only(back)
    assert [str(kind) for kind in back.main.results] == [
        "f32[2]", "f32[2]", "si32[3]", "f32[2]", "si32[3]",
    ]  # fmt: skip
    inputs = [np.array([0.5, -1.5], np.float32), np.arange(3, dtype=np.int32)]
    for one, other in zip(weft.run(program, inputs), weft.run(back, inputs), strict=True):
        assert one.tolist() == other.tolist()


def test_random_streams() -> None:
    b = Builder()
    first, second = (b.emit("rng_uniform", shape=[2], dtype="f32", stream=s) for s in (0, 1))
    assert "weft." not in str(dumps(b.build(first, second), "json", portable=True))
    b = Builder()
    program = b.build(b.emit("rng_normal", shape=[2], dtype="f32", stream=3))
    with pytest.raises(Unimplemented) as caught:
        dumps(program, "json", portable=True)
    assert caught.value.op == "rng_normal"
    assert "random stream 3" in caught.value.reason


# -- the engine ----------------------------------------------------------------------------------


def test_kept_classes_stay() -> None:
    b = Builder()
    x = b.param("f32", [2])
    program = b.build(b.emit("isnan", x), b.emit("clamp", x, x, x))
    after = decompose(program, keep={Clamp})
    assert mnemonics(after) == ["compare", "clamp"]
    assert decompose(program, keep={Clamp, IsNan}) is program


def test_values_keep_their_ids_and_lines_and_the_log_names_them() -> None:
    b = Builder()
    x = b.param("f32", [2])
    y = b.emit("clamp", x, x, x)
    program = b.build(b.neg(y))
    log = PassLog()
    after = decompose(program, log=log)
    line = program.locations["function @main", 1]
    assert [i.id for i in after.main.body] == [3, 1, 2]
    assert after.locations["function @main", 3] == line
    assert [str(fired) for fired in log.fired] == [
        f"decompose-clamp: %1 = clamp(%0, %0, %0) in function @main ({line})"
    ]


def test_results_stay_plain_values() -> None:
    case = Case(0)
    x = case.param(F32, [3])
    ordered = case.b.emit("sort", x, axis=0)
    running = case.b.emit("cumulative_sum", case.b.full([0], 1.0, "f32"), axis=0)
    flags = case.b.emit("isinf", case.b.full([], 1.0, "fp8_e4m3"))
    case.done(ordered, case.b.neg(ordered), running, flags)
    after = portable(case.program)
    verify(after)
    same(weft.run(case.program, case.inputs), weft.run(after, case.inputs))
    loads(dumps(after, "json"))


def _hinted(policy: HintPolicy, name: str) -> Program:
    b = Builder()
    x = b.param("f32", [2])
    operands = [x] * (3 if name == "clamp" else 1)
    program = b.build(b.exp(b.emit(name, *operands)))
    function = program.main
    hint = HintRegion(0, HintKind.ELEMENTWISE_DAG, policy, (0,), (2,), function.body)
    made = program.with_main(replace(function, hints=(hint,)))
    verify(made)
    return made


@pytest.mark.parametrize("policy", HintPolicy)
@pytest.mark.parametrize("name", ["clamp", "floor", "sign"])
def test_a_hint_holds_the_new_instructions(policy: HintPolicy, name: str) -> None:
    after = decompose(_hinted(policy, name))
    verify(after)
    (hint,) = after.main.hints
    assert hint.body == after.main.body
    assert hint.policy is policy


def test_a_hint_next_to_a_decomposition_is_kept() -> None:
    b = Builder()
    x = b.param("f32", [2])
    program = b.build(b.exp(b.emit("sort", x, axis=0)))
    function = program.main
    hint = HintRegion(
        0, HintKind.ELEMENTWISE_DAG, HintPolicy.REQUIRED, (1,), (2,), function.body[1:]
    )
    program = program.with_main(replace(function, hints=(hint,)))
    after = decompose(program)
    verify(after)
    assert after.main.hints == (hint,)
