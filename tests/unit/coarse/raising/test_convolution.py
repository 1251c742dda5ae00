"""Raising convolutions, for other formats: patches times a matrix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.unit.coarse.raising.raised import Shape, agree, built, coarse
from weft.coarse.raising import FOR_OTHERS, raise_program
from weft.ptir import Builder, Value, verify


def patches_of(b: Builder, x: Value, pad_value: float = 0.0) -> Value:
    return b.emit(
        "extract_patches", x, window=(3, 2), strides=(2, 1), dilation=(1, 2),
        padding=((1, 0), (2, 1)), pad_value=pad_value,
    )  # fmt: skip


def one_group(b: Builder, x: Value, w: Value, *bias: Value, pad_value: float = 0.0) -> Value:
    found = b.emit(
        "dot_general", patches_of(b, x, pad_value), w, contract_lhs=(3,), contract_rhs=(0,)
    )
    return found + b.broadcast_to(bias[0], found.shape) if bias else found


def two_groups(b: Builder, x: Value, w: Value, order: Sequence[int] = (1, 2, 3, 0, 4)) -> Value:
    patches = patches_of(b, x)
    rows = b.reshape(patches, (*patches.shape[:3], 6, 2, 2))
    found = b.emit(
        "dot_general", rows, w, batch_lhs=(4,), batch_rhs=(2,), contract_lhs=(3, 5),
        contract_rhs=(0, 1),
    )  # fmt: skip
    turned = b.transpose(found, order)
    return b.reshape(turned, (*turned.shape[:3], 6))


@pytest.mark.parametrize(
    ("function", "shapes"),
    [(one_group, ((2, 7, 5, 4), (24, 3))), (one_group, ((2, 7, 5, 4), (24, 3), (3,))),
     (two_groups, ((2, 7, 5, 4), (6, 2, 2, 3)))],
)  # fmt: skip
def test_patches_times_a_matrix_are_a_convolution(
    function: Callable[..., Any], shapes: Sequence[Shape]
) -> None:
    program = built(function, *shapes)
    raised = raise_program(program, patterns=FOR_OTHERS)
    verify(raised)
    assert coarse(raised) == ["weft.conv"]
    agree(program, raised)
    assert not coarse(raise_program(program)), "gradients take patches as they are"


def test_what_only_looks_like_a_convolution() -> None:
    """Padding that is not 0, patches that somebody else reads, groups in another order."""

    def padded(b: Builder, x: Value, w: Value) -> Value:
        return one_group(b, x, w, pad_value=1.0)

    def read(b: Builder, x: Value, w: Value) -> Sequence[Value]:
        patches = patches_of(b, x)
        dot = b.emit("dot_general", patches, w, contract_lhs=(3,), contract_rhs=(0,))
        return [dot, b.reduce_sum(patches, [0, 1, 2])]

    def mixed(b: Builder, x: Value, w: Value) -> Value:
        return two_groups(b, x, w, (1, 2, 3, 4, 0))

    for function in (padded, read):
        left = raise_program(built(function, (2, 7, 5, 4), (24, 3)), patterns=FOR_OTHERS)
        assert not coarse(left)
    left = raise_program(built(mixed, (2, 7, 5, 4), (6, 2, 2, 3)), patterns=FOR_OTHERS)
    assert not coarse(left)
