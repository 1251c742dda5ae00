"""Coarse ops as custom calls: what stands in the call, what the declared type says, and calls that
nobody here knows."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import weft
from tests.support.cases import each
from weft.coarse.extremes import ByteirArgMax
from weft.coarse.flash import ByteirFlashAttnKvcache
from weft.coarse.norms import ByteirLayerNorm
from weft.foundation.dtypes import F16, F32, SI32
from weft.foundation.errors import SpecViolation, Unimplemented
from weft.ptir import Builder, Program, TupleType, dumps, loads, tensor, verify
from weft.ptir.ops.constant import CustomCall
from weft.ptir.types import ValueType

FORMS = ("json", "bincode", "text")


def called(target: str, operands: list[ValueType], output: ValueType, **attrs: Any) -> Program:
    """A program of one custom call, as another system would write it."""
    b = Builder()
    parameters = [b.param_of(kind) for kind in operands]
    return b.build(b.custom_call(target, *parameters, output=output, **attrs))


X = tensor("f16", [4, 8])
ROW = tensor("f16", [8])
KEPT = tensor("f32", [4, 1])
FOUR = tensor("f32", [2, 3, 4, 5])

CALLS: dict[str, tuple[list[ValueType], ValueType, dict[str, Any]]] = {
    "byteir.softmax": ([X], X, {"axis": 1}),
    "byteir.log_softmax": ([X], X, {"axis": 0}),
    "byteir.layer_norm": ([X, ROW, ROW], X, {"epsilon": 1e-5, "axis": [1]}),
    "byteir.l2_norm": ([X], X, {"epsilon": 1e-5, "axis": [0, 1], "eps_outside_sqrt": True}),
    "byteir.gelu": ([X], X, {"approximate": "tanh"}),
    "byteir.arg_max": (
        [X], tensor("si32", [4]), {"axis": 1, "keep_dims": False, "select_last_index": True},
    ),
    "byteir.arg_min": (
        [X], TupleType((tensor("f16", [1, 8]), tensor("si64", [1, 8]))),
        {"axis": 0, "keep_dims": True, "select_last_index": False},
    ),
    "byteir.top_k": (
        [X], TupleType((tensor("f16", [4, 2]), tensor("si64", [4, 2]))),
        {"k": 2, "axis": [1], "sorted": True},
    ),
    "byteir.erf": ([X], X, {}),
    "byteir.addn": ([X, X, X], X, {}),
    "byteir.one_hot": (
        [tensor("si64", [5])], tensor("f16", [5, 3]),
        {"depth": 3, "axis": 1, "on_value": 1.0, "off_value": 0.0},
    ),
    "byteir.repeat": ([X, tensor("si64", [4])], tensor("f16", [9, 8]), {}),
    "byteir.quantize": (
        [FOUR, tensor("f32", [3]), tensor("ui8", [3])], tensor("ui8", [2, 3, 4, 5]), {"axis": 1},
    ),
    "byteir.dequantize": (
        [tensor("si8", [4]), tensor("f32"), tensor("si8")], tensor("f16", [4]), {},
    ),
    "byteir.resize": (
        [FOUR, tensor("si64", [4])], tensor("f32", [2, 3, 8, 10]),
        {"target_mode": "size", "mode": "linear", "coordinate_transformation_mode": "half_pixel"},
    ),
    "byteir.rng_uniform": (
        [tensor("f32"), tensor("f32"), tensor("si64"), tensor("si64")], tensor("f32", [8, 10]), {},
    ),
    "byteir.rng_normal": (
        [tensor("f32"), tensor("f32"), tensor("si64"), tensor("si64"), tensor("si64", [2])],
        tensor("f32", [8, 10]), {},
    ),
    "byteir.flash_attn_fwd": (
        [FOUR, FOUR, FOUR],
        TupleType((FOUR, tensor("f32", [2, 4, 3]), tensor("f32", [0]), tensor("si64", [2]))),
        {"dropout_p": 0.0, "softmax_scale": 0.5, "causal": True, "return_softmax": False},
    ),
    "byteir.flash_attn_bwd": (
        [FOUR, FOUR, FOUR, FOUR, FOUR, tensor("f32", [2, 4, 3]), tensor("si64", [2])],
        TupleType((FOUR, FOUR, FOUR, tensor("f32", [2, 4, 3]), FOUR)),
        {"dropout_p": 0.1, "softmax_scale": 0.5, "causal": True},
    ),
    "byteir.flash_attn_kvcache": (
        [FOUR, tensor("f32", [2, 9, 4, 5]), tensor("f32", [2, 9, 4, 5]), FOUR, FOUR,
         tensor("si32", [2])],
        TupleType((FOUR, tensor("f32", [2, 4, 3]))), {"softmax_scale": 0.5, "causal": True},
    ),
    "byteir.non_zero": ([X], tensor("si64", [12, 2]), {}),
    "weft.conv.v1": (
        [tensor("f32", [1, 8, 8, 4]), tensor("f32", [3, 3, 2, 6])], tensor("f32", [1, 8, 8, 6]),
        {"layout": "NHWC", "pad": [1, 1, 1, 1], "groups": 2, "algo_set": ["winograd_3x3"]},
    ),
    "weft.attention.v1": (
        [FOUR, FOUR, FOUR], TupleType((FOUR, tensor("f32", [2, 3, 4]))), {"causal": True},
    ),
    "weft.grouped_matmul.v1": (
        [tensor("f32", [9, 4]), tensor("f32", [3, 5, 4]), tensor("si32", [3])],
        tensor("f32", [9, 5]), {"transposed": True},
    ),
    "weft.fourier.v1": (
        [tensor("cf32", [3, 96])], tensor("cf32", [3, 96]), {"inverse": True, "divided": True},
    ),
    "weft.grouped_outer.v1": (
        [tensor("f32", [9, 4]), tensor("f32", [9, 5]), tensor("si32", [3])],
        tensor("f32", [3, 4, 5]), {},
    ),
}  # fmt: skip


@each("target", CALLS)
@each("form", FORMS)
def test_a_call_becomes_its_op_and_goes_out_as_the_same_call(target: str, form: str) -> None:
    operands, output, attrs = CALLS[target]
    program = called(target, operands, output, **attrs)
    verify(program)
    (instruction,) = program.main.body
    assert instruction.op.call_target == target
    assert loads(dumps(program, form)) == program
    written = json.loads(dumps(program, "json"))
    call = written["functions"][0]["body"][0]["op"]["CustomCall"]
    assert call["target"] == target
    assert set(attrs) <= set(call["attrs"])
    declared = set(instruction.op.all_attributes()) - set(instruction.op.call_attributes())
    assert not declared & set(call["attrs"])


@each("target", CALLS)
def test_what_the_declared_type_says_is_checked(target: str) -> None:
    operands, _, attrs = CALLS[target]
    wrong = TupleType((tensor("cf32", [1]),) * 6)
    with pytest.raises(SpecViolation) as caught:
        called(target, operands, wrong, **attrs)
    assert caught.value.code == "OutputTypeMismatch"


def op_of(program: Program) -> Any:
    return program.main.body[0].op


def test_the_declared_type_says_how_many_results_there_are() -> None:
    three = TupleType((X, KEPT, KEPT))
    op = op_of(called("byteir.layer_norm", [X, ROW, ROW], three, epsilon=1e-5, axis=[1]))
    assert op == ByteirLayerNorm(1e-5, (1,), results=3, statistics=F32)
    narrow = TupleType((X, tensor("f16", [4, 1]), tensor("f16", [4, 1])))
    op = op_of(called("byteir.layer_norm", [X, ROW, ROW], narrow, epsilon=1e-5, axis=[1]))
    assert op == ByteirLayerNorm(1e-5, (1,), results=3)
    op = op_of(called("byteir.arg_max", [X], tensor("si32", [4]), axis=1))
    assert op == ByteirArgMax(1, indices=SI32)
    operands, both, attrs = CALLS["byteir.flash_attn_kvcache"]
    assert isinstance(both, TupleType)
    cache = operands[1]
    all_four = TupleType((*both.elements, cache, cache))
    op = op_of(called("byteir.flash_attn_kvcache", operands, all_four, **attrs))
    assert op == ByteirFlashAttnKvcache(0.5, True, 4)


def test_dtypes_and_sizes_come_from_the_declared_type() -> None:
    operands, _, attrs = CALLS["byteir.one_hot"]
    for dtype in ("f16", "f64"):
        output = tensor(dtype, [5, 3])
        assert op_of(called("byteir.one_hot", operands, output, **attrs)).dtype is output.dtype
    assert op_of(called("byteir.dequantize", *CALLS["byteir.dequantize"][:2])).dtype is F16
    assert op_of(called("byteir.repeat", *CALLS["byteir.repeat"][:2])).length == 9


def test_a_size_may_be_that_of_a_parameter() -> None:
    b = Builder()
    low, high = b.param("f32"), b.param("f32")
    like = b.param("f32", ["?A", "?B"])
    drawn = b.custom_call(
        "byteir.rng_uniform", low, high, b.literal(1), b.literal(2), output=like.type
    )
    program = b.build(drawn)
    verify(program)
    (found,) = weft.run(program, [0.0, 1.0, np.zeros((3, 2), np.float32)])
    assert found.shape == (3, 2)


def test_a_size_that_only_data_would_say_is_refused() -> None:
    with pytest.raises(SpecViolation) as caught:
        called("byteir.non_zero", [X], tensor("si64", ["?N", 2]))
    assert caught.value.code == "DynamicDimensionMismatch"
    assert caught.value.why == (
        "the bound of byteir.non_zero uses ?N, which no parameter or earlier instruction binds"
    )


@pytest.mark.parametrize(
    "target", ["tf.DynamicPartition", "pytorch.roll", "byteir.nll_loss_forward", "byteir.topk"]
)
@pytest.mark.parametrize("form", FORMS)
def test_targets_of_front_ends_load_and_run_nowhere(target: str, form: str) -> None:
    program = called(target, [X], tensor("f32", [3]), axis=1, mode="any", names=["a", "b"])
    verify(program)
    assert isinstance(op_of(program), CustomCall)
    assert loads(dumps(program, form)) == program
    assert loads(dumps(program, "json", portable=True)) == program
    for backend in ("reference", "cpu"):
        with pytest.raises(Unimplemented, match=target):
            weft.run(program, [np.zeros((4, 8), np.float16)], backend=backend)
