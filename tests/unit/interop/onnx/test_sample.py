"""A sample of ONNX's own suite; `make test-onnx` runs all of it."""

from __future__ import annotations

import functools
import importlib
from typing import Any

import pytest

from tests.scores.onnx_suite import loaded, run_case

SAMPLE = """
adagrad: adagrad_multiple
adam: adam_multiple
add: add_bcast
argmax: argmax_keepdims_example
attention: attention_4d_causal
batch_normalization: batchnorm_epsilon
bitshift: bitshift_left_uint8 bitshift_right_int8_negative_shift
cast: cast_FLOAT_to_FLOAT8E4M3FN cast_FLOAT_to_INT4
clip: clip_inbounds
col2im: col2im_dilations
compress: compress_1
conv: basic_conv_with_padding
convinteger: convinteger_with_padding
convtranspose: convtranspose_pad convtranspose_output_shape
cumsum: cumsum_2d_negative_axis
depthtospace: depthtospace_crd_mode_example
dequantizelinear: dequantizelinear_blocked
dft: dft_rfft
div: div_int32_trunc
dropout: training_dropout_zero_ratio
dynamicquantizelinear: dynamicquantizelinear
einsum: einsum_batch_diagonal
eyelike: eyelike_with_dtype
flexattention: flexattention_causal_mask
gather: gather_negative_indices
gathernd: gathernd_example_int32_batch_dim1
gelu: gelu_tanh_1
gridsample: gridsample_bicubic gridsample_reflection_padding
groupnormalization: group_normalization_example
gru: gru_seq_length
hardmax: hardmax_axis_1
if_: if if_seq
layernormalization: layer_normalization_4d_axis1
loop: loop11 loop13_seq
lstm: lstm_with_peepholes lstm_batchwise
matmulinteger: matmulinteger
maxunpool: maxunpool_export_with_output_shape
mod: mod_mixed_sign_float64
momentum: nesterov_momentum
nonmaxsuppression: nonmaxsuppression_suppress_by_IOU
nonzero: nonzero_example
onehot: onehot_negative_indices
pad: wrap_pad
pow: pow_types_float32_int64
prelu: prelu_broadcast
qlinearconv: qlinearconv
qlinearmatmul: qlinearmatmul_2D_uint8_float32
quantizelinear: quantizelinear_axis
rangeop: range_float_type_positive_delta
reduce_log_sum_exp: reduce_log_sum_exp_do_not_keepdims_random
reducemax: reduce_max_empty_set
reshape: reshape_allowzero_reordered
resize: resize_downsample_scales_cubic_align_corners resize_downsample_scales_linear_antialias
resize: resize_tf_crop_and_resize resize_upsample_sizes_nearest_ceil_half_pixel
reversesequence: reversesequence_time
roialign: roialign_mode_max
scan: scan9_sum
scatterelements: scatter_elements_with_reduction_mul
scatternd: scatternd_max
sequenceinsert: sequence_insert_at_front
slice: slice_negative_axes
softmax: softmax_large_number_expanded
split: split_variable_parts_2d_opset18
stft: stft_with_window
tensorscatter: tensorscatter_circular
topk: top_k_smallest
transpose: transpose_all_permutations_3
trilu: tril_square_neg
unique: unique_sorted_with_axis
where: where_long_example
xor: xor4d
"""
"""Modules of the suite, which make their cases when they are imported, and cases of each."""
CASES = [
    (module, name)
    for module, _, names in (line.partition(": ") for line in SAMPLE.split("\n") if line)
    for name in names.split()
]


@functools.cache
def cases(module: str) -> dict[str, Any]:
    """Those of a module, and of all that were imported before."""
    importlib.import_module(f"onnx.backend.test.case.node.{module}")
    node = importlib.import_module("onnx.backend.test.case.node")
    return {case.name: case for case in node._NodeTestCases}


@pytest.mark.parametrize(("module", "name"), CASES)
@pytest.mark.filterwarnings("ignore")
def test_a_case_of_the_suite_is_right(module: str, name: str) -> None:
    case = cases(module)[f"test_{name}"]
    model, sets = loaded(case)
    assert run_case(case, model, sets, "reference") == ("right", "")
