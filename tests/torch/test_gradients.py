"""Gradients against PyTorch's: the same rules, the same convention for complex numbers, the same
choices at ties."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import weft
from tests.derivatives.case import Array, Case
from tests.derivatives.cases import CASES
from weft.ptir.gradient import vjp

torch = pytest.importorskip("torch", reason="torch is not installed")
from tests.support.torch_kinks import clamp_keeps_its_bounds  # noqa: E402


def smooth(arrays: Sequence[Array]) -> list[int]:
    return [i for i, a in enumerate(arrays) if a.dtype.kind in "fc"]


def by_torch(function: Any, inputs: Sequence[Array], seeds: Sequence[Array]) -> list[Array]:
    """The results, then the cotangents of the inputs that are floats or complex numbers. Seeds are
    for the results that are."""
    chosen = smooth(inputs)
    tensors = [torch.from_numpy(np.array(a)) for a in inputs]
    for index in chosen:
        tensors[index].requires_grad_()
    found = function(torch, *tensors)
    results = [found] if isinstance(found, torch.Tensor) else list(found)
    # A conjugate is a view until someone asks for its elements.
    results = [result.resolve_conj() for result in results]
    varied = [result for result in results if result.is_floating_point() or result.is_complex()]
    given = [torch.from_numpy(np.array(s)) for s in seeds]
    joined = [(r, s) for r, s in zip(varied, given, strict=True) if r.requires_grad]
    wanted = [tensors[i] for i in chosen]
    # A branch or a loop may leave an input alone: its cotangent is zero.
    cotangents = torch.autograd.grad(
        [result for result, _ in joined], wanted, [seed for _, seed in joined],
        materialize_grads=True,
    )  # fmt: skip
    return [r.numpy(force=True) for r in (*results, *cotangents)]


def compare(case: Case) -> None:
    assert case.torch is not None
    program = case.program()
    results = weft.run(program, case.inputs, backend="reference")
    source = np.random.default_rng(1)
    seeds = []
    for result in (results[index] for index in smooth(results)):
        parts = source.standard_normal((2, *result.shape))
        wide = parts[0] + 1j * parts[1] if result.dtype.kind == "c" else parts[0]
        seeds.append(np.asarray(wide).astype(result.dtype))
    ours = weft.run(vjp(program, smooth(case.inputs)), [*case.inputs, *seeds], backend="reference")
    theirs = by_torch(case.torch, case.inputs, seeds)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("case", [c for c in CASES if c.torch], ids=lambda case: str(case.id))
def test_the_gradient_is_that_of_torch(case: Case) -> None:
    compare(case)


X = np.array([1.0, 2.0, 2.0, -1.0, 2.0, 0.0])
Y = np.array([1.0, 3.0, 2.0, -1.0, 1.0, 0.0])
BOUNDS = np.array([0.0, 2.0, 1.0, -1.0, 3.0, 0.0]), np.array([1.0, 2.0, 2.0, -1.0, 1.0, 0.0])
TIES: list[tuple[str, Any, Any, tuple[Array, ...]]] = [
    ("maximum", lambda b, x, y: b.maximum(x, y), lambda t, x, y: t.maximum(x, y), (X, Y)),
    ("minimum", lambda b, x, y: b.minimum(x, y), lambda t, x, y: t.minimum(x, y), (X, Y)),
    ("amax", lambda b, x: b.reduce_max(x, [0]), lambda t, x: t.amax(x, 0), (X,)),
    ("abs", lambda b, x: b.abs(x), lambda t, x: t.abs(x), (X,)),
    ("clamp", lambda b, x, lo, hi: b.clamp(x, lo, hi), lambda t, x, lo, hi: t.clamp(x, lo, hi),
     (X, *BOUNDS)),
    ("cummax", lambda b, x: b.cumulative_max(x, axis=0), lambda t, x: t.cummax(x, 0).values, (X,)),
    ("sort", lambda b, x: b.sort(x, axis=0), lambda t, x: t.sort(x, stable=True).values, (X,)),
    ("copysign", lambda b, x, y: b.copysign(x, y), lambda t, x, y: t.copysign(x, y), (X, Y)),
    ("pow", lambda b, x, y: b.pow(x, y), lambda t, x, y: t.pow(x, y),
     (np.array([0.0, 0.0, 2.0]), np.array([0.0, 2.0, 0.0]))),
    ("max_pool", lambda b, x: b.reduce_window(
        b.reshape(x, [1, 6]), window_dims=[1, 2], strides=[1, 1], padding=[(0, 0)] * 2,
        base_dilation=[1, 1], window_dilation=[1, 1], reduce="max"),
     lambda t, x: t.nn.functional.max_pool1d(x[None], 2, 1), (X,)),
    ("scatter", lambda b, x, u: b.scatter_reduce(
        x, b.literal([0, 0, 1, 1, 4, 5], "si64"), u, axis=0, reduce="max"),
     lambda t, x, u: t.scatter_reduce(x, 0, t.tensor([0, 0, 1, 1, 4, 5]), u, "amax"), (X, Y)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "ours", "theirs", "inputs"), TIES, ids=[t[0] for t in TIES])
def test_the_choice_at_a_tie_is_that_of_torch(
    name: str, ours: Any, theirs: Any, inputs: tuple[Array, ...]
) -> None:
    if name == "clamp" and not clamp_keeps_its_bounds():
        pytest.skip("at a bound this torch has another derivative of clamp than 2.13")
    compare(Case(name, "tie", ours, inputs, torch=theirs))
