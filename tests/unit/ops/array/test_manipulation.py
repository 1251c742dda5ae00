"""Functions that place elements, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from tests.support.cases import each
from tests.unit.ops.array.arrays import ALL, agrees, data
from weft.foundation.errors import SpecViolation, UserError

X = np.arange(24).reshape(2, 3, 4)

# weft's call and NumPy's, on a tensor of shape (2, 3, 4)
CASES: list[tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = [
    ("reshape", lambda x: weft.reshape(x, (4, 6)), lambda x: x.reshape(4, 6)),
    ("reshape -1", lambda x: x.reshape(-1, 2), lambda x: x.reshape(-1, 2)),
    ("reshape tuple", lambda x: x.reshape((3, 8)), lambda x: x.reshape(3, 8)),
    ("reshape number", lambda x: weft.reshape(x, -1), lambda x: x.reshape(-1)),
    ("broadcast_to", lambda x: weft.broadcast_to(x, (5, 2, 3, 4)),
     lambda x: np.broadcast_to(x, (5, 2, 3, 4))),
    ("expand_dims", lambda x: weft.expand_dims(x, axis=1), lambda x: np.expand_dims(x, 1)),
    ("expand_dims -1", lambda x: weft.expand_dims(x, axis=-1), lambda x: np.expand_dims(x, -1)),
    ("expand_dims two", lambda x: x.expand_dims((0, 2)), lambda x: np.expand_dims(x, (0, 2))),
    ("permute_dims", lambda x: weft.permute_dims(x, (2, 0, 1)), lambda x: x.transpose(2, 0, 1)),
    ("permute_dims method", lambda x: x.permute_dims(1, 0, -1), lambda x: x.transpose(1, 0, 2)),
    ("moveaxis", lambda x: weft.moveaxis(x, 0, -1), lambda x: np.moveaxis(x, 0, -1)),
    ("moveaxis two", lambda x: weft.moveaxis(x, (0, 2), (2, 1)),
     lambda x: np.moveaxis(x, (0, 2), (2, 1))),
    ("mT", lambda x: x.mT, lambda x: x.swapaxes(-1, -2)),
    ("T", lambda x: x[0].T, lambda x: x[0].T),
    ("flip", weft.flip, np.flip),
    ("flip 1", lambda x: weft.flip(x, axis=1), lambda x: np.flip(x, 1)),
    ("flip two", lambda x: weft.flip(x, axis=(0, -1)), lambda x: np.flip(x, (0, -1))),
    ("roll", lambda x: weft.roll(x, 5), lambda x: np.roll(x, 5)),
    ("roll back", lambda x: weft.roll(x, -30), lambda x: np.roll(x, -30)),
    ("roll axis", lambda x: weft.roll(x, 1, axis=2), lambda x: np.roll(x, 1, 2)),
    ("roll twice", lambda x: weft.roll(x, (1, -1), axis=(0, 2)),
     lambda x: np.roll(x, (1, -1), (0, 2))),
    ("roll one axis twice", lambda x: weft.roll(x, (1, 1), axis=(2, 2)),
     lambda x: np.roll(x, (1, 1), (2, 2))),
    ("roll all axes", lambda x: weft.roll(x, 2, axis=(0, 1)), lambda x: np.roll(x, 2, (0, 1))),
    ("concat", lambda x: weft.concat([x, x, x]), lambda x: np.concatenate([x, x, x])),
    ("concat 2", lambda x: weft.concat((x, x[..., :1]), axis=-1),
     lambda x: np.concatenate([x, x[..., :1]], -1)),
    ("concat flat", lambda x: weft.concat([x, x[0]], axis=None),
     lambda x: np.concatenate([x, x[0]], None)),
    ("concat one", lambda x: weft.concat([x], axis=1), lambda x: x),
    ("stack", lambda x: weft.stack([x, x]), lambda x: np.stack([x, x])),
    ("stack last", lambda x: weft.stack([x, x], axis=-1), lambda x: np.stack([x, x], -1)),
    ("tile", lambda x: weft.tile(x, (2, 1, 3)), lambda x: np.tile(x, (2, 1, 3))),
    ("tile fewer", lambda x: weft.tile(x, (2,)), lambda x: np.tile(x, (2,))),
    ("tile more", lambda x: weft.tile(x, (2, 1, 1, 2)), lambda x: np.tile(x, (2, 1, 1, 2))),
    ("tile none", lambda x: weft.tile(x, (0, 1, 1)), lambda x: np.tile(x, (0, 1, 1))),
    ("repeat", lambda x: weft.repeat(x, 3), lambda x: np.repeat(x, 3)),
    ("repeat axis", lambda x: weft.repeat(x, 2, axis=1), lambda x: np.repeat(x, 2, 1)),
    ("repeat none", lambda x: weft.repeat(x, 0, axis=-1), lambda x: np.repeat(x, 0, -1)),
    ("repeat each", lambda x: weft.repeat(x, weft.asarray([1, 0, 2]), axis=1),
     lambda x: np.repeat(x, [1, 0, 2], 1)),
    ("repeat one", lambda x: weft.repeat(x, weft.asarray([2]), axis=0),
     lambda x: np.repeat(x, [2], 0)),
    ("squeeze", lambda x: weft.squeeze(x[:1], axis=0), lambda x: x[:1].squeeze(0)),
    ("squeeze two", lambda x: weft.squeeze(x[:1, :1], (0, 1)), lambda x: x[:1, :1].squeeze((0, 1))),
]  # fmt: skip


@each(("call", "oracle"), [c[1:] for c in CASES])
def test_against_numpy(call: Any, oracle: Any) -> None:
    agrees(call(weft.asarray(X)), oracle(X))


@pytest.mark.parametrize("dtype", ALL)
def test_every_dtype(dtype: str) -> None:
    x = data(dtype, (2, 3))
    t = weft.asarray(x)
    agrees(weft.flip(t), np.flip(x))
    agrees(weft.roll(t, 1, axis=1), np.roll(x, 1, 1))
    agrees(weft.repeat(t, 2, axis=0), np.repeat(x, 2, 0))
    agrees(weft.tile(t, (2, 2)), np.tile(x, (2, 2)))
    agrees(weft.stack([t, t], axis=1), np.stack([x, x], 1))


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), ()])
def test_empty_tensors_and_scalars(shape: tuple[int, ...]) -> None:
    x = data("float32", shape)
    t = weft.asarray(x)
    agrees(weft.flip(t), x)
    agrees(weft.roll(t, 2), x)
    agrees(weft.reshape(t, (-1,)) if x.size else weft.reshape(t, (0,)), x.reshape(-1))
    agrees(weft.concat([t, t], axis=None), np.concatenate([x, x], None))
    agrees(weft.stack([t, t]), np.stack([x, x]))
    agrees(weft.expand_dims(t, axis=0), x[None])


def test_unstack() -> None:
    for axis in (0, 1, -1):
        parts = weft.unstack(weft.asarray(X), axis=axis)
        expected = np.moveaxis(X, axis, 0)
        assert isinstance(parts, tuple)
        for part, wanted in zip(parts, expected, strict=True):
            agrees(part, wanted)
    assert weft.unstack(weft.zeros((0, 2))) == ()


def test_broadcast_arrays() -> None:
    x, y = data("int8", (3, 1)), data("float32", (4,))
    found = weft.broadcast_arrays(weft.asarray(x), weft.asarray(y))
    assert isinstance(found, list)
    for got, expected in zip(found, np.broadcast_arrays(x, y), strict=True):
        agrees(got, expected)
    assert weft.broadcast_arrays() == []


def test_joined_tensors_are_promoted() -> None:
    x, y = weft.asarray([1, 2], dtype=weft.int8), weft.asarray([0.5])
    assert weft.concat([x, y]).dtype is weft.float32
    assert weft.stack([x, weft.asarray([3, 4], dtype=weft.uint8)]).dtype is weft.int16


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: weft.reshape(x, (5, 5)), r"\[reshape\].*changes the number of elements"),
        (lambda x: weft.reshape(x, (-1, -1)), r"\[reshape\]"),
        (lambda x: weft.broadcast_to(x, (3, 4)), r"x \(2, 3, 4\) does not broadcast to \(3, 4\)"),
        (lambda x: weft.expand_dims(x, axis=7), r"axis 7 is out of range"),
        (lambda x: weft.squeeze(x, 0), r"axis 0 of x \(2, 3, 4\) has size 2, not 1"),
        (lambda x: weft.permute_dims(x, (0, 1)), r"axes \(0, 1\) is not a permutation of the 3"),
        (lambda x: weft.permute_dims(x, (0, 1, 1)), r"names an axis twice"),
        (lambda x: weft.flip(x, axis=3), r"\[flip\] axis 3 is out of range; a rank-3 operand"),
        (lambda x: weft.concat([x, x[0]]), r"tensor 0 \(2, 3, 4\) and tensor 1 \(3, 4\) differ"),
        (lambda x: weft.stack([x, x[:1]]), r"tensor 0 \(2, 3, 4\) and tensor 1 \(1, 3, 4\) differ"),
        (lambda x: weft.repeat(x, -1), r"repeats is -1"),
        (lambda x: weft.repeat(x, weft.asarray([1, 2]), axis=1), r"2 repeats do not go with 3"),
        (lambda x: weft.tile(x, (-1,)), r"negative"),
        (lambda x: x.T, r"\[T\] si64\[2, 3, 4\] has rank 3, but T is defined for matrices"),
        (lambda x: x[0, 0].mT, r"\[matrix_transpose\] x \(4,\) has rank 1"),
    ],
)
def test_mistakes(call: Any, message: str) -> None:
    with pytest.raises(SpecViolation, match=message) as error:
        call(weft.asarray(X))
    assert "test_manipulation.py:" in str(error.value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: weft.concat([]), r"\[concat\] at least one tensor is wanted"),
        (lambda x: weft.concat(x), "a list of tensors is wanted here, not one tensor"),
        (
            lambda x: weft.flip([1, 2]),
            "a tensor is wanted here, not list; make one with weft.asarr",
        ),
        (lambda x: weft.flip(x, axis=1.5), r"whole numbers are wanted here, not 1\.5"),
        (lambda x: weft.roll(x, (1, 2), axis=0), "2 shifts do not go with 1 axes"),
        (lambda x: weft.roll(x, (1, 2)), "several shifts need as many axes"),
        (lambda x: weft.moveaxis(x, (0, 1), 2), "2 axes cannot move to 1 positions"),
    ],
)
def test_wrong_calls(call: Any, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        call(weft.asarray(X))
    assert "test_manipulation.py:" in str(error.value)
