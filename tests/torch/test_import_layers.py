"""Layers of torch as modules of Weft, with the settings that change what they compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import weft
import weft.torch

torch = pytest.importorskip("torch", reason="torch is not installed")

T: Any = torch.nn.functional
Module: Any = torch.nn.Module


@pytest.fixture(autouse=True)
def reference() -> Iterator[None]:
    """Interpreted: what is tested is the import, not the compiler."""
    before = weft.default_backend()
    weft.set_default_backend("reference")
    yield
    weft.set_default_backend(before)


class Lambda(Module):  # type: ignore[misc]
    """A module of a function."""

    def __init__(self, call: Callable[..., Any]) -> None:
        super().__init__()
        self.call = call

    def forward(self, *args: Any) -> Any:
        return self.call(*args)


def agrees(module: Any, *args: Any, tolerance: float = 2e-6) -> None:
    """The module gives torch's result, imported."""
    found = weft.torch.from_module(module, args)(*map(weft.torch.from_tensor, args))
    wanted = module(*args)
    np.testing.assert_allclose(found.numpy(), wanted.detach().numpy(), atol=tolerance)


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic"])
def test_images_in_scales_that_leave_a_rest(mode: str, align: bool) -> None:
    """5 by 6 becomes 7 by 2: the steps are those of the scales, not those of the sizes."""
    corners = {} if "nearest" in mode else {"align_corners": align}
    resize = Lambda(lambda x: T.interpolate(x, scale_factor=(1.5, 0.4), mode=mode, **corners))
    agrees(resize, torch.randn(2, 3, 5, 6))


def test_bicubic_images_are_one_op() -> None:
    """Torch would take it apart into 16 gathers at computed places."""
    resize = Lambda(lambda x: T.interpolate(x, (7, 11), mode="bicubic"))
    x = torch.ones(1, 2, 5, 6)
    made = weft.torch.from_module(resize, x)
    program = weft.jit(made).program(weft.torch.from_tensor(x))
    assert len(program.main.body) < 100


def test_scales_beside_sizes() -> None:
    x = torch.randn(2, 3, 5, 6)
    for call in (
        lambda x: torch.ops.aten.upsample_nearest2d(x, [7, 4], 1.5, 0.7),
        lambda x: torch.ops.aten.upsample_bilinear2d(x, [7, 4], False, 1.5, 0.7),
    ):
        agrees(Lambda(call), x)
