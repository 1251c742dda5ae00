"""Programs on rows that are too long for one block."""

from __future__ import annotations

from weft.ptir import Builder, Program, Value


def summed(dtype: str, shape: tuple[int, ...], *axes: int) -> Program:
    b = Builder()
    return b.build(b.reduce_sum(b.param(dtype, list(shape)), list(axes)))


def argmax(*shape: int) -> Program:
    b = Builder()
    x = b.param("f32", list(shape))
    return b.build(b.arg_max(x, axis=-1, keepdims=False, output_dtype="si64"))


def layer_norm(rows: int, length: int) -> Program:
    b = Builder()
    x, *weights = (b.param("f32", shape) for shape in ([rows, length], [length], [length]))
    return b.build(b.layer_norm(x, *weights, epsilon=1e-5, feature_axis=1))


def softmax(rows: int, length: int) -> Program:
    b = Builder()
    return b.build(b.softmax(b.param("f32", [rows, length]), 1))


def softmax_between(
    columns: int, dtype: str = "bf16", rows: int = 16, *, handed_out: bool = False
) -> Program:
    """softmax(x @ w) @ v, not in one kernel: the rows are scaled by their sum, too."""
    b = Builder()
    x, w = b.param(dtype, [rows, 64]), b.param(dtype, [64, columns])
    v = b.param(dtype, [columns, 64])
    scores = b.cast(b.dot_general(x, w, contract=([1], [0])), "f32")
    shape = [rows, columns]

    def over(x: Value) -> Value:
        return b.broadcast_to(b.reshape(x, [rows, 1]), shape)

    powers = b.exp(scores - over(b.reduce_max(scores, [1])))
    shares = powers / over(b.reduce_sum(powers, [1]))
    squares = b.reduce_sum(shares * shares, [1])
    rounded = b.cast(shares * over(squares), dtype)
    mixed = b.dot_general(rounded, v, contract=([1], [0]))
    return b.build(mixed, rounded) if handed_out else b.build(mixed)
