"""The transformation itself: what it takes and gives, ties and kinks, dtypes, sizes, refusals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import weft
from weft.foundation.dtypes import BF16, F16, as_dtype
from weft.foundation.errors import SpecViolation, Unimplemented, UserError
from weft.ptir import BodyBuilder, Builder, Program, Value, dumps, loads, tensor, verify
from weft.ptir.gradient import gradient, jvp, vjp
from weft.ptir.ir import HintKind, HintPolicy, HintRegion
from weft.ptir.ops.random import RngUniform
from weft.ptir.types import TupleType

Array = np.ndarray[Any, Any]


def run(program: Program, *inputs: Any, seed: int = 0) -> list[Array]:
    verify(program)
    return weft.run(program, [np.asarray(i) for i in inputs], backend="reference", seed=seed)


def gradients(function: Any, *inputs: Any) -> list[Array]:
    """The gradients of the sum of what a function of the builder computes."""
    b = Builder()
    arrays = [np.asarray(i) for i in inputs]
    y = function(b, *(b.param(as_dtype(a.dtype), a.shape) for a in arrays))
    total = b.reduce_sum(y, list(range(y.rank)))
    smooth = [i for i, a in enumerate(arrays) if as_dtype(a.dtype).is_float]
    return run(gradient(b.build(total), smooth), *arrays)[1:]


# -- what it takes and gives ---------------------------------------------------------------------


def two_layers() -> Program:
    b = Builder("net")
    x, w, v = b.param("f64", [2, 3]), b.param("f64", [3, 4]), b.param("f64", [4, 1])
    hidden = b.tanh(x @ w)
    return b.build(b.reduce_sum(hidden @ v, [0, 1]), hidden)


def test_all_results_come_before_the_gradients() -> None:
    program = two_layers()
    made = gradient(program, [1, 2])
    assert made.main.parameters == program.main.parameters
    wanted = (*program.main.results, tensor("f64", [3, 4]), tensor("f64", [4, 1]))
    assert made.main.results == wanted
    assert made.entry == "net"
    source = np.random.default_rng(0)
    x, w, v = (source.standard_normal(s) for s in ((2, 3), (3, 4), (4, 1)))
    loss, hidden, by_w, by_v = run(made, x, w, v)
    np.testing.assert_allclose(hidden, np.tanh(x @ w))
    np.testing.assert_allclose(loss, (hidden @ v).sum())
    inner = np.ones((2, 1)) @ v.T * (1 - hidden**2)
    np.testing.assert_allclose(by_w, x.T @ inner)
    np.testing.assert_allclose(by_v, hidden.T @ np.ones((2, 1)))


def test_the_forward_part_is_as_it_was() -> None:
    program = two_layers()
    made = gradient(program, 1)
    assert made.main.body[: len(program.main.body)] == program.main.body
    assert made.locations[made.main.label, made.main.body[-1].id].startswith("test_gradient.py:")


def test_control_flow_keeps_its_id() -> None:
    """Whoever marked an instruction finds it again, though it returns more than before."""
    b = Builder()
    c, xs = b.param("f64", [2]), b.param("f64", [3, 2])
    y = b.scan(lambda r, c, x: r.sin(c) * x, [c], [xs])
    z = b.cond(b.compare(b.reduce_sum(y, [0]), 0.0, "less"), lambda r, y: r.exp(y) * y,
               lambda r, y: r.sin(y), y)  # fmt: skip
    program = b.build(b.reduce_sum(z, [0]))
    made = gradient(program, [0, 1])
    kept = {i.id: i.op.mnemonic for i in made.main.body}
    assert {i.id: i.op.mnemonic for i in program.main.body}.items() <= kept.items()


def test_a_vjp_has_a_cotangent_for_each_float_result() -> None:
    b = Builder()
    x = b.param("f64", [4])
    found = b.top_k(x, k=2, axis=0, largest=True, indices_dtype="si32")
    program = b.build(found, x * 2.0, b.compare(x, 0.0, "less"))
    made = vjp(program, 0)
    assert made.main.parameters == (tensor("f64", [4]), tensor("f64", [2]), tensor("f64", [4]))
    assert isinstance(made.main.results[0], TupleType)
    *_, by_x = run(made, [3.0, 1.0, 2.0, 0.0], [10.0, 20.0], [1.0, 1.0, 1.0, 1.0])
    np.testing.assert_array_equal(by_x, [12.0, 2.0, 22.0, 2.0])


def test_a_vjp_of_some_results_only() -> None:
    b = Builder()
    x, y = b.param("f64", [2]), b.param("f64", [2])
    program = b.build(x * y, x + y)
    made = vjp(program, [1, 0], of=1)
    assert len(made.main.parameters) == 3
    *_, by_y, by_x = run(made, [2.0, 3.0], [5.0, 7.0], [1.0, 10.0])
    np.testing.assert_array_equal(by_y, [1.0, 10.0])
    np.testing.assert_array_equal(by_x, [1.0, 10.0])


def test_a_jvp_has_tangents_in_and_out() -> None:
    b = Builder()
    x, n = b.param("f64", [2]), b.param("si32", [2])
    program = b.build(b.sin(x), n)
    made = jvp(program, 0)
    assert made.main.parameters == (*program.main.parameters, tensor("f64", [2]))
    assert made.main.results == (*program.main.results, tensor("f64", [2]))
    found = run(made, [0.5, 1.0], np.array([1, 2], np.int32), [2.0, 3.0])
    np.testing.assert_allclose(found[2], np.cos([0.5, 1.0]) * [2.0, 3.0])


def test_forward_mode_holds_nothing_of_reverse_mode() -> None:
    """A product and a function: four more instructions are all that their tangents need."""
    b = Builder()
    x, w = b.param("f64", [2, 3]), b.param("f64", [3, 4])
    program = b.build(b.exp(x @ w))
    made = jvp(program, [0, 1])
    names = [i.op.mnemonic for i in made.main.body]
    assert names == ["dot_general", "exp", "dot_general", "dot_general", "add", "mul"]


def test_parameters_that_do_not_matter_get_zeros() -> None:
    b = Builder()
    x, _ = b.param("f64", [2]), b.param("f64", [3])
    _, by_y = run(gradient(b.build(b.reduce_sum(x, [0])), 1), [1.0, 2.0], [1.0, 2.0, 3.0])
    np.testing.assert_array_equal(by_y, np.zeros(3))


def test_a_parameter_may_be_the_result() -> None:
    b = Builder()
    x = b.param("f64")
    assert [float(v) for v in run(gradient(b.build(x), 0), 3.0)] == [3.0, 1.0]


def test_repeated_differentiation() -> None:
    b = Builder()
    x = b.param("f64")
    program = b.build(b.exp(x * 2.0))
    for order in range(1, 6):
        program = gradient(program, 0, of=order - 1)
        assert float(run(program, 0.5)[-1]) == pytest.approx(2.0**order * np.exp(1.0))


# -- ties and kinks ------------------------------------------------------------------------------

KINKS: list[tuple[str, Any, list[Any], list[Any]]] = [
    ("abs at 0", lambda b, x: b.abs(x), [[0.0, -2.0]], [[0.0, -1.0]]),
    ("sign", lambda b, x: b.sign(x), [[0.5, -2.0]], [[0.0, 0.0]]),
    ("floor", lambda b, x: b.floor(x), [[0.5, -2.5]], [[0.0, 0.0]]),
    ("equal operands", lambda b, x, y: b.maximum(x, y), [[1.0, 2.0], [1.0, 3.0]],
     [[0.5, 0.0], [0.5, 1.0]]),
    ("equal operands of minimum", lambda b, x, y: b.minimum(x, y), [[1.0, 2.0], [1.0, 3.0]],
     [[0.5, 1.0], [0.5, 0.0]]),
    ("equal largest", lambda b, x: b.reduce_max(x, [0]), [[1.0, 3.0, 3.0]], [[0.0, 0.5, 0.5]]),
    ("equal smallest", lambda b, x: b.reduce_min(x, [0]), [[1.0, 1.0, 1.0, 1.0]], [[0.25] * 4]),
    ("at the bounds", lambda b, x: b.clamp(x, b.full([4], 0.0, "f64"), b.full([4], 1.0, "f64")),
     [[0.0, 1.0, -0.1, 1.1]], [[1.0, 1.0, 0.0, 0.0]]),
    ("equal in a window", lambda b, x: b.reduce_window(
        x, window_dims=[2], strides=[2], padding=[(0, 0)], base_dilation=[1], window_dilation=[1],
        reduce="max"), [[2.0, 2.0, 1.0, 3.0]], [[1.0, 0.0, 0.0, 1.0]]),
    ("equal so far", lambda b, x: b.cumulative_max(x, axis=0), [[2.0, 2.0, 1.0]],
     [[1.0, 2.0, 0.0]]),
    ("equal in order", lambda b, x: b.sort(x, axis=0) * b.literal([1.0, 2.0, 3.0], "f64"),
     [[5.0, 5.0, 1.0]], [[2.0, 3.0, 1.0]]),
    ("equal in segments", lambda b, x: b.emit(
        "segment_max", x, b.literal([0, 0, 1], "si64"), num_segments=2, indices_are_sorted=True,
        unique=False), [[4.0, 4.0, 1.0]], [[0.5, 0.5, 1.0]]),
    ("replaced", lambda b, x, u: b.scatter_reduce(
        x, b.literal([1, 1], "si64"), u, axis=0, reduce="replace"), [[1.0, 2.0, 3.0], [7.0, 8.0]],
     [[1.0, 0.0, 1.0], [0.0, 1.0]]),
    ("zero to the zeroth", lambda b, x, y: b.pow(x, y), [[0.0, 0.0], [0.0, 2.0]],
     [[0.0, 0.0], [0.0, 0.0]]),
    ("copysign of 0", lambda b, x, y: b.copysign(x, y), [[0.0, 1.0], [-1.0, -1.0]],
     [[0.0, -1.0], [0.0, 0.0]]),
    ("stopped", lambda b, x: b.stop_gradient(x) * x, [[3.0]], [[3.0]]),
    ("through an integer", lambda b, x: b.cast(b.cast(x, "si32"), "f64") * x, [[3.7]], [[3.0]]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "function", "inputs", "wanted"), KINKS, ids=[k[0] for k in KINKS])
def test_at_a_tie_or_kink(name: str, function: Any, inputs: Any, wanted: Any) -> None:
    arrays = [np.array(i, np.float64) for i in inputs]
    for found, want in zip(gradients(function, *arrays), wanted, strict=True):
        np.testing.assert_array_equal(found, want)


# -- dtypes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "fp8_e5m2"])
def test_gradients_have_the_dtype_of_the_parameters(dtype: str) -> None:
    b = Builder()
    x, w = b.param(dtype, [4, 8]), b.param(dtype, [8, 2])
    y = b.dot_general(x, w, contract=([1], [0]), out_dtype="f32")
    made = gradient(b.build(b.reduce_sum(b.softmax(y) * y, [0, 1])), [0, 1])
    assert made.main.results[1:] == (x.type, w.type)
    source = np.random.default_rng(0)
    given = [source.standard_normal(s).astype(as_dtype(dtype).numpy) for s in ((4, 8), (8, 2))]
    found = run(made, *given)
    wide = Builder()
    a, c = wide.param("f64", [4, 8]), wide.param("f64", [8, 2])
    z = a @ c
    exact = run(
        gradient(wide.build(wide.reduce_sum(wide.softmax(z) * z, [0, 1])), [0, 1]),
        *(g.astype(np.float64) for g in given),
    )
    tolerance = {"f32": 1e-5, "f16": 5e-3, "bf16": 4e-2, "fp8_e5m2": 0.5}[dtype]
    for low, high in zip(found[1:], exact[1:], strict=True):
        assert np.abs(low.astype(np.float64) - high).max() <= tolerance * np.abs(high).max()


def test_products_of_narrow_floats_stay_narrow() -> None:
    """bf16 in and out: so are the two products of the way back, added up in f32."""
    b = Builder()
    x, w = b.param(BF16, [4, 8]), b.param(BF16, [8, 2])
    made = vjp(b.build(x @ w), [0, 1])
    dots = [i for i in made.main.body if i.op.mnemonic == "dot_general"]
    assert len(dots) == 3
    for dot in dots:
        assert dot.output.dtype is BF16  # type: ignore[union-attr]
        assert not [i for i in made.main.body if i.op.mnemonic == "cast"]


def test_two_narrow_dtypes_meet_in_f32() -> None:
    b = Builder()
    x, w = b.param(BF16, [4, 8]), b.param(BF16, [8, 2])
    made = vjp(b.build(b.dot_general(x, w, contract=([1], [0]), out_dtype=F16)), [0])
    verify(made)
    assert made.main.results[1] == x.type


# -- dynamic sizes -------------------------------------------------------------------------------


def test_dynamic_sizes() -> None:
    b = Builder()
    x, w = b.param("f64", ["?B", 3]), b.param("f64", [3, 4])
    y = b.layer_norm(b.tanh(x @ w), b.full([4], 1.5, "f64"), b.full([4], 0.1, "f64"), epsilon=1e-5,
                     feature_axis=-1)  # fmt: skip
    both = b.concat([y, y * 2.0], axis=0)
    first = b.slice(both, [0, 0], [1, 4])
    program = b.build(b.reduce_sum(both * both, [0, 1]) + b.reduce_sum(first, [0, 1]))
    made = gradient(program, [0, 1])
    verify(made)
    source = np.random.default_rng(0)
    for rows in (1, 5):
        xs, ws = source.standard_normal((rows, 3)), source.standard_normal((3, 4))
        found = run(made, xs, ws)
        step = 1e-6
        moved = [run(program, xs, ws + d * np.eye(3, 4))[0] for d in (step, -step)]
        slope = (moved[0] - moved[1]) / (2 * step)
        assert np.trace(found[2]) == pytest.approx(float(slope), rel=1e-6)


def test_a_scan_over_a_dynamic_number_of_steps() -> None:
    b = Builder()
    c, xs = b.param("f64", []), b.param("f64", ["?T"])
    program = b.build(b.scan(lambda r, c, x: r.sin(c) * x, [c], [xs]))
    made = gradient(program, [0, 1])
    given = [0.7, 1.1, 0.9]
    value, by_c, by_x = run(made, 0.5, given)
    steps = [0.5]
    for x in given:
        steps.append(np.sin(steps[-1]) * x)
    wanted, seed = [], 1.0
    for x, c0 in zip(given[::-1], steps[-2::-1], strict=True):
        wanted.append(seed * np.sin(c0))
        seed *= np.cos(c0) * x
    assert float(value) == pytest.approx(steps[-1])
    assert float(by_c) == pytest.approx(seed)
    np.testing.assert_allclose(by_x, wanted[::-1])


def test_a_size_that_a_rule_needs() -> None:
    b = Builder()
    x = b.param("f64", ["?N"])
    program = b.build(b.reduce_sum(b.cumulative_prod(x, axis=0), [0]))
    with pytest.raises(Unimplemented) as caught:
        gradient(program, 0)
    assert str(caught.value).startswith(
        "Unimplemented the gradient of cumulative_prod: the size ?N: a rule needs it as a number; "
        "give the program static dims there, or specialise it first; at %1 = cumulative_prod(%0)"
    )


# -- control flow and random numbers -------------------------------------------------------------


def regions_of(program: Program, name: str) -> list[Any]:
    return [i for body in program.bodies for i in body.body if i.op.mnemonic == name]


def test_a_scan_goes_back_in_one_scan() -> None:
    b = Builder()
    c, xs = b.param("f64", [2]), b.param("f64", [5, 2])
    made = gradient(
        b.build(b.reduce_sum(b.scan(lambda r, c, x: r.tanh(c) * x, [c], [xs]), [0])), [0, 1]
    )
    assert len(regions_of(made, "scan")) == 2


def test_weights_that_a_loop_carries_are_not_kept_at_every_step() -> None:
    b = Builder()
    h, w, xs = b.param("f64", [1, 64]), b.param("f64", [64, 64]), b.param("f64", [7, 1, 64])
    found = b.scan(lambda r, h, w, x: (r.tanh(r.matmul(h, w)) + x, w), [h, w], [xs])
    made = gradient(b.build(b.reduce_sum(found[0], [0, 1])), [1])
    for scan in regions_of(made, "scan"):
        for kind in scan.output.elements:
            assert kind.shape[-2:] != (64, 64) or kind.rank == 2


def test_products_in_a_loop_are_computed_once() -> None:
    b = Builder()
    h, w, xs = b.param("f64", [2, 3]), b.param("f64", [3, 3]), b.param("f64", [7, 2, 3])
    found = b.scan(lambda r, h, w, x: (r.tanh(r.matmul(h, w)) + x, w), [h, w], [xs])
    made = gradient(b.build(b.reduce_sum(found[0], [0, 1])), [0, 1])
    per_body = [sum(i.op.mnemonic == "dot_general" for i in region.body) for region in made.regions]
    # That of the weight is one product of all steps, after the loop.
    assert per_body == [1, 1]
    assert sum(i.op.mnemonic == "dot_general" for i in made.main.body) == 1


@pytest.mark.parametrize(("rows", "in_loop"), [(6, 0), (200, 1)])
def test_what_is_much_larger_than_a_weight_is_not_stacked_for_it(rows: int, in_loop: int) -> None:
    """Here nothing but the weight's gradient needs the second operand of every step."""
    b = Builder()
    h, w = b.param("f64", [rows, 3]), b.param("f64", [3, 3])
    xs = b.param("f64", [7])

    def step(r: BodyBuilder, h: Value, w: Value, x: Value) -> Any:
        return r.sin(r.matmul(h, w)) * r.broadcast_to(x, [rows, 3]), w

    made = gradient(b.build(b.reduce_sum(b.scan(step, [h, w], [xs])[0], [0, 1])), [1])
    products = [i for region in made.regions for i in region.body if is_weight(i)]
    assert len(products) == in_loop


def is_weight(instruction: Any) -> bool:
    return bool(instruction.op.mnemonic == "dot_general" and instruction.output.shape == (3, 3))


def test_random_numbers_are_drawn_once_and_stay_the_same() -> None:
    b = Builder()
    x, p = b.param("f64", [4]), b.param("i1")
    before = b.rng_uniform(shape=[4], dtype="f64")

    def noisy(r: BodyBuilder, x: Value) -> Value:
        return x * r.rng_uniform(shape=[4], dtype="f64")

    y = b.cond(p, noisy, lambda r, x: x, x * before)
    after = b.rng_uniform(shape=[4], dtype="f64")
    program = b.build(b.reduce_sum(y * after, [0]), y)
    made = gradient(program, 0)
    draws = [i for body in made.bodies for i in body.body if isinstance(i.op, RngUniform)]
    assert len(draws) == 3
    ones = np.ones(4)
    wanted = run(program, ones, True, seed=9)
    found = run(made, ones, True, seed=9)
    np.testing.assert_array_equal(found[1], wanted[1])
    (third,) = run(_third_draw(), seed=9)
    np.testing.assert_allclose(found[2], found[1] * third)


def _third_draw() -> Program:
    b = Builder()
    draws = [b.rng_uniform(shape=[4], dtype="f64") for _ in range(3)]
    return b.build(draws[2])


def test_while_offers_scan() -> None:
    b = Builder()
    x = b.param("f64")
    found = b.while_(lambda r, x: (x < 10.0, x * 1.0), lambda r, x: x * 2.0, x)
    with pytest.raises(Unimplemented) as caught:
        gradient(b.build(found), 0)
    assert str(caught.value).startswith(
        "Unimplemented the gradient of while: how often the loop runs is not known in advance, so "
        "the values that the gradient needs cannot be kept; write the loop as a scan over a fixed "
        "number of steps, with a select for those that come after the end; at %1 = while(%0) in "
        "function @main (test_gradient.py:"
    )


def test_forward_mode_through_while_is_refused_in_its_own_words() -> None:
    b = Builder()
    x = b.param("f64")
    found = b.while_(lambda r, x: (x < 10.0, x * 1.0), lambda r, x: x * 2.0, x)
    with pytest.raises(Unimplemented) as caught:
        jvp(b.build(found), 0)
    assert str(caught.value).startswith(
        "Unimplemented the gradient of while: forward mode is the adjoint of the adjoint, and a "
        "loop that runs an unknown number of times has no adjoint; write the loop as a scan over "
        "a fixed number of steps, with a select for those that come after the end; at %1 = "
    )


def test_a_while_that_does_not_matter_is_no_obstacle() -> None:
    b = Builder()
    x, n = b.param("f64"), b.param("si32")
    steps = b.while_(lambda r, n: (n < 10, n + 0), lambda r, n: n * 2, n)
    program = b.build(x * b.cast(steps, "f64"))
    assert float(run(gradient(program, 0), 2.0, np.int32(3))[1]) == 12.0


def test_a_tuple_as_a_carry_is_refused() -> None:
    b = Builder()
    x, xs = b.param("f64"), b.param("f64", [3])
    pair = b.make_tuple(x, x)
    found = b.scan(lambda r, t, s: r.make_tuple(t[0] * s, t[1]), [pair], [xs])
    with pytest.raises(Unimplemented, match=r"pass(es)? (only tensors; pass )?its elements"):
        gradient(b.build(found[0]), [0])


# -- depth ---------------------------------------------------------------------------------------


def test_a_chain_of_four_thousand() -> None:
    b = Builder()
    y = b.param("f64")
    for _ in range(4_000):
        y = b.neg(y)
    value, slope = run(gradient(b.build(y), 0), 2.0)
    assert (float(value), float(slope)) == (2.0, 1.0)


def test_deeply_nested_loops() -> None:
    def loop(depth: int) -> Any:
        def body(r: BodyBuilder, c: Value, x: Value) -> Value:
            if depth == 0:
                return r.sin(c) + x
            return r.scan(loop(depth - 1), [c], [r.broadcast_to(x, [1])])

        return body

    b = Builder()
    c, x = b.param("f64"), b.param("f64")
    made = gradient(b.build(loop(50)(b, c, x)), [0, 1])
    _, by_c, by_x = run(made, 0.5, 0.1)
    assert float(by_c) == pytest.approx(np.cos(0.5))
    assert float(by_x) == 1.0


def test_many_uses_of_one_value() -> None:
    b = Builder()
    x = b.param("f64")
    total = x
    for _ in range(500):
        total = total + x
    assert float(run(gradient(b.build(total), 0), 1.0)[1]) == 501.0


# -- formats and hints ---------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["json", "text", "bincode"])
def test_a_gradient_is_an_ordinary_program(form: str) -> None:
    b = Builder()
    c, w, xs = b.param("f32", [2]), b.param("f32", [2]), b.param("f32", [3, 2])
    found = b.scan(lambda r, c, w, x: (r.sin(c) * w + x, w, c * x), [c, w], [xs])
    made = gradient(b.build(b.reduce_sum(found[0], [0])), [0, 1, 2])
    again = loads(dumps(made, form))
    verify(again)
    inputs = [np.ones(2, np.float32), np.full(2, 0.5, np.float32), np.ones((3, 2), np.float32)]
    for a, c2 in zip(run(made, *inputs), run(again, *inputs), strict=True):
        np.testing.assert_array_equal(a, c2)
    # What was read back can be differentiated too: carries come out through copies there.
    verify(vjp(again, [0, 1]))


def hinted(policy: HintPolicy) -> Program:
    b = Builder()
    x = b.param("f64", [3])
    y = b.exp(b.sin(x))
    program = b.build(b.reduce_sum(y, [0]))
    body = program.main.body[:2]
    hint = HintRegion(0, HintKind.ELEMENTWISE_DAG, policy, (0,), (body[1].id,), body)
    main = program.main
    changed = type(main)(
        main.name, main.parameters, main.parameter_ids, main.results, main.body, (hint,),
        main.result_ids,
    )  # fmt: skip
    return program.with_main(changed)


def test_hints_that_still_hold_stay() -> None:
    program = hinted(HintPolicy.PREFERRED)
    made = gradient(program, 0)
    verify(made)
    assert made.main.hints == program.main.hints


def test_a_required_hint_that_the_way_back_looks_into() -> None:
    b = Builder()
    x = b.param("f64", [3])
    program = b.build(b.reduce_sum(b.tanh(b.exp(x)), [0]))
    body = program.main.body[:2]
    hint = HintRegion(4, HintKind.ELEMENTWISE_DAG, HintPolicy.REQUIRED, (0,), (body[1].id,), body)
    main = program.main
    changed = type(main)(
        main.name, main.parameters, main.parameter_ids, main.results, main.body, (hint,),
        main.result_ids,
    )  # fmt: skip
    with pytest.raises(Unimplemented, match="hint 4: it is Required, and the gradient reads"):
        gradient(program.with_main(changed), 0)


# -- wrong calls ---------------------------------------------------------------------------------

WRONG: list[tuple[Any, str]] = [
    (lambda p: gradient(p, 3), "there is no parameter 3; the program has 3"),
    (lambda p: gradient(p, [0, 0]), "parameter 0 is named twice"),
    (lambda p: gradient(p, -1), "there is no parameter -1; the program has 3"),
    (lambda p: gradient(p, True), "there is no parameter True; the program has 3"),
    (lambda p: gradient(p, 2), "parameter 2 is si32[2]; derivatives are taken with respect to "
     "tensors of floats or complex numbers"),
    (lambda p: gradient(p, 0, of=5), "there is no result 5; @main has 3"),
    (lambda p: gradient(p, 0, of=1), "a gradient is taken of a float scalar, and result 1 is "
     "f64[2]; reduce it first, or use vjp with a cotangent for each result"),
    (lambda p: vjp(p, 0, of=[7]), "there is no result 7; the program has 3"),
    (lambda p: vjp(p, 0, of=[2]), "none of the requested results is a float or complex number"),
    (lambda p: jvp(p, 2), "parameter 2 is si32[2]; derivatives are taken with respect to tensors "
     "of floats or complex numbers"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), WRONG, ids=[w[1][:30] for w in WRONG])
def test_wrong_calls(call: Any, message: str) -> None:
    b = Builder()
    x, y, n = b.param("f64", [2]), b.param("f64", [2]), b.param("si32", [2])
    program = b.build(b.reduce_sum(x * y, [0]), x, n)
    with pytest.raises(UserError) as caught:
        call(program)
    assert str(caught.value) == message


def test_a_program_that_does_not_verify() -> None:
    b = Builder()
    x = b.param("f64")
    good = b.build(b.sin(x)).main
    body: Sequence[Any] = good.body
    bad = type(good)(
        good.name, good.parameters, good.parameter_ids, (tensor("f32"),), tuple(body), (),
        good.result_ids,
    )  # fmt: skip
    with pytest.raises(SpecViolation, match="OutputTypeMismatch"):
        gradient(Program("main", (bad,)), 0)


def test_an_unknown_call_has_no_gradient() -> None:
    b = Builder()
    x = b.param("f64")
    program = b.build(b.custom_call("other.kernel.v1", x, output=x.type))
    with pytest.raises(Unimplemented, match="Weft does not know what it computes; at %1 = custom"):
        gradient(program, 0)


@pytest.mark.parametrize(
    ("function", "shape", "message"),
    [
        (lambda b, x: b.qr(x, mode="complete")[0], [3, 2], "the last columns of a completed q are"),
        (lambda b, x: b.svd(x, full_matrices=True)[0], [3, 2], "use full_matrices=false"),
    ],
)
def test_factors_that_are_not_unique(function: Any, shape: list[int], message: str) -> None:
    b = Builder()
    x = b.param("f64", shape)
    program = b.build(function(b, x))
    with pytest.raises(Unimplemented, match=message):
        vjp(program, 0)


def test_a_window_that_is_too_large_to_be_put_back() -> None:
    b = Builder()
    x = b.param("f64", [1, 5000, 1])
    patches = b.extract_patches(
        x, window=[2000], strides=[1], dilation=[1], padding=[(0, 0)], pad_value=0.0
    )
    with pytest.raises(Unimplemented, match="a window of 2000: it is put back piece by piece"):
        vjp(b.build(patches), 0)
