"""Imported models stop gradients where torch does: at detach, and under no_grad."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # Of torch, to itself.


class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A function with a buffer."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("held", torch.tensor([1.0, 2.0, 3.0]))

    def forward(self, x: Any) -> Any:
        return self.function(x, self.held)


def without(x: Any, held: Any) -> Any:
    with torch.no_grad():
        y, z = x * x, x + 1
    return y * x + z * held * x


def nested(x: Any, held: Any) -> Any:
    with torch.no_grad():
        y = torch.sin(x)
        with torch.enable_grad():
            z = y * held
    return z * x


FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "detach": lambda x, held: x * x.detach(),
    "detach of a result": lambda x, held: (x * held).detach() * x + x,
    "no_grad": without,
    "enable_grad inside": nested,
    "straight through": lambda x, held: x + (torch.round(x) - x).detach(),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_end_where_torch_ends_them(name: str) -> None:
    module, x = Model(FUNCTIONS[name]), torch.tensor([0.3, -1.7, 2.2], requires_grad=True)
    program = torch.export.export(module, (x.detach(),), strict=False)
    before = str(program.graph_module.graph)
    ours = weft.torch.from_exported(program)
    assert str(program.graph_module.graph) == before  # the caller's own
    wanted = module(x)
    (slope,) = torch.autograd.grad(wanted.sum(), x)
    given = weft.asarray(x.detach().numpy())
    np.testing.assert_allclose(ours(given).numpy(), wanted.detach().numpy(), rtol=1e-6)
    found = weft.grad(lambda x: ours(x).sum())(given).numpy()
    np.testing.assert_allclose(found, slope.numpy(), rtol=1e-6)


def test_what_is_detached_is_still_the_same_memory() -> None:
    class Counts(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(2))

        def forward(self, x: Any) -> Any:
            self.count.detach().add_(1.0)
            return x * self.count

    ours = weft.torch.from_module(Counts(), torch.ones(2))
    with weft.nn.training():
        first, second = (ours(weft.ones(2)).numpy() for _ in range(2))
    assert first.tolist() == [1, 1]
    assert second.tolist() == [2, 2]
