"""Which blocks become one kernel, where the choice matters for whole models."""

from __future__ import annotations

from tests.lowered import lowered
from weft.ptir import Builder, Program
from weft.region.ir import Pattern
from weft.tiny.from_ptir import lower_program


def residual_blocks(count: int, rows: int = 64, width: int = 96) -> Program:
    """`x = x + norm(x) @ w + bias`, again and again: what a transformer is made of."""
    b = Builder("residual")
    x = b.param("f32", [rows, width])
    gamma, beta = b.param("f32", [width]), b.param("f32", [width])
    layers = [(b.param("f32", [width, width]), b.param("f32", [width])) for _ in range(count)]
    for weight, bias in layers:
        y = b.layer_norm(x, gamma, beta, epsilon=1e-5, feature_axis=-1) @ weight
        x = x + (y + b.broadcast_to(bias, y.shape))
    return b.build(x)


def test_a_sum_that_later_blocks_read_is_stored_by_the_product_it_ends() -> None:
    """The alternative is to add up the whole past of the sum again in every kernel that reads it:
    then no two blocks are the same, and each reads more than the one before."""
    module = lowered(lower_program(residual_blocks(6))).module
    assert [k.pattern for k in module.kernels] == [Pattern.ROW, Pattern.MATMUL] * 6
    for row, product in zip(module.kernels[::2], module.kernels[1::2], strict=True):
        (x,) = (name for name in row.inputs if module.tensors[name].shape == (64, 96))
        assert x in product.inputs
        assert len(product.outputs) == 1
