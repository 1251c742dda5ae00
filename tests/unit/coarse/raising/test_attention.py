"""Raising of attention: every usual spelling of its products, scales and masks is found, and what
only looks like one is left alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import weft
from tests.support.cases import each
from tests.unit.coarse.raising.raised import HEADS, Shape, agree, attention, built, check, coarse
from weft.coarse.raising import raise_program
from weft.ptir import Builder, Value, library, verify
from weft.ptir.decompose import decompose
from weft.ptir.gradient import vjp
from weft.ptir.ir import Ref

SCALES = ["div", "mul", "on q", "on both", "none", "after the mask", "root of a constant"]


@each("scale", SCALES)
@each("shape", [HEADS, (3, 4, 8), (4, 8)])
@each("with_mask", [False, True])
def test_attention(scale: str, shape: Shape, with_mask: bool) -> None:
    shapes = [shape] * 3 + [(4, 4)] * with_mask
    program = built(lambda b, *p: attention(b, *p, scale=scale, turned=with_mask), *shapes)
    raised = check(program, "weft.attention")
    assert "dot_general" not in [i.op.mnemonic for i in raised.main.body]


@pytest.mark.parametrize("shape", [HEADS, (4, 8)])
def test_what_is_hidden_by_selection_is_the_causal_mask(shape: Shape) -> None:
    raised = check(
        built(lambda b, *p: attention(b, *p, hides=True), *[shape] * 3), "weft.attention"
    )
    (op,) = (i.op for i in raised.main.body if i.op.mnemonic == "weft.attention")
    assert op.causal  # type: ignore[attr-defined]


@pytest.mark.parametrize("causal", [False, True])
def test_an_attention_with_rows_that_see_nothing_is_one_op(causal: bool) -> None:
    """The op gives 0 there by itself: nobody looks for such rows a second time."""

    def form(b: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
        hides = b.emit("compare", mask, b.full(mask.shape, 0.5, "f32"), op="greater")
        hidden, zero = (b.full(mask.shape, n, "f32") for n in (-math.inf, 0.0))
        return b.attention(q, k, v, causal=causal, mask=b.emit("select", hides, hidden, zero))

    program = built(form, *[HEADS] * 3, (2, 1, 4, 1))
    raised = check(program, "weft.attention")
    assert "reduce_max" not in [i.op.mnemonic for i in raised.main.body]


@pytest.mark.parametrize("rows", [2048, 8192])
def test_a_causal_mask_is_found_however_large_it_is(rows: int) -> None:
    """With a mask beside it too, whose rows that see nothing are looked for."""
    b = Builder()
    q, k, v = (b.param("bf16", [1, 2, rows, 64]) for _ in range(3))
    mask = b.param("bf16", [1, 1, rows, 1])
    raised = raise_program(b.build(library.attention(q, k, v, mask=mask, causal=True)))
    assert coarse(raised) == ["weft.attention"]
    (op,) = (i.op for i in raised.main.body if i.op.mnemonic == "weft.attention")
    assert op.causal  # type: ignore[attr-defined]
    assert "reduce_max" not in [i.op.mnemonic for i in raised.main.body]


def test_a_causal_mask_by_hand_is_found_however_large_it_is() -> None:
    def attended(q: Any, k: Any, v: Any) -> Any:
        places = weft.arange(4096)
        scores = q @ k.mT * 0.125
        scores = weft.where(places[:, None] >= places[None, :], scores, float("-inf"))
        return weft.functional.softmax(scores, axis=-1) @ v

    x = weft.zeros((1, 2, 4096, 64))
    raised = raise_program(weft.jit(attended).program(x, x, x))
    assert coarse(raised) == ["weft.attention"]
    (op,) = (i.op for i in raised.main.body if i.op.mnemonic == "weft.attention")
    assert op.causal  # type: ignore[attr-defined]
    assert not [i for i in raised.main.body if i.op.mnemonic == "iota"]


@pytest.mark.parametrize(
    ("other", "opened"), [("same", True), ("another vector", False), ("floats", False)]
)
def test_masks_of_sequences_show_every_row_itself(other: str, opened: bool) -> None:
    def form(b: Any, q: Any, k: Any, v: Any, one: Any, two: Any) -> Any:
        if other != "floats":
            one, two = (b.cast(x, "si32") for x in (one, two))
        along = b.reshape(one if other != "another vector" else two, [1, 1, 1, 4])
        sides = [b.broadcast_to(x, [1, 1, 4, 4]) for x in (b.reshape(one, [1, 1, 4, 1]), along)]
        seen = b.emit("compare", *sides, op="equal")
        numbers = (b.full([1, 1, 4, 4], n, "f32") for n in (0.0, -math.inf))
        return library.attention(q, k, v, mask=b.emit("select", seen, *numbers), causal=True)

    raised = check(built(form, *[HEADS] * 3, (4,), (4,)), "weft.attention")
    (op,) = (i.op for i in raised.main.body if i.op.mnemonic == "weft.attention")
    assert op.opened is opened  # type: ignore[attr-defined]


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16"])
def test_the_library_form_of_attention(dtype: str) -> None:
    def function(b: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
        return b.attention(q, k, v, causal=True, mask=mask)

    program = built(function, HEADS, HEADS, HEADS, (3, 1, 4), dtype=dtype)
    raised = raise_program(program)
    assert coarse(raised) == ["weft.attention"]
    (op,) = (i.op for i in raised.main.body if i.op.mnemonic == "weft.attention")
    assert op.causal  # type: ignore[attr-defined]
    if dtype != "bf16":
        agree(program, raised)


def test_shared_heads_are_found_again() -> None:
    def function(b: Any, q: Any, k: Any, v: Any) -> Any:
        return b.emit("weft.attention", q, k, v, causal=True, scale=0.5)[0]

    program = built(function, (2, 4, 4, 8), (2, 2, 4, 8), (2, 2, 4, 8))
    raised = check(decompose(program), "weft.attention")
    call = next(i for i in raised.main.body if i.op.mnemonic == "weft.attention")
    assert call.operands == (Ref(0), Ref(1), Ref(2))


def test_a_mask_that_is_scaled_with_the_scores() -> None:
    program = built(lambda b, *p: attention(b, *p, scale="after the mask"), *[HEADS] * 3, (4, 4))
    raised = check(program, "weft.attention")
    assert "mul" in [i.op.mnemonic for i in raised.main.body]


@pytest.mark.parametrize(("hidden", "whole"), [(-1e4, False), (-2e38, True), (-math.inf, True)])
def test_attention_with_its_axes_in_another_order(hidden: float, whole: bool) -> None:
    """A score of -1e4 is a score; with less than any score can be, nothing is left of it."""
    b = Builder()
    q, k, v = (b.param("f32", [2, 5, 3, 4]) for _ in range(3))
    seen = b.param("i1", [2, 3, 5, 5])
    scores = b.dot_general(k, q * 0.5, contract=([3], [3]), batch=([0, 2], [0, 2]))
    turned = b.transpose(scores, [0, 1, 3, 2])
    weights = b.softmax(b.select(seen, turned, b.full([2, 3, 5, 5], hidden, "f32")))
    program = b.build(b.dot_general(v, weights, contract=([1], [3]), batch=([0, 2], [0, 1])))
    raised = raise_program(program)
    assert ("weft.attention" in [i.op.mnemonic for i in raised.main.body]) is whole
    rng = np.random.default_rng(0)
    inputs: list[Any] = [rng.standard_normal((2, 5, 3, 4), np.float32) for _ in range(3)]
    inputs.append(rng.random((2, 3, 5, 5)) > 0.7)
    expected, found = (weft.run(p, inputs, backend="reference")[0] for p in (program, raised))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_weights_that_are_returned_leave_attention_alone() -> None:
    def function(b: Any, q: Any, k: Any, v: Any) -> list[Value]:
        scores = b.dot_general(q, k, contract=([3], [3]), batch=((0, 1), (0, 1)))
        weights = b.softmax(scores)
        return [b.dot_general(weights, v, contract=([3], [2]), batch=((0, 1), (0, 1))), weights]

    check(built(function, *[HEADS] * 3), "byteir.softmax")


def test_other_products_are_no_attention() -> None:
    def over_columns(b: Any, q: Any, k: Any, v: Any) -> Any:
        scores = b.dot_general(q, k, contract=([3], [3]), batch=((0, 1), (0, 1)))
        return b.dot_general(b.softmax(scores, 2), v, contract=([3], [2]), batch=((0, 1), (0, 1)))

    check(built(over_columns, *[HEADS] * 3), "byteir.softmax")


def test_attention_with_a_dynamic_batch() -> None:
    b = Builder()
    q, k, v = (b.param("f32", ["?B", 2, "?S", 4]) for _ in range(3))
    raised = raise_program(b.build(attention(b, q, k, v)))
    verify(raised)
    assert coarse(raised) == ["weft.attention"]


def test_the_gradient_of_a_raised_attention_keeps_no_weights() -> None:
    """Whatever the forward pass computes of the size of the scores is gone when it ends."""
    program = built(lambda b, *p: attention(b, *p), *[(2, 3, 16, 8)] * 3)
    adjoint = vjp(raise_program(program), [0, 1, 2])
    assert coarse(adjoint) == ["weft.attention"]
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((2, 3, 16, 8)).astype(np.float32) for _ in range(4)]
    found, wanted = weft.run(adjoint, inputs), weft.run(vjp(program, [0, 1, 2]), inputs)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
