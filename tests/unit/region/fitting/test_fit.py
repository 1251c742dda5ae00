"""Kernels that fit the machine: zeros that a scatter begins with are not written first."""

from __future__ import annotations

import pytest

from tests.support.gpu_programs import through_stages
from weft.foundation.whole_ops import Collected, Gathered
from weft.ptir import Builder, Program
from weft.region.form import Product
from weft.region.ir import Kernel, Pattern


def scatter_onto(start: float, dtype: str = "f32", *, twice: bool = False) -> Program:
    b = Builder()
    at, new = b.param("si32", [2000]), b.param(dtype, [2000])
    x = b.full([50], start, dtype)
    added = b.scatter_reduce(x, at, new, axis=0, reduce="add")
    return b.build(added, b.concat([x, added], axis=0)) if twice else b.build(added)


def combining(program: Program) -> tuple[type, list[Kernel]]:
    """The op that takes the updates, and the kernels that read nothing."""
    kernels = through_stages(program, "sm90")["region"].kernels
    (found,) = (
        type(kernel.opaque.op)
        for kernel in kernels
        if kernel.opaque is not None and isinstance(kernel.opaque.op, Gathered)
    )
    return found, [k for k in kernels if k.pattern is Pattern.MAP and not k.inputs]


@pytest.mark.parametrize("dtype", ["f32", "bf16", "si16"])
def test_zeros_are_not_written_first(dtype: str) -> None:
    assert combining(scatter_onto(0, dtype)) == (Collected, [])


@pytest.mark.parametrize("start", [-0.0, 1.0, float("inf")])
def test_other_numbers_are(start: float) -> None:
    kind, fills = combining(scatter_onto(start))
    assert (kind, len(fills)) == (Gathered, 1)


def test_zeros_that_others_read_are_written_for_them() -> None:
    kind, _ = combining(scatter_onto(0.0, twice=True))
    assert kind is Collected


def test_an_operand_whose_contracted_axes_lie_in_another_order_is_copied() -> None:
    """The gradient of a layer behind a recurrence: steps come first on one side, sequences on the
    other. Matrix instructions want what is summed over as one axis."""
    b = Builder()
    hidden, slopes = b.param("bf16", [32, 16, 64]), b.param("bf16", [512, 128])
    turned = b.reshape(b.transpose(hidden, [1, 0, 2]), [512, 64])
    kernels = through_stages(b.build(b.transpose(turned, [1, 0]) @ slopes), "sm90")[
        "region"
    ].kernels
    copy, product = kernels
    assert copy.pattern is Pattern.MAP
    assert isinstance(product.form, Product)
    assert product.form.problem is not None
    assert set(product.form.problem.axes.k) == set(product.roles.k)
