"""Operators of ONNX that draw random numbers: by a seed, or by the key around the call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from tests.support import onnx_models as m
from weft import nn
from weft.interop.onnx import load
from weft.ops.tensor import Tensor


def drawn(op: str, *, given: bool = True, **attributes: object) -> nn.Module:
    """A model of one node, of a vector of a hundred where it takes an operand."""
    inputs = [m.value("x", [100])] if given else []
    body = m.graph([m.node(op, "x" if given else "", "y", "noise", **attributes)], inputs, [])
    body.output.append(m.value("y", None))
    return load(m.model(body, 22).SerializeToString())


X = np.full(100, 0.3, np.float32)


def numbers(model: nn.Module, *x: object) -> np.ndarray:
    made = model(*x)["y"]
    assert isinstance(made, Tensor)
    return made.numpy()


def test_a_seed_means_the_same_numbers_in_every_call() -> None:
    """Those of the key that has the bits of the seed."""
    model = drawn("RandomNormal", given=False, shape=[3, 40], seed=2.0, mean=5.0, scale=2.0)
    found = numbers(model)
    np.testing.assert_array_equal(found, numbers(model))
    wanted = weft.random.normal(weft.random.key(0x40000000), (3, 40)) * 2.0 + 5.0
    np.testing.assert_array_equal(found, wanted.numpy())


def test_nodes_without_a_seed_draw_from_the_key_around_the_call() -> None:
    model = drawn("RandomUniformLike", low=-1.0, high=1.0)
    step = weft.jit(lambda key, x: training_of(model, key, x))
    first, again, other = (step(weft.random.key(k), X).numpy() for k in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    assert (np.abs(first) <= 1).all()
    assert (first < 0).any()


def training_of(model: nn.Module, key: weft.Tensor, x: object) -> weft.Tensor:
    with nn.training(key):
        found = model(x)["y"]
    assert isinstance(found, weft.Tensor)
    return found


def test_without_seed_and_key_there_is_a_sentence() -> None:
    with pytest.raises(weft.UserError, match=r"KeyMissing.*RandomNormalLike 'noise'.*nn\.training"):
        drawn("RandomNormalLike")(X)


@pytest.mark.parametrize(("kind", "dtype"), [(None, np.float32), (m.INT64, np.int64)])
def test_chances(kind: int | None, dtype: type) -> None:
    more: dict[str, Any] = {} if kind is None else {"dtype": kind}
    found = numbers(drawn("Bernoulli", seed=1.0, **more), X)
    assert found.dtype == dtype
    assert set(np.unique(found)) == {0, 1}
    assert 10 < found.sum() < 50


def test_choices_by_their_logarithms() -> None:
    logs = m.value("x", [2, 3])
    body = m.graph(
        [m.node("Multinomial", "x", "y", sample_size=400, seed=0.0)], [logs], [m.value("y", None)]
    )
    body.output[0].type.tensor_type.elem_type = 6
    model = load(m.model(body, 22).SerializeToString())
    chances = np.array([[0.2, 0.5, 0.3], [1.0, 0.0, 0.0]], np.float32)
    with np.errstate(divide="ignore"):
        found = numbers(model, np.log(chances))
    shares = np.stack([np.bincount(row, minlength=3) for row in found]) / 400
    np.testing.assert_allclose(shares, chances, atol=0.1)
    assert found.dtype == np.int32


def test_dropout_in_training_keeps_the_mean() -> None:
    nodes = [m.node("Dropout", "x ratio learning", "y", seed=3)]
    constants = {"ratio": np.float32(0.25), "learning": np.array(True)}
    body = m.graph(nodes, [m.value("x", [100])], [m.value("y", [100])], constants)
    found = numbers(load(m.model(body).SerializeToString()), np.ones(100, np.float32))
    np.testing.assert_allclose(np.unique(found), [0, 4 / 3], rtol=1e-6)
    assert 60 < (found != 0).sum() < 90
