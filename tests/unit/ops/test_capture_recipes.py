"""Captures that are written down once and then followed."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import numpy as np
import pytest

import weft
from tests.unit.ops.array.arrays import agrees
from weft.foundation.errors import InternalError, UserError
from weft.ops.capture_recipes import captured, recorded
from weft.ops.session import Handle

pytestmark = pytest.mark.usefixtures("default_backend")

calls: list[tuple[Any, ...]] = []


class Pair(NamedTuple):
    first: Any
    second: Any


@recorded
def scaled(x: Handle, /, factor: float = 2.0, *, axis: Any = None) -> Handle:
    """x times a factor, summed over an axis."""
    calls.append((x.tensor, factor, axis))
    product = x * factor
    return product if axis is None else product.reduce_sum(axis)


@recorded
def halves(x: Handle, /) -> Pair:
    return Pair(x.slice([0], [2]), x.slice([2], [4]))


@pytest.fixture(autouse=True)
def forget() -> None:
    calls.clear()


def test_a_capture_is_carried_out_once_for_types_and_parameters() -> None:
    x, y = weft.asarray([1.0, 2.0, 3.0]), weft.asarray([4.0, 5.0, 6.0])
    agrees(scaled(x, 3.0), [3.0, 6.0, 9.0], "float32")
    agrees(scaled(y, 3.0), [12.0, 15.0, 18.0], "float32")
    assert len(calls) == 1
    scaled(x, 5.0)
    scaled(weft.asarray([1.0]), 3.0)
    scaled(weft.asarray([1, 2, 3]), 3)
    assert len(calls) == 4


def test_lists_are_parameters_like_tuples() -> None:
    x = weft.ones((2, 3), dtype=weft.float64)
    agrees(scaled(x, axis=[0, 1]), 12.0)
    agrees(scaled(x, axis=(0, 1)), 12.0)
    assert len(calls) == 1


def test_several_results_keep_their_names() -> None:
    found = halves(weft.arange(4))
    assert isinstance(found, Pair)
    agrees(found.first, [0, 1], "int64")
    agrees(found.second, [2, 3], "int64")


def test_an_operand_may_be_the_result() -> None:
    x = weft.ones((2, 2))
    same = weft.reshape(x, (2, 2))
    same[0, 0] = 5.0
    agrees(x, np.ones((2, 2)), "float32")


def test_errors_are_not_remembered_and_name_each_line() -> None:
    x = weft.ones(3)
    lines = []
    for _ in range(2):
        with pytest.raises(weft.SpecViolation, match=r"\[sum\] axis 4 is out of range") as error:
            weft.sum(x, axis=4)
        lines.append(error.value.where)
    with pytest.raises(weft.SpecViolation) as error:
        weft.sum(x, axis=4)
    assert lines[0] == lines[1] != error.value.where


def test_every_use_has_its_own_line() -> None:
    x = weft.ones(3)
    first = scaled(x)
    second = scaled(x)
    places = [sorted(y.program().locations.values()) for y in (first, second)]
    assert places[0] != places[1]


def test_a_tensor_is_no_parameter() -> None:
    with pytest.raises(UserError, match=r"\[scaled\] a Tensor is given where a Python value"):
        scaled(weft.ones(2), weft.asarray(3.0))
    with pytest.raises(UserError, match="a dict is given where a Python value is wanted"):
        scaled(weft.ones(2), axis={0: 1})
    with pytest.raises(TypeError, match="unexpected keyword argument 'axes'"):
        scaled(weft.ones(2), axes=0)  # type: ignore[call-arg]


def test_a_capture_may_use_its_operands_only() -> None:
    outside = weft.ones(2)

    def sneaky(x: Handle) -> Handle:
        return x + x.session.import_(outside)

    with pytest.raises((InternalError, UserError)):
        captured(sneaky, [weft.zeros(2)], None)


def test_the_public_signature_speaks_of_tensors() -> None:
    assert "x: 'Tensor'" in str(scaled.__signature__)  # type: ignore[attr-defined]
    assert scaled.__doc__ == "x times a factor, summed over an axis."


def test_threads_may_record_at_the_same_time() -> None:
    results: list[float] = []

    def work(size: int) -> None:
        x = weft.ones(size)
        results.extend(scaled(x, 7.0, axis=(0,)).item() for _ in range(20))

    threads = [threading.Thread(target=work, args=(size,)) for size in (3, 3, 4, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [21.0] * 40 + [28.0] * 40
