"""Raising: every usual spelling is found, what only looks like one is left alone, and programs keep
their meaning."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import weft
from tests.support.cases import each, one_in
from tests.unit.coarse.raising.raised import HEADS, Shape, agree, attention, built, check, coarse
from weft.coarse.raising import PATTERNS, raise_program
from weft.foundation.dtypes import as_dtype
from weft.ptir import Builder, HintRegion, Value, library, verify
from weft.ptir.decompose import decompose
from weft.ptir.ir import HintKind, HintPolicy
from weft.ptir.passes import PassLog
from weft.testing import random_program

# -- softmax -------------------------------------------------------------------------------------

INVERSES: dict[str, Callable[..., Any]] = {
    "div": lambda b, e, t, back: e / back(t),
    "reciprocal": lambda b, e, t, back: e * back(b.reciprocal(t)),
    "one over": lambda b, e, t, back: back(1.0 / t) * e,
    "of the repeated": lambda b, e, t, back: e * b.reciprocal(back(t)),
}


def softmax(
    b: Any, x: Any, inverse: str = "div", axis: int = 1, *, keep: bool = True,
    stop: bool = False,
) -> Any:  # fmt: skip
    def back(row: Any) -> Any:
        kept = [1 if d == axis else n for d, n in enumerate(x.shape)]
        return b.broadcast_to(row if keep else b.reshape(row, kept), x.shape)

    largest = b.reduce_max(x, [axis], keepdims=keep)
    e = b.exp(x - back(b.stop_gradient(largest) if stop else largest))
    total = b.reduce_sum(e, [axis], keepdims=keep)
    return INVERSES[inverse](b, e, total, back)


@each("inverse", INVERSES)
@each("axis", [0, 1])
@each(("keep", "stop"), [*itertools.product([True, False], repeat=2)])
def test_softmax(inverse: str, axis: int, keep: bool, stop: bool) -> None:
    program = built(lambda b, x: softmax(b, x, inverse, axis, keep=keep, stop=stop), (3, 5))
    raised = check(program, "byteir.softmax")
    assert raised.main.body[-1].op.axis == axis  # type: ignore[attr-defined]


def test_softmax_of_narrow_floats_keeps_its_casts() -> None:
    raised = check(built(lambda b, x: b.softmax(x), (3, 5), dtype="f16"), "byteir.softmax")
    assert [i.op.mnemonic for i in raised.main.body] == ["cast", "byteir.softmax", "cast"]


def unshifted(b: Any, x: Any) -> Any:
    e = b.exp(x)
    return e / b.broadcast_to(b.reduce_sum(e, [1], keepdims=True), x.shape)


def other_axis(b: Any, x: Any) -> Any:
    largest = b.broadcast_to(b.reduce_max(x, [0], keepdims=True), x.shape)
    e = b.exp(x - largest)
    return e / b.broadcast_to(b.reduce_sum(e, [1], keepdims=True), x.shape)


def other_sum(b: Any, x: Any, y: Any) -> Any:
    e = b.exp(x - b.broadcast_to(b.reduce_max(x, [1], keepdims=True), x.shape))
    return e / b.broadcast_to(b.reduce_sum(b.exp(y), [1], keepdims=True), x.shape)


def columns_for_rows(b: Any, x: Any) -> Any:
    """The sums of the rows, laid along the columns of a square matrix."""
    e = b.exp(x - b.broadcast_to(b.reduce_max(x, [1], keepdims=True), x.shape))
    return e / b.broadcast_to(b.reduce_sum(e, [1]), x.shape)


def scaled_sum(b: Any, x: Any) -> Any:
    e = b.exp(x - b.broadcast_to(b.reduce_max(x, [1], keepdims=True), x.shape))
    return e / b.broadcast_to(b.reduce_sum(e, [1], keepdims=True) * 2.0, x.shape)


@pytest.mark.parametrize(
    ("function", "shapes"),
    [(unshifted, [(3, 5)]), (other_axis, [(3, 5)]), (other_sum, [(3, 5), (3, 5)]),
     (columns_for_rows, [(4, 4)]), (scaled_sum, [(3, 5)])],
)  # fmt: skip
def test_what_only_looks_like_softmax(function: Any, shapes: Sequence[Shape]) -> None:
    program = built(function, *shapes)
    assert raise_program(program) is program


# -- log_softmax ---------------------------------------------------------------------------------


def log_softmax(b: Any, x: Any, form: str) -> Any:
    largest = b.reduce_max(x, [1], keepdims=True)
    shifted = x - b.broadcast_to(largest, x.shape)
    total = b.log(b.reduce_sum(b.exp(shifted), [1], keepdims=True))
    if form == "two steps":
        return shifted - b.broadcast_to(total, x.shape)
    both = largest + total if form == "max first" else total + largest
    return x - b.broadcast_to(both, x.shape)


@pytest.mark.parametrize("form", ["two steps", "max first", "log first"])
def test_log_softmax(form: str) -> None:
    check(built(lambda b, x: log_softmax(b, x, form), (3, 5)), "byteir.log_softmax")


# -- gelu ----------------------------------------------------------------------------------------

ROOT, HALF = math.sqrt(2.0), math.sqrt(0.5)
PI = math.sqrt(2.0 / math.pi)
GELUS: dict[str, Callable[[Any, Any], Any]] = {
    "library": lambda b, x: b.gelu(x),
    "divided": lambda b, x: x * 0.5 * (1.0 + b.erf(x / ROOT)),
    "multiplied": lambda b, x: x * 0.5 * (1.0 + b.erf(x * 0.7071067811865476)),
    "half last": lambda b, x: x * (b.erf(x * HALF) + 1.0) * 0.5,
    "half first": lambda b, x: 0.5 * (x * (b.erf(x * HALF) + 1.0)),
    "half inside": lambda b, x: x * (0.5 + 0.5 * b.erf(x / ROOT)),
    "halved": lambda b, x: x / 2.0 * (1.0 + b.erf(x / ROOT)),
    "minus": lambda b, x: x * 0.5 * (1.0 - b.erf(x * HALF) * -1.0),
}
TANHS: dict[str, Callable[[Any, Any], Any]] = {
    "cube": lambda b, x: 0.5 * x * (1.0 + b.tanh(PI * (x + 0.044715 * x * x * x))),
    "power": lambda b, x: 0.5 * x * (1.0 + b.tanh(PI * (x + 0.044715 * x**3.0))),
    "factored": lambda b, x: x * 0.5 * (b.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x)) + 1.0),
    "half inside": lambda b, x: x * (0.5 + 0.5 * b.tanh((x + x * x * x * 0.044715) * PI)),
}


@pytest.mark.parametrize("form", GELUS)
def test_gelu(form: str) -> None:
    raised = check(built(GELUS[form], (3, 5)), "byteir.gelu")
    assert str(raised.main.body[-1].op.approximate) == "none"  # type: ignore[attr-defined]


@pytest.mark.parametrize("form", TANHS)
def test_gelu_by_tanh(form: str) -> None:
    raised = check(built(TANHS[form], (3, 5)), "byteir.gelu")
    assert str(raised.main.body[-1].op.approximate) == "tanh"  # type: ignore[attr-defined]


def test_gelu_of_a_product() -> None:
    check(built(lambda b, x, y: b.gelu(x * y), (3,), (3,)), "byteir.gelu")
    check(built(lambda b, x, y: TANHS["cube"](b, x * y), (3,), (3,)), "byteir.gelu")


NOT_GELU: dict[str, Callable[[Any, Any], Any]] = {
    "another root": lambda b, x: x * 0.5 * (1.0 + b.erf(x * 0.7072)),
    "another half": lambda b, x: x * 0.501 * (1.0 + b.erf(x * HALF)),
    "subtracted": lambda b, x: x * 0.5 * (1.0 - b.erf(x * HALF)),
    "squared": lambda b, x: x * x * 0.5 * (1.0 + b.erf(x * HALF)),
    "another cube": lambda b, x: 0.5 * x * (1.0 + b.tanh(PI * (x + 0.0447 * x * x * x))),
    "no cube": lambda b, x: 0.5 * x * (1.0 + b.tanh(PI * x)),
    "of another": lambda b, x: (x + 1.0) * 0.5 * (1.0 + b.erf(x * HALF)),
}


@pytest.mark.parametrize("form", NOT_GELU)
def test_what_only_looks_like_gelu(form: str) -> None:
    program = built(NOT_GELU[form], (3, 5))
    assert raise_program(program) is program


# -- norms ---------------------------------------------------------------------------------------

ROOTS: dict[str, Callable[..., Any]] = {
    "rsqrt": lambda b, c, t, back: c * back(b.rsqrt(t)),
    "sqrt": lambda b, c, t, back: c / back(b.sqrt(t)),
    "one over": lambda b, c, t, back: c * back(1.0 / b.sqrt(t)),
    "reciprocal": lambda b, c, t, back: back(b.reciprocal(b.sqrt(t))) * c,
    "of the repeated": lambda b, c, t, back: c / b.sqrt(back(t)),
    "power": lambda b, c, t, back: c / back(t**0.5),
    "inverse power": lambda b, c, t, back: c * back(t**-0.5),
}


def layer_norm(
    b: Any, x: Any, w: Any, c: Any, *, root: str = "rsqrt", times: bool = False,
    power: bool = False, swap: bool = False, outside: bool = False, epsilon: float = 1e-3,
    count: float | None = None,
) -> Any:  # fmt: skip
    size = float(x.shape[-1]) if count is None else count

    def back(row: Any) -> Any:
        return b.broadcast_to(row, x.shape)

    def mean(value: Any) -> Any:
        total = b.reduce_sum(value, [x.rank - 1], keepdims=True)
        return total * (1.0 / size) if times else total / size

    centred = x - back(mean(x))
    variance = mean(centred**2.0 if power else centred * centred)
    if outside:
        normal = centred / back(b.sqrt(variance) + epsilon)
    else:
        normal = ROOTS[root](b, centred, epsilon + variance, back)
    return back(c) + back(w) * normal if swap else normal * back(w) + back(c)


@each("root", ROOTS)
@each(("times", "power", "swap"), [*itertools.product([False, True], repeat=3)])
def test_layer_norm(root: str, times: bool, power: bool, swap: bool) -> None:
    def function(b: Any, x: Any, w: Any, c: Any) -> Any:
        return layer_norm(b, x, w, c, root=root, times=times, power=power, swap=swap)

    check(built(function, (4, 6), (6,), (6,)), "byteir.layer_norm")


def test_layer_norm_with_epsilon_outside() -> None:
    program = built(lambda b, *p: layer_norm(b, *p, outside=True), (4, 6), (6,), (6,))
    raised = check(program, "byteir.layer_norm")
    assert raised.main.body[-1].op.eps_outside_sqrt  # type: ignore[attr-defined]


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_layer_norm_along_any_axis(axis: int) -> None:
    def function(b: Any, x: Any, w: Any, c: Any) -> Any:
        return library.layer_norm(x, w, c, epsilon=1e-5, feature_axis=axis)

    check(built(function, (3, 3, 3), (3,), (3,)), "byteir.layer_norm")


@pytest.mark.parametrize("power", [0.25, -0.25, -1.0, 2.0])
def test_another_power_is_no_root(power: float) -> None:
    def function(b: Any, x: Any, w: Any, c: Any) -> Any:
        def back(row: Any) -> Any:
            return b.broadcast_to(row, x.shape)

        centred = x - back(b.reduce_sum(x, [1], keepdims=True) / 6.0)
        variance = b.reduce_sum(centred * centred, [1], keepdims=True) / 6.0
        return centred * back((variance + 1e-3) ** power) * back(w) + back(c)

    check(built(function, (4, 6), (6,), (6,)))


def of_another_mean(b: Any, x: Any, y: Any, w: Any, c: Any) -> Any:
    mean = b.broadcast_to(b.reduce_sum(y, [1], keepdims=True) / 6.0, x.shape)
    centred = x - mean
    variance = b.reduce_sum(centred * centred, [1], keepdims=True) / 6.0
    normal = centred * b.broadcast_to(b.rsqrt(variance + 1e-3), x.shape)
    return normal * b.broadcast_to(w, x.shape) + b.broadcast_to(c, x.shape)


def test_what_only_looks_like_layer_norm() -> None:
    unbiased = built(lambda b, *p: layer_norm(b, *p, count=5.0), (4, 6), (6,), (6,))
    negative = built(lambda b, *p: layer_norm(b, *p, epsilon=-1e-3), (4, 6), (6,), (6,))
    other = built(of_another_mean, (4, 6), (4, 6), (6,), (6,))
    for program in (unbiased, negative, other):
        assert raise_program(program) is program


LENGTHS: dict[str, Callable[..., Any]] = {
    "rsqrt": lambda b, x, s, e, back: x * back(b.rsqrt(b.maximum(s, e))),
    "sqrt": lambda b, x, s, e, back: x / back(b.sqrt(b.maximum(e, s))),
    "reciprocal": lambda b, x, s, e, back: back(b.reciprocal(b.sqrt(b.maximum(s, e)))) * x,
    "outside": lambda b, x, s, e, back: x / back(b.maximum(b.sqrt(s), e)),
    "one over": lambda b, x, s, e, back: x * back(1.0 / b.maximum(b.sqrt(s), e)),
    "of the repeated": lambda b, x, s, e, back: x / b.sqrt(back(b.maximum(s, e))),
}


@pytest.mark.parametrize("form", LENGTHS)
@pytest.mark.parametrize("axes", [[1], [0], [0, 1]])
def test_l2_norm(form: str, axes: list[int]) -> None:
    def function(b: Any, x: Any) -> Any:
        squares = b.reduce_sum(x * x, axes, keepdims=True)
        bound = b.full(squares.shape, 0.01, "f32")
        return LENGTHS[form](b, x, squares, bound, lambda row: b.broadcast_to(row, x.shape))

    raised = check(built(function, (3, 5)), "byteir.l2_norm")
    op: Any = raised.main.body[-1].op
    assert sorted(op.axis) == axes
    assert bool(op.eps_outside_sqrt) == (form in ("outside", "one over"))


def test_a_root_mean_square_is_no_l2_norm() -> None:
    def function(b: Any, x: Any) -> Any:
        mean = b.reduce_sum(x * x, [1], keepdims=True) / 5.0
        return x * b.broadcast_to(b.rsqrt(mean + 1e-5), x.shape)

    program = built(function, (3, 5))
    assert raise_program(program) is program


# -- in programs ---------------------------------------------------------------------------------


def test_values_that_others_read_keep_a_formula_as_it_is() -> None:
    def function(b: Any, x: Any) -> list[Value]:
        e = b.exp(x - b.broadcast_to(b.reduce_max(x, [1], keepdims=True), x.shape))
        return [e / b.broadcast_to(b.reduce_sum(e, [1], keepdims=True), x.shape), e]

    program = built(function, (3, 5))
    assert raise_program(program) is program


def test_a_required_hint_keeps_its_instructions() -> None:
    b = Builder()
    program = b.build(b.softmax(b.param("f32", [3, 5])))
    for policy, found in ((HintPolicy.REQUIRED, []), (HintPolicy.PREFERRED, ["byteir.softmax"])):
        held = program.main.body[2:4]
        hint = HintRegion(0, HintKind.ELEMENTWISE_DAG, policy, (0, 2), (4,), held)
        marked = program.with_main(type(program.main)(**{**vars(program.main), "hints": (hint,)}))
        verify(marked)
        log = PassLog()
        assert coarse(raise_program(marked, log)) == found
        assert bool(log.notes) == bool(found)


def test_the_log_names_what_was_found_and_where() -> None:
    log = PassLog()
    raise_program(built(lambda b, x: b.gelu(b.softmax(x)), (3, 5)), log)
    assert [fired.rule for fired in log.fired if fired.rule.startswith("raise")] == [
        "raise-softmax", "raise-gelu",
    ]  # fmt: skip
    assert all("test_raising.py" in fired.place for fired in log.fired)


def test_formulas_inside_regions_are_found() -> None:
    b = Builder()
    x = b.param("f32", [3, 2, 5])
    program = b.build(b.scan(lambda r, row: r.gelu(r.softmax(row)), [], [x]))
    assert coarse(raise_program(program)) == ["byteir.softmax", "byteir.gelu"]


def test_dynamic_dims_are_no_obstacle() -> None:
    b = Builder()
    x = b.param("f32", ["?A", "?B"])
    program = b.build(b.gelu(b.softmax(x)))
    raised = raise_program(program)
    verify(raised)
    assert coarse(raised) == ["byteir.softmax", "byteir.gelu"]


def test_raising_twice_changes_nothing_more() -> None:
    program = built(lambda b, *p: attention(b, *p), *[HEADS] * 3)
    raised = raise_program(program)
    assert raise_program(raised) is raised


FORMULAS: list[Callable[[Any, Any], Any]] = [
    lambda b, x: b.softmax(x),
    lambda b, x: b.gelu(x),
    lambda b, x: log_softmax(b, x, "max first"),
    lambda b, x: TANHS["power"](b, x),
    lambda b, x: layer_norm(b, x, *(b.full(x.shape[1:], n, "f32") for n in (1.5, 0.5))),
    lambda b, x: LENGTHS["sqrt"](
        b, x, b.reduce_sum(x * x, [1], keepdims=True), b.full([x.shape[0], 1], 0.01, "f32"),
        lambda row: b.broadcast_to(row, x.shape),
    ),
    lambda b, x: attention(b, x, x, x),
    lambda b, x: b.tanh(x) + 0.5,
    lambda b, x: x * x - x,
]  # fmt: skip


@pytest.mark.parametrize("seed", range(24))
def test_formulas_inside_larger_programs(seed: int) -> None:
    rng = np.random.default_rng(seed)

    def function(b: Any, x: Any, y: Any) -> list[Value]:
        values = [x, y]
        for index in rng.integers(0, len(FORMULAS), 8):
            picked = values[int(rng.integers(0, len(values)))]
            values.append(FORMULAS[index](b, picked))
        return values[-3:]

    program = built(function, (4, 6), (4, 6))
    raised = raise_program(program)
    verify(raised)
    agree(program, raised, seed=seed)
    agree(program, decompose(raised), seed=seed)


def random_case(seed: int) -> None:
    case = random_program(seed, 16)
    raised = raise_program(case.program)
    verify(raised)
    wanted = weft.run(case.program, case.inputs, seed=3)
    for after in (raised, decompose(raised)):
        for a, b in zip(wanted, weft.run(after, case.inputs, seed=3), strict=True):
            assert a.dtype == b.dtype
            if after is case.program or as_dtype(a.dtype).is_integer:
                np.testing.assert_array_equal(a.astype(np.complex128), b.astype(np.complex128))
            else:
                np.testing.assert_allclose(
                    a.astype(np.complex128), b.astype(np.complex128), rtol=5e-3, atol=5e-3
                )


@pytest.mark.parametrize("block", one_in(3, range(6)))
def test_random_programs_keep_their_meaning(block: int) -> None:
    for seed in range(block * 10, block * 10 + 10):
        random_case(seed)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_many_random_programs_keep_their_meaning(block: int) -> None:
    for seed in range(1000 + block * 25, 1025 + block * 25):
        random_case(seed)


def test_every_pattern_is_tried() -> None:
    assert set(PATTERNS) == {
        "softmax", "log_softmax", "layer_norm", "gelu", "l2_norm", "attention",
        "turned_attention",
    }  # fmt: skip
