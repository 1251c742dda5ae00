"""The PTIR session: what is written is the program."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft
from weft.foundation.errors import SpecViolation
from weft.ops.session import Session

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def mnemonics(tensor: weft.Tensor) -> list[str]:
    return [i.op.mnemonic for i in tensor.program().main.body]


def test_a_session_writes_what_it_says() -> None:
    s = Session.here()
    x, y = s.import_(weft.asarray(X)), s.import_(weft.asarray(X + 1))
    found = s.export(((x + y) * s.scalar(2.0, x.dtype).broadcast_to(x.shape)).reduce_mean([1]))
    np.testing.assert_allclose(found.numpy(), ((X + X + 1) * 2).mean(1), rtol=1e-6)


def test_a_number_takes_dtype_and_shape_of_the_handle_beside_it() -> None:
    s = Session.here()
    x = s.import_(weft.asarray(X.astype(np.float16)))
    for handle in (x + 1, 1 - x, 2.0 * x, x / 2, 1.0 / (x + 1.0), -x):
        assert handle.dtype is weft.float16
        assert handle.shape == (2, 3)
    assert mnemonics(s.export(1 - x)) == ["broadcast_to", "sub"]


def test_every_op_is_a_method() -> None:
    s = Session.here()
    x = s.import_(weft.asarray(X))
    np.testing.assert_allclose(s.export(x.tanh()).numpy(), np.tanh(X), rtol=1e-6)
    np.testing.assert_array_equal(s.export(x.maximum(2.0)).numpy(), np.maximum(X, 2))
    values, places = x.top_k(k=1, axis=1, largest=True)
    assert s.export(values).tolist() == [[2.0], [5.0]]
    assert s.export(places).tolist() == [[2], [2]]
    with pytest.raises(AttributeError, match="no op called 'tanhh'"):
        x.tanhh()


def test_shapes_move() -> None:
    s = Session.here()
    x = s.import_(weft.asarray(X))
    cases = [
        (x.transpose([1, 0]), X.T),
        (x.reshape([3, 2]), X.reshape(3, 2)),
        (x.slice([0, 1], [2, 3]), X[:, 1:]),
        (x.concat(x, 0), np.concatenate([X, X])),
        (x.reduce_max([0]), X.max(0)),
        (x.reduce_min([0], keepdims=True), X.min(0, keepdims=True)),
        (x.reduce_sum([0, 1]), X.sum()),
        (s.iota("si32", [2, 3], 1), np.broadcast_to(np.arange(3), (2, 3))),
        (s.full(3, "si64", [2]), np.full(2, 3)),
        (x.dot_general(x, contract=([1], [1])), X @ X.T),
        (x.compare("less", 2.0), X < 2),
        (s.select(x.compare("less", 2.0), x, -x), np.where(X < 2, X, -X)),
        (x.softmax(), np.exp(X) / np.exp(X).sum(1, keepdims=True)),
    ]
    for handle, expected in cases:
        np.testing.assert_allclose(s.export(handle).numpy(), expected, rtol=1e-6)


def test_nothing_is_written_for_nothing() -> None:
    s = Session.here()
    x = s.import_(weft.asarray(X))
    assert x.cast("f32") is x
    assert x.reshape((2, 3)) is x
    assert x.broadcast_to((2, 3)) is x


def test_nothing_is_promoted() -> None:
    s = Session.here()
    x, y = s.import_(weft.asarray(X)), s.import_(weft.asarray(X.astype(np.float64)))
    with pytest.raises(SpecViolation):
        x + y
    with pytest.raises(SpecViolation):
        x + x.reshape([3, 2])


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_the_mean_of_narrow_floats_is_taken_in_f32(dtype: str) -> None:
    s = Session.here()
    x = s.full(512.0, dtype, [1024])
    mean = s.export(x.reduce_mean([0]))
    assert str(mean.dtype) == dtype
    assert mean.item() == 512.0


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_the_mean_over_a_dynamic_dim_counts_when_it_runs(dtype: Any) -> None:
    def mean(x: weft.Tensor) -> weft.Tensor:
        s = Session.here()
        return s.export(s.import_(x).reduce_mean([0, 1]))

    f = weft.jit(mean, dynamic={0: {0: "B"}})
    for rows in (1, 4):
        x = np.arange(rows * 3, dtype=dtype).reshape(rows, 3)
        assert f(x).item() == x.mean()
    assert len(f.versions) == 1


def test_python_does_not_decide_by_a_handle() -> None:
    session = Session.here()
    handle = session.import_(weft.asarray([1.0, 2.0]))
    with pytest.raises(weft.UserError, match=r"has no truth value while .*; choose by it with sel"):
        bool(handle.compare("greater", 0.0))
    with pytest.raises(weft.UserError, match="is not a tuple"):
        len(handle)
    assert len(handle.top_k(k=1, axis=0, largest=True, indices_dtype="si32")) == 2


NUMBERS: dict[str, Callable[[Any], Any]] = {
    "int": int,
    "float": float,
    "complex": complex,
    "round": round,
    "index": range,
    "floor": math.floor,
    "array": np.asarray,
}


@pytest.mark.parametrize("asked", NUMBERS.values(), ids=NUMBERS)
def test_python_is_told_that_there_are_no_numbers_yet(asked: Callable[[Any], Any]) -> None:
    handle = Session.here().import_(weft.asarray([1.0, 2.0]))
    value = weft.ptir.Builder().param("f32", [2])
    for written, how in ((handle, "export it, and read"), (value, "build the program and run it")):
        with pytest.raises(
            weft.UserError, match=rf"has no numbers while .* written; {how}"
        ) as said:
            asked(written)
        assert (said.value.where or "").startswith("test_session.py:")


def test_arrays_beside_handles_are_told() -> None:
    handle = Session.here().import_(weft.asarray([1.0, 2.0]))
    with pytest.raises(weft.UserError, match="make one of an array with literal"):
        np.ones(2, np.float32) + handle
    with pytest.raises(weft.UserError, match="is not a tuple"):
        len(weft.ptir.Builder().param("f32", [2]))
