"""What functional ops capture, instruction by instruction: backends recognise exactly these."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import weft
from weft import functional as F
from weft.foundation.dtypes import DType
from weft.ptir import dumps, verify


def ones(*shape: int, dtype: DType = weft.float32) -> weft.Tensor:
    made: weft.Tensor = weft.asarray(weft.ones(shape, dtype=dtype).numpy())
    return made


def causal() -> weft.Tensor:
    x = ones(1, 1, 3, 2)
    return F.attention(x, x, ones(1, 1, 3, 2), causal=True)


CAPTURES: dict[str, Callable[[], weft.Tensor]] = {
    "softmax_f32": lambda: F.softmax(ones(2, 3)),
    "softmax_bf16": lambda: F.softmax(ones(2, 3, dtype=weft.bfloat16)),
    "log_softmax": lambda: F.log_softmax(ones(2, 3)),
    "gelu": lambda: F.gelu(ones(4)),
    "silu": lambda: F.silu(ones(4)),
    "attention_causal": causal,
    "layer_norm": lambda: F.layer_norm(ones(2, 3), 3, ones(3), ones(3)),
    "matmul": lambda: F.matmul(ones(2, 3), ones(3, 4)),
    "linear": lambda: F.linear(ones(2, 3), ones(4, 3), ones(4)),
    "conv2d": lambda: F.conv2d(ones(1, 2, 4, 4), ones(3, 2, 3, 3), padding=1),
    "update_cache": lambda: F.update_cache(ones(1, 2, 4, 3), ones(1, 2, 1, 3), 2),
}


@pytest.mark.parametrize("name", CAPTURES)
def test_the_capture_is_written_like_this(name: str, golden: Callable[[str, str], None]) -> None:
    program = CAPTURES[name]().program()
    verify(program)
    golden(f"capture/{name}.txt", str(dumps(program, "text")))


MNEMONICS: dict[str, list[str]] = {
    "softmax_f32": [
        "reduce_max", "broadcast_to", "sub", "exp", "reduce_sum", "broadcast_to", "div",
    ],
    "softmax_bf16": [
        "cast", "reduce_max", "broadcast_to", "sub", "exp", "reduce_sum", "broadcast_to", "div",
        "cast",
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", MNEMONICS)
def test_softmax_is_exactly_the_canonical_sequence(name: str) -> None:
    program = CAPTURES[name]().program()
    assert [i.op.mnemonic for i in program.main.body] == MNEMONICS[name]


def test_a_causal_mask_is_iota_compare_select() -> None:
    found = [i.op.mnemonic for i in causal().program().main.body]
    at = found.index("select")
    assert [name for name in found[:at] if name in ("iota", "compare")] == [
        "iota",
        "iota",
        "compare",
    ]
