"""On which backend things happen: that of the tensors among the arguments."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft import functional
from weft.foundation.errors import SpecViolation
from weft.ops.pytree import flatten

F: Any = functional
"""Arrays are tried too, which the types would not allow."""

EXAMPLE = Path(__file__).parents[2] / "example_backend" / "src"
N = np.arange(6, dtype=np.float32).reshape(2, 3)
AT = np.asarray([0, 1])
CALLS: dict[str, Callable[[Any], Any]] = {
    "x + n": lambda x: x + N,
    "n @ x": lambda x: N.T @ x,
    "where": lambda x: weft.where(N > 2, N, x),
    "take": lambda x: weft.take(x, AT, axis=1),
    "x[at]": lambda x: x[AT],
    "concat": lambda x: weft.concat([N, x]),
    "stack": lambda x: weft.stack((x, N)),
    "diff": lambda x: weft.diff(x, prepend=N[:, :1]),
    "isin": lambda x: weft.isin(x, [1.0, 2.0]),
    "allclose": lambda x: weft.allclose(x, N),
    "searchsorted": lambda x: weft.searchsorted(x[0], N[0]),
    "tensordot": lambda x: weft.tensordot(x, N.T, axes=1),
    "vecdot": lambda x: weft.vecdot(x, N),
    "unique_values": lambda x: weft.unique_values(x),
    "solve": lambda x: weft.linalg.solve(x[:, 1:], N[:, 0]),
    "einsum": lambda x: F.einsum("ij,kj->ik", x, N),
    "linear": lambda x: F.linear(x, N),
    "layer_norm": lambda x: F.layer_norm(x, weight=N[0]),
    "batch_norm": lambda x: F.batch_norm(x, N[0], N[1]),
    "gather": lambda x: F.gather(x, AT.reshape(2, 1), axis=1),
    "scatter": lambda x: F.scatter(x, AT.reshape(2, 1), N[:, :1], axis=1),
    "embedding": lambda x: F.embedding(AT, x),
    "attention": lambda x: F.attention(x[None, None], N[None, None], N[None, None]),
    "rotary_embedding": lambda x: F.rotary_embedding(x[:, :2][None, None], AT),
    "cross_entropy": lambda x: F.cross_entropy(x, AT),
    "mse_loss": lambda x: F.mse_loss(x, N),
    "dropout": lambda x: F.dropout(x, 0.5, seed=3),
}
"""Calls with a tensor and arrays, or with what the function makes itself."""


def agree(far: Any, near: Any) -> None:
    """The same results, the first of them on the backend cpu."""
    left, right = flatten(far)[0], flatten(near)[0]
    assert [leaf.backend for leaf in left] == ["cpu"] * len(right)
    for a, b in zip(left, right, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", CALLS)
def test_arrays_go_where_the_tensor_is(name: str) -> None:
    x = weft.asarray(N + 1)
    agree(CALLS[name](x.to("cpu")), CALLS[name](x))


def test_the_graph_in_force_goes_first() -> None:
    x = weft.asarray(N).to("cpu")
    with weft.graph(backend="reference"), pytest.raises(SpecViolation, match="BackendMismatch"):
        F.linear(x, N)


def test_a_backend_that_is_asked_for_by_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLE)
    x = weft.asarray([1.0, 2.0]).to("weft_example.backend:BACKEND")
    for found in (x + x, weft.add(x, np.asarray([1, 2], np.float32)), weft.jit(weft.add)(x, x)):
        assert found.backend == "toy"
        assert found.tolist() == [2.0, 4.0]


TRANSFORMED: dict[str, Callable[[Any], Any]] = {
    "grad": weft.grad(lambda x: weft.sum(x * x * weft.ones(3))),
    "value_and_grad": weft.value_and_grad(lambda x: weft.sum(x * np.ones(3))),
    "several": lambda x: weft.grad(lambda n, x: weft.sum(n * x), (0, 1))(np.ones(3), x),
    "jacobian": weft.jacobian(lambda x: x * weft.arange(3)),
    "vjp": lambda x: weft.vjp(lambda x: x * 2.0, x)[1](np.ones(3)),
    "jvp": lambda x: weft.jvp(lambda x: x * x, (x,), (np.ones(3),)),
    "vmap": weft.vmap(lambda x: x * weft.ones(2)),
    "checkpoint": weft.grad(weft.checkpoint(lambda x: weft.sum(weft.exp(x)))),
    "cond": lambda x: weft.cond(weft.sum(x) > 0, lambda x: x + weft.ones(3), lambda x: -x, x),
    "while_loop": lambda x: weft.while_loop(
        lambda s: weft.sum(s) < 99, lambda s: s * 2.0 + np.ones(3, np.float32), x
    ),
    "scan": lambda x: weft.scan(lambda total, item: (total + item, total * 2), 0.5, x),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_transformations_stay_on_the_backend_of_the_arguments(name: str) -> None:
    x = weft.asarray([1.0, 2.0, 3.0])
    agree(TRANSFORMED[name](x.to("cpu")), TRANSFORMED[name](x))


def test_tensors_of_two_backends_do_not_meet_in_a_gradient() -> None:
    x = weft.ones(3)
    with pytest.raises(SpecViolation, match=r"\[grad\].*'reference' meets a tensor on 'cpu'"):
        weft.grad(lambda x, y: weft.sum(x * y))(x.to("cpu"), x)
