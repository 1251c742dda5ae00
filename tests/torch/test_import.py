"""Models of torch as modules of Weft: results, gradients, state, sizes, and what is refused."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import weft
from weft import optim

torch = pytest.importorskip("torch")
from tests.scores import torch_model_zoo, torch_models  # noqa: E402

Model: Any = torch.nn.Module
pytestmark = [
    pytest.mark.filterwarnings(f"ignore::{kind}")
    for kind in ("FutureWarning", "DeprecationWarning", "UserWarning")
]
OWN = ("U-Net", "DLRM", "LSTM", "GRU", "TransformerEncoder")


@pytest.fixture(autouse=True)
def reference() -> Iterator[None]:
    """Interpreted: what is tested is the import, not the compiler."""
    before = weft.default_backend()
    weft.set_default_backend("reference")
    torch.manual_seed(0)
    yield
    weft.set_default_backend(before)


class Small(Model):  # type: ignore[misc]
    """A convolution, batch norm and a linear layer, tied to nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(4)
        self.head = torch.nn.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        return self.head(torch.relu(self.norm(self.conv(x))).mean((2, 3)))


@pytest.mark.parametrize("name", OWN)
def test_results_and_gradients_are_torchs(name: str) -> None:
    module, args, kwargs = torch_model_zoo.MODELS[name]()
    far, slope, _ = torch_models.through_export(module.eval(), args, kwargs, True)
    assert far < 2e-5
    assert slope < 2e-4


def test_arguments_that_a_module_does_not_take_are_told() -> None:
    module = torch.nn.Linear(4, 2)
    said = r"ExportFailed at test_import\.py:\d+: \[from_module\] torch cannot export Linear with"
    for example in (torch.randn(2, 3), (torch.randn(2, 4), 1, 2)):
        with pytest.raises(weft.UserError, match=said):
            weft.torch.from_module(module, example)


def test_a_module_keeps_its_names_and_can_be_trained() -> None:
    module = Small().eval()
    ours = weft.torch.from_module(module, torch.randn(2, 3, 4, 4))
    assert list(ours.state_dict()) == list(module.state_dict())
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 4)).astype(np.float32)
    optimiser = optim.SGD(0.1)
    state = optimiser.init(ours)

    @weft.jit
    def step(model: Any, state: Any, x: Any) -> Any:
        loss, slopes = weft.value_and_grad(lambda m: weft.mean(m(x) ** 2))(model)
        return *optimiser.update(slopes, state, model), loss

    losses = []
    for _ in range(3):
        ours, state, loss = step(ours, state, x)
        losses.append(float(loss))
    assert losses[2] < losses[1] < losses[0]
    mean = ours.state_dict()["norm.running_mean"]
    np.testing.assert_array_equal(np.asarray(mean), module.norm.running_mean.numpy())


class Tied(Model):  # type: ignore[misc]
    """An embedding and a linear layer with the same weights."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(5, 3)
        self.head = torch.nn.Linear(3, 5, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x: Any) -> Any:
        return self.head(self.table(x))


def test_weights_with_two_names_are_one_tensor() -> None:
    module, x = Tied(), torch.tensor([0, 3])
    ours = weft.torch.from_module(module, x)
    assert len(ours.parameters()) == 1
    assert list(ours.state_dict()) == ["table.weight", "head.weight"]
    slopes = weft.grad(lambda m, x: weft.sum(m(x) ** 2))(ours, weft.torch.from_tensor(x))
    module(x).square().sum().backward()
    found = slopes.state_dict()["table.weight"].numpy()
    np.testing.assert_allclose(found, module.table.weight.grad.numpy(), 1e-5, 1e-6)


def test_the_state_of_a_model_with_shared_weights_goes_both_ways(tmp_path: Any) -> None:
    module, other, x = Tied(), Tied(), torch.tensor([0, 3])
    ours = weft.torch.from_module(module, x)
    state = other.state_dict()
    made = ours.with_state(state)
    wanted = other(x).detach().numpy()
    np.testing.assert_allclose(made(weft.torch.from_tensor(x)).numpy(), wanted, 1e-5, 1e-6)
    back = {name: weft.torch.to_tensor(value) for name, value in made.state_dict().items()}
    module.load_state_dict(back)
    assert torch.equal(module.head.weight, other.head.weight)

    weft.save(tmp_path / "tied.safetensors", made)
    kept = weft.load(tmp_path / "tied.safetensors")
    assert list(kept) == ["table.weight"]
    for one in (kept, {"head.weight": kept["table.weight"]}, made.state_dict()):
        (found,) = ours.with_state(one).parameters()
        np.testing.assert_array_equal(found.numpy(), state["table.weight"].numpy())

    state["head.weight"] = state["head.weight"] + 1
    with pytest.raises(
        weft.WeftError, match=r"table\.weight and head\.weight are one tensor in Tied"
    ):
        ours.with_state(state)
    with pytest.raises(weft.WeftError, match=r"missing table\.weight"):
        ours.with_state({})


def test_in_training_batch_norm_moves_its_statistics() -> None:
    module = Small().train()
    x = torch.randn(4, 3, 4, 4)
    ours = weft.torch.from_module(module, x)
    weft.jit(lambda m, x: m(x))(ours, weft.torch.from_tensor(x))
    module(x)
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        wanted = getattr(module.norm, name).numpy()
        np.testing.assert_allclose(np.asarray(getattr(ours.norm, name)), wanted, 1e-5, 1e-6)


@pytest.mark.parametrize("parameters", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("settings", [{}, {"track_running_stats": False}, {"affine": False}])
def test_batch_norm_of_narrow_floats(settings: dict[str, bool], parameters: Any) -> None:
    """In training and after it, also with wide parameters."""
    module = torch.nn.BatchNorm2d(6, **settings).to(parameters)
    x = torch.randn(4, 6, 3, 5).to(torch.bfloat16)
    for train in (True, False):
        module.train(train)
        ours = weft.torch.from_module(module, x)
        found = weft.jit(lambda m, x: m(x))(ours, weft.torch.from_tensor(x))
        wanted = module(x).detach().float().numpy()
        np.testing.assert_allclose(np.asarray(found.astype("f32")), wanted, 2**-7, 1e-6)
        if settings.get("track_running_stats", True):
            moved = np.asarray(ours.running_var.astype("f32"))
            np.testing.assert_allclose(moved, module.running_var.float().numpy(), 2**-7)


def test_a_free_axis_takes_any_size_in_its_range() -> None:
    module = torch.nn.Linear(3, 2)
    batch = torch.export.Dim("batch", min=2, max=8)
    ours = weft.torch.from_module(module, torch.zeros(4, 3), dynamic_shapes=({0: batch},))
    for count in (2, 5, 8):
        x = torch.randn(count, 3)
        wanted = module(x).detach().numpy()
        np.testing.assert_allclose(np.asarray(ours(x)), wanted, rtol=1e-5, atol=1e-6)
    with pytest.raises(weft.SpecViolation, match="axis 0 has size 9, outside of 2 to 8"):
        ours(torch.zeros(9, 3))


def test_a_batch_goes_through_vmap() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.GELU(), torch.nn.LayerNorm(4))
    x = torch.randn(5, 3)
    ours = weft.torch.from_module(module, x[0])
    found = weft.vmap(lambda row: ours(row))(weft.torch.from_tensor(x))
    np.testing.assert_allclose(np.asarray(found), module(x).detach().numpy(), 1e-4, 1e-5)


def test_instructions_name_the_models_lines() -> None:
    ours = weft.torch.from_module(Small().eval(), torch.randn(2, 3, 4, 4))
    program = weft.jit(lambda m, x: m(x)).program(ours, weft.zeros((2, 3, 4, 4)))
    places = set(program.locations.values())
    assert any(place.startswith("test_import.py:") for place in places), places


def test_results_are_nested_as_the_models_are() -> None:
    class Pair(Model):  # type: ignore[misc]
        def forward(self, x: Any, *, twice: Any) -> Any:
            return {"sum": x + twice, "parts": (x, [twice * 2])}

    x, y = torch.ones(2), torch.full((2,), 3.0)
    ours = weft.torch.from_module(Pair(), x, {"twice": y})
    found = ours(x, twice=y)
    assert found["sum"].numpy().tolist() == [4.0, 4.0]
    assert found["parts"][1][0].numpy().tolist() == [6.0, 6.0]
    with pytest.raises(weft.UserError, match=r"takes the named arguments \['twice'\], not \[\]"):
        ours(x)


def test_every_op_without_a_rule_is_named_at_once() -> None:
    class Strange(Model):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            q, r = torch.linalg.qr(x)
            return torch.special.airy_ai(q) + torch.special.bessel_j0(r)

    with pytest.raises(weft.Unimplemented) as found:
        weft.torch.from_module(Strange(), torch.eye(3))
    for word in ("aten.linalg_qr", "aten.special_airy_ai", "aten.special_bessel_j0"):
        assert word in str(found.value)
    assert "test_import.py:" in str(found.value)
    assert "@weft.torch.rule(name)" in str(found.value)


def test_users_can_give_rules() -> None:
    @weft.torch.rule("aten.special_bessel_y0")
    def _(x: Any) -> Any:
        return x + 1

    class Strange(Model):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return torch.special.bessel_y0(x)

    ours = weft.torch.from_module(Strange(), torch.ones(2))
    assert ours(torch.ones(2)).numpy().tolist() == [2.0, 2.0]


def test_random_ops_want_a_key() -> None:
    class Noisy(Model):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return x + torch.randn_like(x)

    ours = weft.torch.from_module(Noisy(), torch.zeros(64))
    with pytest.raises(weft.UserError, match="there is no key"):
        ours(torch.zeros(64))
    with weft.nn.training(weft.random.key(0)):
        drawn = ours(torch.zeros(64)).numpy()
    assert 0.5 < drawn.std() < 1.5


def test_wrong_arguments_are_told() -> None:
    ours = weft.torch.from_module(torch.nn.Linear(3, 2), torch.zeros(4, 3))
    with pytest.raises(weft.SpecViolation, match="exported for"):
        ours(torch.zeros(4, 5))
    with pytest.raises(weft.SpecViolation, match="exported for"):
        ours(torch.zeros(4, 3, dtype=torch.float64))
    with pytest.raises(weft.UserError, match="takes 1 arguments"):
        ours(torch.zeros(4, 3), torch.zeros(4, 3))
    with pytest.raises(weft.UserError, match=r"an ExportedProgram of torch.export is wanted"):
        weft.torch.from_exported(torch.nn.Linear(3, 2))
    with pytest.raises(weft.UserError, match=r"a torch.nn.Module is wanted, not a function"):
        weft.torch.from_module(lambda x: x, torch.zeros(1))


def test_a_tensor_of_torch_is_no_argument_of_a_jitted_function() -> None:
    with pytest.raises(
        weft.UserError, match=r"x is a torch\.Tensor; pass weft\.torch\.from_tensor"
    ):
        weft.jit(lambda x: x + 1)(torch.ones(2))


def test_tensors_go_both_ways() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    taken = weft.torch.from_tensor(x)
    x[0, 0] = 5.0
    assert taken.numpy()[0, 0] == 5.0
    back = weft.torch.to_tensor(taken)
    back[0, 0] = 7.0
    assert taken.numpy()[0, 0] == 5.0
    assert weft.torch.from_tensor(x.T).shape == (3, 2)
    assert weft.torch.to_tensor(weft.ones((2,), dtype=weft.bfloat16)).dtype is torch.bfloat16


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: torch.ones(2, requires_grad=True), "x.detach()"),
        (lambda: torch.eye(2).to_sparse(), "x.to_dense()"),
        (lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), "x.dequantize()"),
        (lambda: torch.ones(2, device="meta"), "on the device meta"),
        (lambda: torch.ones(2, dtype=torch.complex32), "a dtype that Weft does not have"),
        (lambda: np.ones(2), "a tensor of torch is wanted"),
    ],
)
def test_tensors_that_weft_does_not_hold_are_told(make: Any, said: str) -> None:
    with pytest.raises(weft.UserError) as found:
        weft.torch.from_tensor(make())
    assert said in str(found.value)


class Asserting(Model):  # type: ignore[misc]
    """An assertion about the data, as in XLM."""

    def forward(self, x: Any) -> Any:
        torch._check((x > 0).sum().item() <= x.numel())
        return x * 2


def test_what_only_an_assertion_reads_is_left_out() -> None:
    x = torch.randn(3, 4)
    found = weft.torch.from_module(Asserting(), x)(x)
    np.testing.assert_array_equal(found.numpy(), (x * 2).numpy())


class Choosing(Model):  # type: ignore[misc]
    """Rows whose number depends on the data."""

    def forward(self, x: Any) -> Any:
        return x[torch.nonzero(x[:, 0] > 0)[:, 0]]


def test_sizes_that_depend_on_data_say_what_to_write() -> None:
    with pytest.raises(weft.Unimplemented, match=r"aten\.nonzero.*depends on the data: keep the"):
        weft.torch.from_module(Choosing(), torch.randn(3, 4))


def test_copies_share_the_graph_and_pickles_are_refused() -> None:
    model = torch.nn.BatchNorm1d(2)
    ours = weft.torch.from_module(model, torch.ones(3, 2))
    other = copy.deepcopy(ours)
    other(np.ones((3, 2), np.float32))
    means = [module.state_dict()["running_mean"].numpy().tolist() for module in (ours, other)]
    assert means == [[0.0, 0.0], pytest.approx([0.1, 0.1])]
    with pytest.raises(weft.UserError, match="pickle its state_dict"):
        pickle.dumps(ours)
