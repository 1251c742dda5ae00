"""Layers and control flow of torch as modules of Weft."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import weft

torch = pytest.importorskip("torch", reason="torch is not installed: make test-torch installs it")
from torch._higher_order_ops.while_loop import while_loop  # noqa: E402

import weft.torch  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings(f"ignore::{kind}")
    for kind in ("FutureWarning", "DeprecationWarning", "UserWarning")
]
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


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_antialiased_images(mode: str, align: bool) -> None:
    """Smaller along one axis, larger along the other; by sizes and by scales."""
    x = torch.randn(2, 3, 11, 6)
    setting = {"mode": mode, "antialias": True, "align_corners": align}
    agrees(Lambda(lambda x: T.interpolate(x, (4, 9), **setting)), x)
    agrees(Lambda(lambda x: T.interpolate(x, scale_factor=(0.3, 1.7), **setting)), x)


class Chosen(Module):  # type: ignore[misc]
    """One of two branches, and a loop whose condition is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)

    def forward(self, x: Any) -> Any:
        y = torch.cond(x.sum() > 0, lambda x: self.layer(x).sin(), lambda x: x.cos(), (x,))
        step = lambda y, i: (self.layer(y) + 1, i + 1)  # noqa: E731
        return while_loop(lambda y, i: i < 3, step, (y, torch.zeros((), dtype=torch.int64)))[0]


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_branches_and_loops(sign: float) -> None:
    agrees(Chosen(), sign * torch.rand(2, 3))


def test_branches_have_gradients() -> None:
    class Branch(Chosen):
        def forward(self, x: Any) -> Any:
            return torch.cond(x.sum() > 0, lambda x: self.layer(x).sin(), lambda x: x.cos(), (x,))

    module, x = Branch(), torch.rand(2, 3)
    module(x).sum().backward()
    ours = weft.torch.from_module(module, x)
    slopes = weft.grad(lambda m, x: weft.sum(m(x)))(ours, weft.torch.from_tensor(x))
    wanted = module.layer.weight.grad.numpy()
    np.testing.assert_allclose(slopes.state_dict()["layer.weight"].numpy(), wanted, atol=1e-6)
    torch._dynamo.reset()
    again = Branch()
    again.load_state_dict(module.state_dict())
    torch.compile(again, backend="weft", fullgraph=True)(x).sum().backward()
    np.testing.assert_allclose(again.layer.weight.grad.numpy(), wanted, atol=1e-6)


def test_a_branch_that_cannot_be_carried_out_runs_in_torch_with_its_op() -> None:
    def call(x: Any) -> Any:
        y = torch.cond(x.sum() > 0, torch.special.airy_ai, lambda x: x.cos(), (x,))
        return torch.exp(y).sin()

    torch._dynamo.reset()
    x = torch.rand(2, 3)
    with pytest.warns(weft.WeftWarning, match=r"runs? in torch: .*airy_ai"):
        found = torch.compile(call, backend="weft")(x)
    np.testing.assert_allclose(found.numpy(), call(x).numpy(), atol=1e-6)


def test_lines_are_the_models_not_those_of_torchs_layers() -> None:
    def call(x: Any) -> Any:
        return torch.cond(x.sum() > 0, torch.special.airy_ai, lambda x: x.cos(), (x,))

    with pytest.raises(weft.Unimplemented, match=r"airy_ai.*, 1 times, at test_import_layers\.py"):
        weft.torch.from_module(Lambda(call), torch.rand(2, 3))

    class Two(Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh())

        def forward(self, x: Any) -> Any:
            return self.layer(x)

    made = weft.torch.from_module(Two(), torch.rand(2, 3))
    program = weft.jit(made).program(weft.ones((2, 3)))
    assert {place.file for place in program.locations.values()} == {__file__}


def test_matrices_whose_check_is_an_effect() -> None:
    """An exported inverse or factor raises torch's own error by an op that has a token."""
    x = torch.randn(4, 4)
    agrees(Lambda(lambda x: torch.linalg.inv(x @ x.mT + torch.eye(4))), x, tolerance=1e-5)
    agrees(Lambda(lambda x: torch.linalg.cholesky(x @ x.mT + torch.eye(4))), x, tolerance=1e-5)


def _normed(size: int, to: int, dim: int | None) -> Any:
    return torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(size, to), dim=dim)


COMPILED: dict[str, Callable[[], Any]] = {
    "weight norm": lambda: torch.nn.Sequential(_normed(6, 4, 0), _normed(4, 3, 1)),
    "repeated edges": lambda: Lambda(lambda x: T.pad(x, (2, 1), mode="replicate")),
    "repeated edges, one cut": lambda: Lambda(
        lambda x: T.pad(x[None], (-1, 2, 1, -1), mode="replicate")
    ),
    "distances": lambda: Lambda(lambda x: torch.cdist(x[0], x[1])),
    "distances of elements": lambda: Lambda(lambda x: torch.cdist(x[0], x[0], p=1.0)),
    "distances of rows": lambda: Lambda(lambda x: T.pdist(x[0])),
    "antialiased images": lambda: Lambda(
        lambda x: T.interpolate(x[None], (2, 9), mode="bilinear", antialias=True)
    ),
    "running products": lambda: Lambda(lambda x: x.cumprod(1)),
}


@pytest.mark.parametrize("name", COMPILED)
def test_gradients_of_compiled_layers_are_no_work_for_torch(name: str) -> None:
    torch._dynamo.reset()
    module = COMPILED[name]()
    slopes = []
    for call in (module, torch.compile(module, backend="weft", fullgraph=True)):
        torch.manual_seed(1)
        x = torch.randn(2, 4, 6, requires_grad=True)
        call(x).cos().sum().backward()
        slopes.append([x.grad, *(p.grad.clone() for p in module.parameters())])
        module.zero_grad()
    for found, wanted in zip(*slopes, strict=True):
        np.testing.assert_allclose(found.numpy(), wanted.numpy(), atol=2e-6)


def test_open_axes_under_jit_are_named_by_argument() -> None:
    class Scaled(Module):  # type: ignore[misc]
        def forward(self, x: Any, *, by: Any) -> Any:
            return x * by

    rows, x = torch.export.Dim("rows"), torch.rand(3, 2)
    sizes = {"x": {0: rows}, "by": {0: rows}}
    ours = weft.torch.from_module(Scaled(), x, {"by": x}, dynamic_shapes=sizes)
    call = weft.jit(ours, dynamic={"x": {0: "B"}, "by": {0: "B"}})
    for count in (3, 4, 7):
        given = np.full((count, 2), 2, np.float32)
        np.testing.assert_array_equal(call(given, by=given).numpy(), 4 * np.ones_like(given))
    assert len(call.versions) == 1
