"""Every canonicalisation rule on random instances: it fires, and not one bit changes; and beside it
the instances that look alike and must be left alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from tests.support.one_op import Array, by_name, random_array
from tests.unit.ptir.passes.numbers import numbers_of, scaled, sums_of_unknown, turned
from tests.unit.ptir.passes.programs import Case, agree, mnemonics, specials
from weft.foundation import numeric
from weft.foundation.dtypes import (
    ALL,
    ANY,
    BF16,
    CF32,
    CF64,
    COMPLEX,
    F16,
    F32,
    F64,
    FLOATS,
    FP8_E4M3,
    FP8_E5M2,
    I1,
    INTEGERS,
    NUMBERS,
    ORDERED,
    REALS,
    SI8,
    SI16,
    SI32,
    SI64,
    UI4,
    DType,
)
from weft.ptir import Value
from weft.ptir.passes import RULES, PassLog, canonicalise
from weft.ptir.passes.canonicalise import composes, embeds

Make = Callable[[Case, DType], Case]


@dataclass(frozen=True)
class Instances:
    """The left side of a rule for each dtype, and what resembles it without being it."""

    dtypes: frozenset[DType]
    fires: Make
    resembles: tuple[tuple[DType, Make], ...]


# -- cast ----------------------------------------------------------------------------------------


def _cast(c: Case, x: Value, dtype: DType) -> Value:
    return c.b.emit("cast", x, dtype=dtype)


def cast_same(c: Case, dtype: DType) -> Case:
    return c.done(_cast(c, c.param(dtype, c.shape()), dtype))


def cast_other(c: Case, dtype: DType) -> Case:
    return c.done(_cast(c, c.param(dtype, c.shape()), F16 if dtype is F32 else F32))


def cast_of_cast(c: Case, dtype: DType) -> Case:
    pairs = [(m, u) for m, u in itertools.product(ALL, ALL) if dtype is not m is not u]
    found = [(m, u) for m, u in pairs if composes(dtype, m, u)]
    middle, last = found[int(c.rng.integers(0, len(found)))]
    return c.done(_cast(c, _cast(c, c.param(dtype, c.shape()), middle), last))


def casts_through(middle: DType, last: DType) -> Make:
    def make(c: Case, dtype: DType) -> Case:
        return c.done(_cast(c, _cast(c, c.param(dtype, c.shape()), middle), last))

    return make


ROUNDING_CASTS = (
    (F32, casts_through(F16, F32)),
    (F64, casts_through(F32, F16)),
    (F32, casts_through(BF16, FP8_E5M2)),
    (F16, casts_through(BF16, F16)),
    (BF16, casts_through(F16, BF16)),
    (FP8_E5M2, casts_through(FP8_E4M3, FP8_E5M2)),
    (F32, casts_through(SI32, F32)),
    (SI32, casts_through(SI8, SI16)),
    (SI64, casts_through(F64, SI64)),
    (SI32, casts_through(F32, SI32)),
    (UI4, casts_through(FP8_E5M2, F32)),
    (CF32, casts_through(F32, CF32)),
    (CF64, casts_through(CF32, CF64)),
)


# -- movement ------------------------------------------------------------------------------------


def reshape_same(c: Case, dtype: DType) -> Case:
    shape = c.shape()
    return c.done(c.b.reshape(c.param(dtype, shape), shape))


def reshape_other(c: Case, dtype: DType) -> Case:
    shape = c.shape()
    return c.done(c.b.reshape(c.param(dtype, shape), [*shape, 1]))


def reshape_of_reshape(c: Case, dtype: DType) -> Case:
    dims: list[int | str] = ["?B", 3, 4] if c.seed % 2 else [2, 3, 4]
    x = c.param(dtype, [2, 3, 4], dims)
    last: list[int | str] = [3, "?B", 4] if c.seed % 2 else [-1, 8]
    return c.done(c.b.reshape(c.b.reshape(x, [-1, 6] if c.seed % 3 else [-1]), last))


def reshape_that_names_a_dim(c: Case, dtype: DType) -> Case:
    x = c.param(dtype, [2, 3, 4], ["?B", 3, 4])
    return c.done(c.b.reshape(c.b.reshape(x, [-1]), [-1, 4]))


def transpose_identity(c: Case, dtype: DType) -> Case:
    shape = c.shape()
    return c.done(c.b.transpose(c.param(dtype, shape), range(len(shape))))


def transpose_square(c: Case, dtype: DType) -> Case:
    return c.done(c.b.transpose(c.param(dtype, [3, 3]), [1, 0]))


def transpose_of(between: Callable[[Case, Value], Value]) -> Make:
    def make(c: Case, dtype: DType) -> Case:
        x = c.param(dtype, [2, 3, 4])
        inner = between(c, c.b.transpose(x, [2, 0, 1]))
        perms = list(itertools.permutations(range(3)))[1:]
        return c.done(c.b.transpose(inner, perms[c.seed % 5]))

    return make


def _plain(c: Case, x: Value) -> Value:
    return x


def _negated(c: Case, x: Value) -> Value:
    return c.b.neg(x)


def slice_all(c: Case, dtype: DType) -> Case:
    shape = c.shape()
    return c.done(c.b.slice(c.param(dtype, shape), [0] * len(shape), shape))


def slice_some(c: Case, dtype: DType) -> Case:
    return c.done(c.b.slice(c.param(dtype, [3, 3]), [0, 0], [3, 2]))


def slice_of_all_of_a_dynamic_dim(c: Case, dtype: DType) -> Case:
    return c.done(c.b.slice(c.param(dtype, [3], ["?B"]), [0], [3]))


def slice_of(between: Callable[[Case, Value], Value]) -> Make:
    def make(c: Case, dtype: DType) -> Case:
        a, b = (int(n) for n in c.rng.integers(0, 3, 2))
        inner = between(c, c.b.slice(c.param(dtype, [6, 5]), [a, b], [4, 3]))
        return c.done(c.b.slice(inner, [b, a], [2 - b, 3 - a]))

    return make


def broadcast_same(c: Case, dtype: DType) -> Case:
    shape = c.shape()
    x = c.param(dtype, shape, ["?B", *shape[1:]] if shape and c.seed % 2 else None)
    return c.done(c.b.broadcast_to(x, x.shape))


def broadcast_more(c: Case, dtype: DType) -> Case:
    shape = c.shape()
    return c.done(c.b.broadcast_to(c.param(dtype, shape), [1, *shape]))


def broadcast_of(between: Callable[[Case, Value], Value]) -> Make:
    def make(c: Case, dtype: DType) -> Case:
        extent = int(c.rng.integers(0, 3))
        inner = between(c, c.b.broadcast_to(c.param(dtype, [3, 1]), [1, 3, extent]))
        return c.done(c.b.broadcast_to(inner, [2, 2, 3, extent]))

    return make


def concat_of(*extents: int) -> Make:
    def make(c: Case, dtype: DType) -> Case:
        parts = [c.param(dtype, [2, extent, 3]) for extent in extents]
        return c.done(c.b.concat(parts, axis=-2 if c.seed % 2 else 1))

    return make


def pad_by(low: int, high: int, interior: int) -> Make:
    def make(c: Case, dtype: DType) -> Case:
        x = c.param(dtype, [2, 3])
        return c.done(c.b.emit("pad", x, low=[0, low], high=[high, 0], interior=[0, interior]))

    return make


def tile_by(count: int) -> Make:
    def make(c: Case, dtype: DType) -> Case:
        return c.done(c.b.emit("tile", c.param(dtype, [2, 3]), repeats=[1, count]))

    return make


# -- dynamic slices ------------------------------------------------------------------------------


def _start(c: Case, at: list[int], known: bool) -> Value:
    """A start that is a literal, a constant, or (not known) the result of arithmetic."""
    if not known:
        return c.b.emit("add", c.param(SI64, [len(at)]), c.b.literal(at, SI64))
    dtype = SI32 if c.seed % 2 else SI64
    return c.b.literal(at, dtype) if c.seed % 3 else c.b.constant(at, dtype)


def dynamic_slice(at: tuple[int, int], sizes: tuple[int, int], known: bool = True) -> Make:
    def make(c: Case, dtype: DType) -> Case:
        x = c.param(dtype, [4, 5])
        return c.done(c.b.emit("dynamic_slice", x, _start(c, list(at), known), sizes=sizes))

    return make


def random_dynamic_slice(c: Case, dtype: DType) -> Case:
    at = tuple(int(n) for n in c.rng.integers(-7, 8, 2))
    return dynamic_slice((at[0], at[1]), (2, 3))(c, dtype)


def dynamic_slice_of_dynamic_dim(at: int) -> Make:
    def make(c: Case, dtype: DType) -> Case:
        x = c.param(dtype, [4, 5], ["?B", 5])
        return c.done(c.b.emit("dynamic_slice", x, _start(c, [at, 9], True), sizes=[2, 3]))

    return make


def dynamic_update(at: tuple[int, int], sizes: tuple[int, int], known: bool = True) -> Make:
    def make(c: Case, dtype: DType) -> Case:
        x, update = c.param(dtype, [4, 5]), c.param(dtype, sizes)
        start = _start(c, list(at), known)
        return c.done(c.b.emit("dynamic_update_slice", x, update, start, sizes=sizes))

    return make


# -- arithmetic ----------------------------------------------------------------------------------


def negated(inner: str) -> Make:
    def make(c: Case, dtype: DType) -> Case:
        return c.done(c.b.neg(c.b.emit(inner, c.param(dtype, c.shape()))))

    return make


def with_number(name: str, choose: Callable[[DType], complex], swap: bool | None = False) -> Make:
    """`x op number`; with `swap` the other way round, with None either way."""

    def make(c: Case, dtype: DType) -> Case:
        shape = c.shape()
        x, number = c.param(dtype, shape), c.splat(choose(dtype), dtype, shape)
        turned = bool(c.seed % 2) if swap is None else swap
        return c.done(c.b.emit(name, number, x) if turned else c.b.emit(name, x, number))

    return make


def _number(plain: float, of_complex: complex | None = None) -> Callable[[DType], complex]:
    def choose(dtype: DType) -> complex:
        if dtype.is_complex and of_complex is not None:
            return of_complex
        return plain if dtype.is_float or dtype.is_complex else int(plain)

    return choose


def times_zero(c: Case, dtype: DType) -> Case:
    """The product is not returned: a literal could not take its place."""
    made = with_number("mul", _number(0), None)(c, dtype)
    return c.done(c.b.neg(made.results[0]))


ADDED_ZERO = _number(-0.0, complex(-0.0, -0.0))
SUBTRACTED_ZERO = _number(0.0, complex(0.0, 0.0))
ONE = _number(1.0)


def extremum_same(c: Case, dtype: DType) -> Case:
    x = c.param(dtype, c.shape())
    return c.done(c.b.emit("maximum", x, x), c.b.emit("minimum", x, x))


def extremum_other(c: Case, dtype: DType) -> Case:
    shape = c.shape()
    return c.done(c.b.emit("maximum", c.param(dtype, shape), c.param(dtype, shape)))


def extremum_identity(c: Case, dtype: DType) -> Case:
    shape = c.shape()
    x = c.param(dtype, shape)
    low, high = (c.splat(bound, dtype, shape) for bound in (dtype.lowest, dtype.highest))
    return c.done(c.b.emit("maximum", low, x), c.b.emit("minimum", x, high))


def select_of(pred: Callable[[Case, tuple[int, ...]], Value], alike: bool = False) -> Make:
    def make(c: Case, dtype: DType) -> Case:
        shape = c.shape(1, 1)
        x, y = c.param(dtype, shape), c.param(dtype, shape)
        return c.done(c.b.emit("select", pred(c, shape), x, x if alike else y))

    return make


def _known_pred(c: Case, shape: tuple[int, ...]) -> Value:
    return c.splat(bool(c.seed % 2), I1, shape)


def _computed_pred(c: Case, shape: tuple[int, ...]) -> Value:
    x = c.b.emit("iota", shape=shape, dtype="si32", axis=0)
    return c.b.compare(x, c.splat(1, SI32, shape), "less")


def select_mixed(c: Case, dtype: DType) -> Case:
    x, y = c.param(dtype, [2]), c.param(dtype, [2])
    return c.done(c.b.emit("select", c.b.constant([True, False]), x, y))


def stop_gradients(count: int) -> Make:
    def make(c: Case, dtype: DType) -> Case:
        x = c.param(dtype, c.shape())
        for _ in range(count):
            x = c.b.emit("stop_gradient", x)
        return c.done(x)

    return make


_WRONG_COMPLEX_ZERO = _number(0.0, complex(-0.0, 0.0))

INSTANCES: dict[str, Instances] = {
    "cast-same": Instances(ANY, cast_same, ((F32, cast_other), (SI8, cast_other))),
    "cast-of-cast": Instances(ANY, cast_of_cast, ROUNDING_CASTS),
    "reshape-same": Instances(ANY, reshape_same, ((F32, reshape_other),)),
    "reshape-of-reshape": Instances(ANY, reshape_of_reshape, ((F32, reshape_that_names_a_dim),)),
    "transpose-identity": Instances(ANY, transpose_identity, ((F32, transpose_square),)),
    "transpose-of-transpose": Instances(
        ANY, transpose_of(_plain), ((F32, transpose_of(_negated)),)
    ),
    "slice-all": Instances(
        ANY, slice_all, ((F32, slice_some), (F32, slice_of_all_of_a_dynamic_dim))
    ),
    "slice-of-slice": Instances(ANY, slice_of(_plain), ((F32, slice_of(_negated)),)),
    "broadcast-same": Instances(ANY, broadcast_same, ((F32, broadcast_more),)),
    "broadcast-of-broadcast": Instances(
        ANY, broadcast_of(_plain), ((F32, broadcast_of(_negated)),)
    ),
    "concat-one": Instances(ANY, concat_of(3), ((F32, concat_of(1, 2)),)),
    "concat-empty": Instances(
        ANY, concat_of(0, 2, 0, 1), ((F32, concat_of(1, 2)), (F32, concat_of(0, 0)))
    ),
    "function-of-numbers": Instances(
        FLOATS,
        numbers_of(9, scaled),
        (
            (F32, numbers_of(5, scaled)),
            (F32, numbers_of(9, turned)),
            (SI32, numbers_of(9, lambda c, x, n: c.b.div(x, c.b.literal([n + 1], SI32)))),
            (F32, sums_of_unknown),
        ),
    ),
    "pad-nothing": Instances(
        ANY,
        pad_by(0, 0, 0),
        ((F32, pad_by(1, 0, 0)), (F32, pad_by(0, 1, 0)), (F32, pad_by(0, 0, 1))),
    ),
    "tile-once": Instances(ANY, tile_by(1), ((F32, tile_by(2)), (F32, tile_by(0)))),
    "dynamic-slice-all": Instances(
        ANY, dynamic_slice((3, -2), (4, 5), known=False), ((F32, dynamic_slice((0, 0), (4, 4))),)
    ),
    "dynamic-slice-constant": Instances(
        ANY,
        random_dynamic_slice,
        (
            (F32, dynamic_slice((1, 1), (2, 2), known=False)),
            (F32, dynamic_slice_of_dynamic_dim(1)),
        ),
    ),
    "dynamic-update-all": Instances(
        ANY, dynamic_update((1, 0), (4, 5), known=False), ((F32, dynamic_update((0, 0), (4, 4))),)
    ),
    "dynamic-update-clamp": Instances(
        ANY,
        dynamic_update((-1, 9), (2, 2)),
        (
            (F32, dynamic_update((1, 3), (2, 2))),
            (F32, dynamic_update((9, 9), (2, 2), known=False)),
        ),
    ),
    "neg-of-neg": Instances(NUMBERS, negated("neg"), ((F32, negated("abs")),)),
    "add-zero": Instances(
        NUMBERS,
        with_number("add", ADDED_ZERO, None),
        (
            *((d, with_number("add", SUBTRACTED_ZERO, None)) for d in by_name(FLOATS | COMPLEX)),
            (CF32, with_number("add", _WRONG_COMPLEX_ZERO)),
            (SI32, with_number("add", ONE)),
        ),
    ),
    "sub-zero": Instances(
        NUMBERS,
        with_number("sub", SUBTRACTED_ZERO),
        (
            *((d, with_number("sub", ADDED_ZERO)) for d in by_name(FLOATS | COMPLEX)),
            (CF32, with_number("sub", _WRONG_COMPLEX_ZERO)),
            (F32, with_number("sub", SUBTRACTED_ZERO, swap=True)),
            (SI32, with_number("sub", SUBTRACTED_ZERO, swap=True)),
        ),
    ),
    "mul-one": Instances(
        REALS,
        with_number("mul", ONE, None),
        (
            (CF32, with_number("mul", ONE)),
            (CF64, with_number("mul", ONE)),
            (F32, with_number("mul", _number(-1.0))),
            (SI8, with_number("mul", _number(2))),
        ),
    ),
    "div-one": Instances(
        REALS,
        with_number("div", ONE),
        ((CF32, with_number("div", ONE)), (F32, with_number("div", ONE, swap=True))),
    ),
    "mul-zero": Instances(
        INTEGERS,
        times_zero,
        tuple((d, with_number("mul", _number(0))) for d in by_name(FLOATS | COMPLEX)),
    ),
    "extremum-same": Instances(ORDERED, extremum_same, ((F32, extremum_other),)),
    "extremum-identity": Instances(
        ORDERED,
        extremum_identity,
        tuple((d, with_number("maximum", lambda d: d.highest)) for d in by_name(ORDERED)),
    ),
    "select-constant": Instances(
        ANY, select_of(_known_pred), ((F32, select_of(_computed_pred)), (F32, select_mixed))
    ),
    "select-same": Instances(
        ANY, select_of(_computed_pred, alike=True), ((F32, select_of(_computed_pred)),)
    ),
    "stop-gradient-twice": Instances(ANY, stop_gradients(2), ((F32, stop_gradients(1)),)),
}


def test_every_rule_has_instances() -> None:
    assert list(INSTANCES) == [rule.name for rule in RULES]


@pytest.mark.parametrize("name", INSTANCES)
def test_rule_fires_and_changes_no_bit(name: str) -> None:
    instances = INSTANCES[name]
    for dtype in by_name(instances.dtypes):
        for seed in range(3):
            case = instances.fires(Case(seed), dtype)
            log = PassLog()
            after = canonicalise(case.program, log)
            assert name in log.counts, f"{dtype}, seed {seed}: {log.counts}"
            agree(case.program, after, case.inputs)


@pytest.mark.parametrize("name", INSTANCES)
def test_rule_leaves_what_only_resembles_it(name: str) -> None:
    for dtype, make in INSTANCES[name].resembles:
        for seed in range(4):
            case = make(Case(seed), dtype)
            log = PassLog()
            after = canonicalise(case.program, log)
            assert name not in log.counts, f"{dtype}, seed {seed}"
            agree(case.program, after, case.inputs)


# -- casts, exhaustively -------------------------------------------------------------------------


def values_of(dtype: DType) -> Array:
    """All values of a dtype of up to 16 bits, and a sample with the special ones of a wider one."""
    if dtype.bits == 16 or (dtype.is_float and dtype.bits == 8):
        return np.arange(2**dtype.bits, dtype=f"u{dtype.bits // 8}").view(dtype.numpy)
    if dtype.is_integer and dtype.bits <= 8:
        low, high = int(dtype.lowest), int(dtype.highest)
        return np.arange(low, high + 1).astype(dtype.numpy)
    if dtype.is_complex:
        part = F32 if dtype is CF32 else F64
        parts = np.meshgrid(specials(part.numpy), specials(part.numpy))
        result = np.empty(parts[0].shape, dtype.numpy)
        result.real, result.imag = parts
        return result.reshape(-1)
    scales = [random_array(dtype, (64,), seed, 10.0 ** (seed - 4)) for seed in range(9)]
    return np.concatenate([specials(dtype.numpy), *scales])


def cast(array: Array, *through: DType) -> Array:
    with np.errstate(all="ignore"):
        for source, target in itertools.pairwise(through):
            array = numeric.cast(array, source, target)
    return array


def alike(a: Array, b: Array) -> bool:
    """The same values, -0 apart from +0 and NaN equal to NaN."""
    if a.dtype.kind == "c":
        return alike(a.real, b.real) and alike(a.imag, b.imag)
    if a.dtype.kind in "iub":
        return np.array_equal(a, b)
    with np.errstate(invalid="ignore"):  # signalling NaN
        x, y = a.astype(np.float64), b.astype(np.float64)
    nan, signs = np.isnan(x), np.signbit(x) == np.signbit(y)
    return np.array_equal(x, y, equal_nan=True) and bool(np.all(nan | signs))


@pytest.mark.parametrize("source", ALL, ids=str)
def test_embeds_is_what_survives_a_round_trip(source: DType) -> None:
    """si64 and ui64 in f64 and wide floats in each other are decided by their extreme values."""
    values = values_of(source)
    for target in ALL:
        survives = alike(cast(values, source, target, source), values)
        assert embeds(source, target) == survives, f"{source} in {target}"


@pytest.mark.parametrize("first", ALL, ids=str)
def test_casts_that_compose_give_the_same_values(first: DType) -> None:
    values = values_of(first)
    for middle in ALL:
        through = cast(values, first, middle)
        for last in ALL:
            if composes(first, middle, last):
                twice, once = cast(through, middle, last), cast(values, first, last)
                assert alike(twice, once), f"{first} -> {middle} -> {last}"


# -- what the rules make together ----------------------------------------------------------------


def test_a_start_on_a_dynamic_dim_is_known_when_it_is_not_positive() -> None:
    case = dynamic_slice_of_dynamic_dim(-3)(Case(1), F32)
    after = canonicalise(case.program)
    assert mnemonics(after) == ["slice"]
    agree(case.program, after, case.inputs)


def test_there_and_back_is_nothing() -> None:
    case = Case(0)
    x = case.param(F16, [2, 3, 4])
    wide = case.b.cast(x, F32)
    turned = case.b.transpose(case.b.transpose(wide, [2, 0, 1]), [1, 2, 0])
    flat = case.b.reshape(case.b.reshape(turned, [24]), [2, 3, 4])
    case.done(case.b.cast(flat, F16))
    after = canonicalise(case.program)
    assert after.main.result_ids == after.main.parameter_ids
    agree(case.program, after, case.inputs)


def test_a_symbol_is_part_of_the_type() -> None:
    """`[?B, 4]` comes back as `[?d1, 4]`: the same sizes, but another type."""
    program = reshape_that_names_a_dim(Case(0), F32).program
    log = PassLog()
    assert canonicalise(program, log) is program
    assert log.entries == []


def test_rules_print_as_mathematics() -> None:
    rule = next(rule for rule in RULES if rule.name == "slice-of-slice")
    assert str(rule) == ("slice-of-slice: slice(slice(x, a, m), b, n) -> slice(x, a + b, n)")
