"""The library forms, instruction by instruction: backends recognise exactly these."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from weft.ptir import Builder, Value, dumps, verify
from weft.ptir.library import layer_norm


def softmax(dtype: str) -> Callable[[Builder], Value]:
    return lambda b: b.softmax(b.param(dtype, [2, 3]))


def attention(
    dtype: str, rows: int, columns: int, causal: bool, mask: bool
) -> Callable[..., Value]:
    def form(b: Builder) -> Value:
        q = b.param(dtype, [1, 2, rows, 4])
        k, v = b.param(dtype, [1, 2, columns, 4]), b.param(dtype, [1, 2, columns, 4])
        given = b.param("f32", [rows, columns]) if mask else None
        return b.attention(q, k, v, causal=causal, mask=given)

    return form


def normalised(dtype: str) -> Callable[[Builder], Value]:
    def form(b: Builder) -> Value:
        x, gamma, beta = b.param(dtype, [2, 3, 4]), b.param(dtype, [3]), b.param(dtype, [3])
        return layer_norm(x, gamma, beta, epsilon=1e-5, feature_axis=1)

    return form


FORMS: dict[str, Callable[[Builder], Value]] = {
    "softmax_f32": softmax("f32"),
    "softmax_bf16": softmax("bf16"),
    "softmax_dynamic": lambda b: b.softmax(b.param("f32", ["?B", 3]), axis=0),
    "gelu_f32": lambda b: b.gelu(b.param("f32", [2])),
    "silu_f16": lambda b: b.silu(b.param("f16", [2])),
    "causal_mask": lambda b: b.causal_mask(3, 3),
    "causal_mask_wide": lambda b: b.causal_mask(2, 5, "f16"),
    "attention_f32": attention("f32", 3, 3, causal=True, mask=False),
    "attention_bf16_masked": attention("bf16", 2, 5, causal=False, mask=True),
    "layer_norm_f32": normalised("f32"),
    "layer_norm_f16": normalised("f16"),
}


@pytest.mark.parametrize("name", FORMS)
def test_the_form_is_written_like_this(name: str, golden: Callable[[str, str], None]) -> None:
    b = Builder(name)
    program = b.build(FORMS[name](b))
    verify(program)
    golden(f"library/{name}.txt", str(dumps(program, "text")))


def test_softmax_is_exactly_the_canonical_sequence() -> None:
    b = Builder()
    program = b.build(b.softmax(b.param("f32", [2, 3])))
    assert [i.op.mnemonic for i in program.main.body] == [
        "reduce_max", "broadcast_to", "sub", "exp", "reduce_sum", "broadcast_to", "div"
    ]  # fmt: skip
