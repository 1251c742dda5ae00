"""Texts of Core IR."""

from __future__ import annotations

X = "x: f32[2, 3]; "

CALLS = {
    "ConstI64": "const_i64(-3)",
    "ConstF32": "const_f32(1.5)",
    "ConstF64": "const_f64(inf)",
    "ConstTensor": "const_tensor([[1, 2]], i32, [1, 2])",
    "Add": "add(x, x)",
    "Sub": "sub(x, 1)",
    "Mul": "mul(2, x)",
    "Div": "div(x, x)",
    "Sum": "sum(x, [1], true)",
    "Mean": "mean(x, axes=[-1], keepdims=true)",
    "Reshape": "reshape(x, [3, -1])",
    "Transpose": "transpose(x, permutation=[1, 0])",
    "ExpandDims": "expand_dims(x, [0])",
    "Squeeze": "squeeze(x, [])",
    "Index": "index(x, [1, 2])",
    "Slice": "slice(x, [0, 0], [2, 2], steps=[1, 1])",
    "Gather": "gather(x, [0, 1])",
    "Dot": "dot(x, [1, 2, 3])",
    "MatMul": "matmul(x, transpose(x, [1, 0]))",
    "Conv2d": "conv2d(reshape(x, [1, 2, 3, 1]), reshape(x, [2, 3, 1, 1]), [1, 1], Same)",
    "Relu": "relu(x)",
    "Neg": "neg(x)",
    "Exp": "exp(x)",
    "Log": "log(x)",
    "BroadcastTo": "broadcast_to(x, [4, 2, 3])",
    "Reciprocal": "reciprocal(x)",
    "ReluBackward": "relu_backward(x, x)",
    "SliceBackward": "slice_backward(x, [4, 3], [0, 0], [2, 1])",
    "GatherBackward": "gather_backward(x, [0, 0], rows=1)",
    "Conv2dBackwardInput": "conv2d_backward_input(reshape(x, [1, 2, 3, 1]), "
    "f32([[[[1], [2]]]]), [1, 2, 3, 2])",
    "Conv2dBackwardFilter": "conv2d_backward_filter(reshape(x, [1, 2, 3, 1]), "
    "reshape(x, [1, 2, 3, 1]), [1, 1, 1, 1])",
}

FIRST = """\
%0 = Input () {name=a} : tensor<f32[2, 3]>
%1 = Input () {name=b} : tensor<f32[2, 3]>
%2 = ConstI64 () {value=-7} : tensor<i64[]>
%3 = Add (%0, %1) : tensor<f32[2, 3]>
%4 = Sum (%3) {axes=[1], keepdims=false} : tensor<f32[2]>
%5 = ConstTensor () {data=[[0, 1], [1, 0]], dtype=i32, shape=[2, 2]} : tensor<i32[2, 2]>
%6 = Slice (%0) {ends=[2, 3], starts=[0, 1], steps=[1, 2]} : tensor<f32[2, 1]>
%7 = Reshape (%6) {new_shape=[1, 2, 1, 1]} : tensor<f32[1, 2, 1, 1]>
%8 = Conv2d (%7, %7) {padding=Custom([[1, 0], [0, 0]]), strides=[1, 1]} : tensor<f32[1, 3, 1, 1]>
outputs: %3, %4, %8
"""

SECOND = """\
# The same module.
%0 = Input() {name: "a"} : Tensor<f32, [2, 3]>
%1 = Input() {name: "b",} : Tensor<f32, [2, 3,]>

%2 = ConstI64(-7) : Tensor<i64, []>
%3 = BinOp(Add, %0, %1) : Tensor<f32, [2, 3]>   # a + b
%4 = Sum(%3, [1], false) : Tensor<f32, [2]>
%5 = ConstTensor([[0, 1], [1, 0]]) : Tensor<i32, [2, 2]>
%6 = Slice(%0, [0:2, 1:3:2]) : Tensor<f32, [2, 1]>
%7 = Reshape(%6, [1, 2, 1, 1]) : Tensor<f32, [1, 2, 1, 1]>
%8 = Conv2d(%7, %7, [1, 1], Custom([[1, 0], [0, 0]])) : Tensor<f32, [1, 3, 1, 1]>
outputs: %3, %4, %8,
"""
