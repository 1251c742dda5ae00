"""Gradients of imported models where a function has a kink: those of PyTorch, as `weft.functional`
has them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import weft

torch = pytest.importorskip("torch", reason="torch is not installed")
from tests.support.torch_kinks import clamp_keeps_its_bounds  # noqa: E402

T: Any = torch.nn.functional
pytestmark = [
    pytest.mark.filterwarnings(f"ignore::{kind}")
    for kind in ("FutureWarning", "DeprecationWarning", "UserWarning")
]
SELU = 1.0507009873554805
NAN = math.nan
# A function, where its argument is, and its derivative at each element there.
Kink = tuple[str, Callable[[Any], Any], list[float], list[float]]
KINKS: list[Kink] = [
    ("relu", T.relu, [0, -0.0], [0, 0]),
    ("relu6", T.relu6, [0, 6], [0, 0]),
    ("leaky_relu", T.leaky_relu, [0], [0.01]),
    ("prelu", lambda x: T.prelu(x, torch.tensor(0.25)), [-1, 0, 1], [0.25, 0.25, 1]),
    ("elu", T.elu, [0, -0.0, 800], [1, 1, 1]),
    ("elu of 0.5", lambda x: T.elu(x, 0.5), [0], [0.5]),
    ("celu", T.celu, [0, 800], [1, 1]),
    ("selu", T.selu, [0, 800], [SELU * 1.6732632423543772, SELU]),
    ("hardsigmoid", T.hardsigmoid, [-3, 0, 3], [0, 1 / 6, 0]),
    ("hardswish", T.hardswish, [-3, 3], [0, 1]),
    ("hardtanh", T.hardtanh, [-1, 0, 1], [0, 1, 0]),
    ("softplus", T.softplus, [-800, 0, 21, 800], [0, 0.5, 1, 1]),
    ("mish", T.mish, [-800, 800], [0, 1]),
    ("logsigmoid", T.logsigmoid, [-800, 0, 800], [1, 0.5, 0]),
    ("hardshrink", T.hardshrink, [-0.5, 0.5, 1], [0, 0, 1]),
    ("softshrink", T.softshrink, [-0.5, 0.5, 1], [0, 0, 1]),
    ("threshold", lambda x: T.threshold(x, 1.0, 0.0), [1, 2], [0, 1]),
    ("clamp", lambda x: x.clamp(-1, 1), [-2, -1, 0, 1, 2], [0, 1, 1, 1, 0]),
    ("clamp, below", lambda x: x.clamp(min=0), [0, -0.0, -1], [1, 1, 0]),
    ("clamp, above", lambda x: x.clamp(max=1), [1, 2], [1, 0]),
    ("clamp_min", lambda x: torch.clamp_min(x, -1.0), [-1, -2], [1, 0]),
    ("clamp by tensors", lambda x: x.clamp(-torch.ones(2), torch.ones(2)), [-1, 1], [1, 1]),
    ("abs", torch.abs, [0, -0.0], [0, 0]),
    ("maximum", lambda x: torch.maximum(x, torch.ones(3)), [0, 1, 2], [0, 0.5, 1]),
    ("fmax", lambda x: torch.fmax(x, torch.tensor([1.0, 1.0, NAN])), [0, 1, 2], [0, 1, 1]),
    ("fmin", lambda x: torch.fmin(x, torch.tensor([1.0, 1.0, NAN])), [2, 1, 2], [0, 1, 1]),
    ("amax", torch.amax, [1, 1, 0], [0.5, 0.5, 0]),
    ("amin", torch.amin, [1, 1, 2], [0.5, 0.5, 0]),
    ("std", torch.std, [2, 2], [0, 0]),
    ("std_mean", lambda x: torch.std_mean(x)[0], [2, 2], [0, 0]),
    ("norm", torch.norm, [0, 0], [0, 0]),
    ("norm of 1", lambda x: torch.norm(x, 1), [0, 0], [0, 0]),
    ("norm of 3", lambda x: torch.norm(x, 3), [0, 0], [0, 0]),
    ("matrix_norm", lambda x: torch.linalg.matrix_norm(x[None]), [0, 0], [0, 0]),
    ("normalize", lambda x: T.normalize(x, dim=0) * 1e-12, [0, 0], [1, 1]),
    ("cdist", lambda x: torch.cdist(x[None], torch.zeros(1, 2)), [0, 0], [0, 0]),
    ("xlogy", lambda x: torch.xlogy(x, torch.zeros(2)), [0, 0], [0, 0]),
    ("binary_cross_entropy",
     lambda x: T.binary_cross_entropy(x, torch.tensor([0.0, 1.0]), reduction="sum"),
     [0, 1], [0, 0]),
]  # fmt: skip


@pytest.fixture(autouse=True)
def reference() -> Iterator[None]:
    """Interpreted: what is tested is the import, not the compiler."""
    before = weft.default_backend()
    weft.set_default_backend("reference")
    yield
    weft.set_default_backend(before)


class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
    """One function."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


@pytest.mark.parametrize(("name", "function", "at", "wanted"), KINKS, ids=[k[0] for k in KINKS])
def test_the_derivative_at_a_kink(
    name: str, function: Callable[[Any], Any], at: list[float], wanted: list[float]
) -> None:
    x = torch.tensor(at, dtype=torch.float32, requires_grad=True)
    if not name.startswith(("clamp", "fm")) or clamp_keeps_its_bounds():
        (theirs,) = torch.autograd.grad(function(x).sum(), x)
        np.testing.assert_allclose(theirs.numpy(), wanted, rtol=1e-5, atol=0)
    ours = weft.torch.from_module(Model(function), x.detach())
    found = weft.grad(lambda z: ours(z).sum())(weft.asarray(np.array(at, np.float32)))
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5, atol=0)
