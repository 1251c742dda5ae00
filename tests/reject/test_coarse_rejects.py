"""Coarse ops that are wrong, and exactly what is said about them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import weft
from tests.support.cases import each
from tests.support.one_op import Array
from weft.foundation.dtypes import as_dtype
from weft.foundation.errors import SpecViolation
from weft.ptir import Builder
from weft.ptir.decompose import decompose
from weft.ptir.types import tensor

Kind = tuple[str, list[Any]]

X: Kind = ("f32", [4, 6])
ROW: Kind = ("f32", [6])
ONE: Kind = ("f32", [])
WORD: Kind = ("si64", [])
NORM: dict[str, Any] = {"epsilon": 1e-5, "axis": [1]}
HOT: dict[str, Any] = {"depth": 3, "axis": 1, "on_value": 1, "off_value": 0, "dtype": "ui8"}
RESIZE: dict[str, Any] = {
    "target_mode": "size", "mode": "linear", "coordinate_transformation_mode": "half_pixel",
    "shape": [1, 1],
}  # fmt: skip
Q: Kind = ("f32", [2, 5, 4, 8])
K: Kind = ("f32", [2, 7, 2, 8])
CACHE: Kind = ("f32", [2, 9, 2, 8])
HEADS: Kind = ("f32", [2, 4, 5, 8])
BACK: dict[str, Any] = {"dropout_p": 0.0, "softmax_scale": 1.0, "causal": False}
FLASH: dict[str, Any] = {**BACK, "return_softmax": False}
CACHED: dict[str, Any] = {"softmax_scale": 1.0, "causal": True}
IMAGE: Kind = ("f32", [1, 8, 8, 4])
WINDOW: Kind = ("f32", [3, 3, 4, 6])
LAST: dict[str, Any] = {"layout": "NHWC"}

ATTRIBUTES: list[tuple[str, list[Kind], dict[str, Any], str]] = [
    ("byteir.softmax", [X], {"axis": 2},
     "axis 2 of byteir.softmax is out of range: a rank-2 operand has axes 0 to 1"),
    ("byteir.softmax", [ONE], {"axis": 0},
     "axis 0 of byteir.softmax is out of range: a rank-0 operand has no axes"),
    ("byteir.softmax", [X], {"axis": -1},
     "attribute axis of byteir.softmax: -1 is not a whole number from 0 on"),
    ("byteir.log_softmax", [X], {"axis": 7},
     "axis 7 of byteir.log_softmax is out of range: a rank-2 operand has axes 0 to 1"),
    ("byteir.layer_norm", [X, ROW, ROW], {**NORM, "epsilon": -1.0},
     "epsilon -1.0 of byteir.layer_norm is not a finite number of at least 0"),
    ("byteir.layer_norm", [X, ROW, ROW], {**NORM, "axis": []},
     "axis of byteir.layer_norm names no axis"),
    ("byteir.layer_norm", [X, ROW, ROW], {**NORM, "axis": [1, 1]},
     "axis [1, 1] of byteir.layer_norm names an axis twice"),
    ("byteir.layer_norm", [X, ROW, ROW], {**NORM, "axis": 1},
     "attribute axis of byteir.layer_norm: 1 is not a list"),
    ("byteir.layer_norm", [X, ROW, ROW], {**NORM, "results": 2},
     "byteir.layer_norm has 1 or 3 results, not 2"),
    ("byteir.layer_norm", [X, ROW, ROW], {**NORM, "results": 3, "statistics": "f64"},
     "statistics of f32 are of dtype f32, not f64"),
    ("byteir.l2_norm", [X], {**NORM, "epsilon": math.inf},
     "epsilon inf of byteir.l2_norm is not a finite number of at least 0"),
    ("byteir.l2_norm", [X], {**NORM, "axis": [3]},
     "axis 3 of byteir.l2_norm is out of range: a rank-2 operand has axes 0 to 1"),
    ("byteir.gelu", [X], {"approximate": "fast"},
     "attribute approximate of byteir.gelu: 'fast' is not one of none, erf, tanh"),
    ("byteir.arg_max", [X], {"axis": 2},
     "axis 2 of byteir.arg_max is out of range: a rank-2 operand has axes 0 to 1"),
    ("byteir.arg_max", [X], {"axis": 1, "results": 3},
     "byteir.arg_max has 1 or 2 results, not 3"),
    ("byteir.arg_min", [("i1", [2**31 + 1])], {"axis": 0, "indices": "si32"},
     "axis 0 of byteir.arg_min has 2147483649 positions, more than si32 can number"),
    ("byteir.top_k", [X], {"axis": [1], "k": 7},
     "k 7 of byteir.top_k exceeds the extent 6 of axis 1"),
    ("byteir.top_k", [X], {"axis": [0, 1], "k": 1},
     "axis of byteir.top_k has 2 entries, not 1"),
    ("byteir.one_hot", [("si32", [4])], {**HOT, "axis": 2},
     "axis 2 of byteir.one_hot is out of range: a rank-2 operand has axes 0 to 1"),
    ("byteir.one_hot", [("si32", [4])], {**HOT, "on_value": 300},
     "on_value 300 of byteir.one_hot is not a value of ui8"),
    ("byteir.one_hot", [("si32", [4])], {**HOT, "off_value": 0.0},
     "off_value 0.0 of byteir.one_hot is not a value of ui8"),
    ("byteir.one_hot", [("si32", [4])], {**HOT, "on_value": "a"},
     "attribute on_value of byteir.one_hot: 'a' is not a number"),
    ("byteir.quantize", [X, ROW, ("si8", [6])], {"axis": 2},
     "axis 2 of byteir.quantize is out of range: a rank-2 operand has axes 0 to 1"),
    ("byteir.dequantize", [("si8", [4]), ROW, ("si8", [6])], {"axis": 1, "dtype": "f32"},
     "axis 1 of byteir.dequantize is out of range: a rank-1 operand has axes 0 to 0"),
    ("byteir.resize", [X, ("si64", [2])], {**RESIZE, "mode": "cubic"},
     "attribute mode of byteir.resize: 'cubic' is not one of nearest, linear"),
    ("byteir.resize", [X, ("si64", [2])], {**RESIZE, "shape": [1]},
     "the shape of byteir.resize has 1 entries, not 2"),
    ("byteir.flash_attn_fwd", [Q, K, K], {**FLASH, "dropout_p": 1.0},
     "dropout_p 1.0 of byteir.flash_attn_fwd is not in [0, 1)"),
    ("byteir.flash_attn_fwd", [Q, K, K], {**FLASH, "softmax_scale": math.inf},
     "softmax_scale inf of byteir.flash_attn_fwd is not a finite number"),
    ("byteir.flash_attn_fwd", [Q, K, K], {**FLASH, "stream": 2**33},
     "stream 8589934592 of byteir.flash_attn_fwd does not fit 32 bits"),
    ("byteir.flash_attn_kvcache", [Q, CACHE, CACHE, K, K, ("si32", [2])],
     {**CACHED, "results": 3}, "byteir.flash_attn_kvcache has 2 or 4 results, not 3"),
    ("weft.attention", [HEADS] * 3, {"algo_set": ["magic"]},
     "algo_set of weft.attention names the algorithm 'magic'"),
    ("weft.attention", [HEADS] * 3, {"algo_set": []},
     "algo_set of weft.attention names no algorithm"),
    ("weft.attention", [("f32", [2, 4, 5, "?D"])] * 3, {},
     "weft.attention over a depth of ?D has no scale"),
    ("weft.attention", [HEADS] * 3, {"dropout": -0.5},
     "dropout -0.5 of weft.attention is not in [0, 1)"),
    ("weft.conv", [IMAGE, WINDOW], {"layout": "HWC"},
     "attribute layout of weft.conv: 'HWC' is not one of NWC, NHWC, NDHWC, NCW, NCHW, NCDHW"),
    ("weft.conv", [IMAGE, WINDOW], {**LAST, "stride": [1]},
     "stride of weft.conv in NHWC has 1 entries, not 2"),
    ("weft.conv", [IMAGE, WINDOW], {**LAST, "dilation": [0, 1]},
     "dilation of weft.conv [0, 1] must be at least 1 everywhere"),
    ("weft.conv", [IMAGE, WINDOW], {**LAST, "pad": [1, 1]},
     "pad of weft.conv in NHWC has 2 entries, not 4"),
    ("weft.conv", [IMAGE, WINDOW], {**LAST, "groups": 3},
     "the 4 input channels of weft.conv do not make 3 groups"),
    ("weft.conv", [IMAGE, WINDOW], {**LAST, "groups": 0},
     "groups 0 of weft.conv is not at least 1"),
    ("weft.conv", [IMAGE, ("f32", [3, 0, 4, 6])], LAST,
     "the window of weft.conv has the extent 0"),
    ("weft.conv", [("f32", [1, 4, 8, 8]), ("f32", [6, 4, 3, 9])], {"layout": "NCHW"},
     "the window of weft.conv spans 9 places along W, more than the 8 of the padded input"),
    ("weft.conv", [IMAGE, WINDOW], {**LAST, "algo_set": ["direct"]},
     "algo_set of weft.conv names the algorithm 'direct'"),
]  # fmt: skip


def emitted(name: str, kinds: list[Kind], attrs: dict[str, Any]) -> SpecViolation:
    b = Builder()
    parameters = [b.param(*kind) for kind in kinds]
    with pytest.raises(SpecViolation) as caught:
        b.emit(name, *parameters, **attrs)
    return caught.value


@each(("name", "kinds", "attrs", "why"), ATTRIBUTES)
def test_attributes(name: str, kinds: list[Kind], attrs: dict[str, Any], why: str) -> None:
    found = emitted(name, kinds, attrs)
    assert (found.code, found.why) == ("InvalidAttributeValue", why)


TYPES: list[tuple[str, list[Kind], dict[str, Any], str, str]] = [
    ("byteir.softmax", [("si32", [4])], {"axis": 0}, "DTypeNotSupported",
     "byteir.softmax is not defined for input of dtype si32"),
    ("byteir.layer_norm", [X, ROW, ROW], {**NORM, "axis": [0]}, "ShapeMismatch",
     "axis 0 of weight and axis 0 of input differ in extent: 6 and 4"),
    ("byteir.layer_norm", [X, X, ROW], NORM, "RankMismatch",
     "weight of byteir.layer_norm over 1 axes has rank 2, not 1"),
    ("byteir.layer_norm", [X, ("f16", [6]), ROW], NORM, "DTypeMismatch",
     "input and weight have dtypes f32 and f16"),
    ("byteir.addn", [X, ROW], {}, "ShapeMismatch",
     "the operands of byteir.addn have shapes [4, 6] and [6]"),
    ("byteir.addn", [], {}, "ArityMismatch", "byteir.addn takes operands (*inputs) but got 0"),
    ("byteir.arg_max", [("f32", [4, 0])], {"axis": 1}, "EmptyReduction",
     "axis 1 of byteir.arg_max has no elements to choose from"),
    ("byteir.repeat", [X, ("si64", [5])], {"length": 3}, "ShapeMismatch",
     "repeats and axis 0 of input differ in extent: 5 and 4"),
    ("byteir.repeat", [ONE, ("si64", [1])], {"length": 3}, "RankMismatch",
     "input has rank 0, at least 1 is needed"),
    ("byteir.quantize", [X, ONE, ("si32", [])], {}, "DTypeNotSupported",
     "byteir.quantize is not defined for zero_point of dtype si32"),
    ("byteir.resize", [X, ("si64", [3])], RESIZE, "ShapeMismatch",
     "the length of target and the rank of input differ: 3 and 2"),
    ("byteir.resize", [X, ("f32", [2])], RESIZE, "DTypeNotSupported",
     "byteir.resize is not defined for target of dtype f32"),
    ("byteir.resize", [("si8", [4, 6]), ("si64", [2])], RESIZE, "DTypeNotSupported",
     "byteir.resize is not defined for input of dtype si8"),
    ("byteir.resize", [("f32", [0, 2]), ("si64", [2])], {**RESIZE, "shape": [3, 2]},
     "EmptyReduction", "axis 0 of input has no elements to resize to 3"),
    ("byteir.rng_uniform", [ONE, ("f32", [1]), WORD, WORD], {"dims": [3]}, "RankMismatch",
     "high of byteir.rng_uniform has rank 1, not 0"),
    ("byteir.rng_uniform", [ONE, ("f64", []), WORD, WORD], {"dims": [3]}, "DTypeMismatch",
     "low and high have dtypes f32 and f64"),
    ("byteir.rng_uniform", [ONE, ONE, WORD, WORD, ("si64", [2])], {"dims": [3]}, "ShapeMismatch",
     "the length of shape and the rank of the result differ: 2 and 1"),
    ("byteir.rng_normal", [ONE, ONE, WORD], {"dims": [3]}, "ArityMismatch",
     "byteir.rng_normal takes operands (mean, stddev, seed, offset, shape?) but got 3"),
    ("byteir.rng_normal", [ONE, ONE, WORD, WORD], {"dims": ["?A"]}, "DynamicDimensionMismatch",
     "the shape of byteir.rng_normal uses ?A, which no parameter or earlier instruction binds"),
    ("byteir.flash_attn_fwd", [Q, ("f32", [2, 7, 3, 8]), ("f32", [2, 7, 3, 8])], FLASH,
     "ShapeMismatch", "the 4 heads of q cannot share the 3 heads of k in byteir.flash_attn_fwd"),
    ("byteir.flash_attn_fwd", [Q, K, ("f32", [2, 6, 2, 8])], FLASH, "ShapeMismatch",
     "k and v differ in rows: 7 and 6"),
    ("byteir.flash_attn_fwd", [Q, ("f32", [2, 7, 2, 9]), K], FLASH, "ShapeMismatch",
     "q and k differ in depth: 8 and 9"),
    ("byteir.flash_attn_fwd", [("f32", [5, 4, 8]), K, K], FLASH, "RankMismatch",
     "q of byteir.flash_attn_fwd has rank 3, not 4"),
    ("byteir.flash_attn_fwd",
     [("f32", [2, "?S", 4, 8]), *[("f32", [2, "?T", 4, 8])] * 2], {**FLASH, "causal": True},
     "DynamicDimensionMismatch",
     "a causal byteir.flash_attn_fwd has sides of unknown difference: ?S and ?T"),
    ("byteir.flash_attn_bwd", [Q, Q, K, K, Q, ("f32", [2, 5, 4]), ("si64", [2])], BACK,
     "ShapeMismatch", "the log-sum-exp is f32[2, 5, 4], not f32[2, 4, 5]"),
    ("byteir.flash_attn_bwd", [Q, Q, K, K, Q, ("f32", [2, 4, 5]), ("si64", [3])], BACK,
     "ShapeMismatch", "the state of dropout is si64[3], not si64[2]"),
    ("byteir.flash_attn_kvcache", [Q, CACHE, CACHE, K, K, ("si32", [3])], CACHED,
     "ShapeMismatch", "seqlen_k and the batch of q differ in extent: 3 and 2"),
    ("byteir.flash_attn_kvcache",
     [Q, *[("f32", [2, 9, 4, 8])] * 2, K, K, ("si32", [2])], CACHED,
     "ShapeMismatch", "k and kcache differ in heads: 2 and 4"),
    ("weft.attention", [HEADS] * 3, {"dropout": 0.5}, "ArityMismatch",
     "weft.attention with dropout 0.5 takes operands (q, k, v, state, mask?) but got 3"),
    ("weft.attention", [*[HEADS] * 3, ("si64", [2])], {}, "DTypeNotSupported",
     "weft.attention is not defined for mask of dtype si64"),
    ("weft.attention", [*[HEADS] * 3, ("f32", [3, 5])], {}, "BroadcastDimsInvalid",
     "the mask [3, 5] does not broadcast to the scores [2, 4, 5, 5]"),
    ("weft.attention", [HEADS] * 3, {"heads": 3}, "ShapeMismatch",
     "the heads of q are not those of weft.attention: 4 and 3"),
    ("weft.conv", [IMAGE, WINDOW], {"layout": "NWC"}, "RankMismatch",
     "input of weft.conv in NWC has rank 4, not 3"),
    ("weft.conv", [IMAGE, ("f32", [3, 3, 3, 6])], LAST, "ShapeMismatch",
     "weight and the input channels of a group differ: 3 and 4"),
    ("weft.conv", [IMAGE, WINDOW, ("f32", [5])], LAST, "ShapeMismatch",
     "bias and the output channels differ: 5 and 6"),
    ("weft.grouped_matmul", [X, ("f32", [3, 5, 2]), ("si32", [3])], {}, "ShapeMismatch",
     "input and weight differ in the extent that is summed over: 6 and 5"),
    ("weft.grouped_matmul", [X, ("f32", [3, 6, 2]), ("si32", [3])], {"transposed": True},
     "ShapeMismatch", "input and weight differ in the extent that is summed over: 6 and 2"),
    ("weft.grouped_matmul", [X, ("f32", [3, 6, 2]), ("si32", [4])], {}, "ShapeMismatch",
     "offsets and weight differ in groups: 4 and 3"),
    ("weft.grouped_matmul", [X, ("f32", [3, 6, 2]), ("f32", [3])], {}, "DTypeNotSupported",
     "weft.grouped_matmul is not defined for offsets of dtype f32"),
    *(("weft.fourier", [("cf32", [4, size])], {}, "InvalidAttributeValue",
       f"the last axis of weft.fourier has the size {size}; even sizes from 32 to 65536 without a "
       "prime factor above 13 are possible") for size in (30, 33, 34, 1 << 17, "?N")),
    ("weft.fourier", [X], {}, "DTypeNotSupported",
     "weft.fourier is not defined for x of dtype f32"),
    ("weft.grouped_outer", [X, ("f32", [5, 2]), ("si32", [3])], {}, "ShapeMismatch",
     "lhs and rhs differ in rows: 4 and 5"),
    ("weft.grouped_matmul", [X, ("f32", [6, 2]), ("si32", [3])], {}, "RankMismatch",
     "weight has rank 2, not 3"),
    ("weft.grouped_matmul", [X, ("f16", [3, 6, 2]), ("si32", [3])], {}, "DTypeMismatch",
     "input and weight have dtypes f32 and f16"),
]  # fmt: skip


@each(("name", "kinds", "attrs", "code", "why"), TYPES)
def test_types(name: str, kinds: list[Kind], attrs: dict[str, Any], code: str, why: str) -> None:
    found = emitted(name, kinds, attrs)
    assert (found.code, found.why) == (code, why)


def test_unknown_attributes_of_a_call() -> None:
    b = Builder()
    x = b.param(*X)
    with pytest.raises(SpecViolation) as caught:
        b.custom_call("byteir.softmax", x, output=x.type, axis=1, beta=2.0)
    assert caught.value.code == "InvalidAttributeValue"
    assert caught.value.why == "byteir.softmax has no attribute 'beta'"
    with pytest.raises(SpecViolation) as caught:
        b.custom_call(
            "byteir.layer_norm", x, x, x, output=x.type, epsilon=1e-5, axis=[1], results=3
        )
    assert caught.value.why == "byteir.layer_norm has no attribute 'results'"
    with pytest.raises(SpecViolation) as caught:
        b.custom_call("byteir.softmax", x, output=x.type)
    assert caught.value.why == "byteir.softmax needs the attribute 'axis'"


def test_results_of_a_call() -> None:
    b = Builder()
    x = b.param(*X)
    with pytest.raises(SpecViolation) as caught:
        b.custom_call("byteir.softmax", x, output=tensor("f32", [4, 5]), axis=1)
    assert caught.value.why == "the op gives f32[4, 6], not f32[4, 5] as requested"


# -- data ----------------------------------------------------------------------------------------

RUNS: dict[str, tuple[str, list[Array], dict[str, Any], str, str]] = {
    "negative repeats": (
        "byteir.repeat", [np.zeros(3), np.array([2, -1, 1])], {"length": 2}, "InvalidRepeats",
        "repeats has -1 at position 1",
    ),
    "too many repeats": (
        "byteir.repeat", [np.zeros(3), np.array([2, 1, 1])], {"length": 3}, "InvalidRepeats",
        "repeats adds up to 4 rows, but 3 are declared",
    ),
    "no rows declared": (
        "byteir.repeat", [np.zeros(3), np.array([2, 1, 1])], {"length": 0}, "InvalidRepeats",
        "repeats adds up to 4 rows, but 0 are declared",
    ),
    "more positions than rows": (
        "byteir.non_zero", [np.ones((2, 2))], {"bound": 3}, "BoundExceeded",
        "4 elements are not zero, but byteir.non_zero has room for 3",
    ),
    "another size": (
        "byteir.resize", [np.ones((1, 2), np.float32), np.array([1, 5])],
        {**RESIZE, "shape": [1, 4]}, "InvalidTarget",
        "target gives axis 1 the length 5, not 4 as is declared",
    ),
    "another scale": (
        "byteir.resize", [np.ones((1, 2), np.float32), np.array([1.0, 1.9], np.float32)],
        {**RESIZE, "shape": [1, 4], "target_mode": "scale"}, "InvalidTarget",
        "target gives axis 1 the length 3, not 4 as is declared",
    ),
    "another shape": (
        "byteir.rng_uniform",
        [np.zeros((), np.float32), np.ones((), np.float32), np.array(1), np.array(2),
         np.array([3, 4])],
        {"dims": [4, 3]}, "InvalidTarget", "shape is [3, 4], but [4, 3] is declared",
    ),
    "a full cache": (
        "byteir.flash_attn_kvcache",
        [*[np.zeros((2, n, 1, 2), np.float32) for n in (1, 4, 4, 2, 2)], np.array([1, 3])], CACHED,
        "ScatterIndexOutOfBounds",
        "2 rows from row 3 on do not fit the 4 rows of the cache, at position 1 of seqlen_k",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_data(name: str) -> None:
    op, inputs, attrs, code, why = RUNS[name]
    b = Builder()
    parameters = [b.param(as_dtype(a.dtype), a.shape) for a in inputs]
    program = b.build(b.emit(op, *parameters, **attrs))
    with pytest.raises(SpecViolation) as caught:
        weft.run(program, inputs, backend="reference")
    assert (caught.value.code, caught.value.why) == (code, why)
    with pytest.raises(SpecViolation) as caught:
        weft.run(decompose(program), inputs, backend="reference")
    assert caught.value.code in ("GatherIndexOutOfBounds", "ScatterIndexOutOfBounds")
