"""`torch.compile(backend="weft")`: results, gradients, writes into inputs, sizes, random numbers,
what runs in torch, and options."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import weft

torch = pytest.importorskip("torch")
from torch._dynamo.exc import BackendCompilerFailed  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from weft.interop.torch import memory  # noqa: E402
from weft.interop.torch.backend import weft_backend  # noqa: E402
from weft.interop.torch.compiled import CompiledGraph, Settings  # noqa: E402
from weft.interop.torch.memory import array_of  # noqa: E402

Model: Any = torch.nn.Module
pytestmark = [
    pytest.mark.filterwarnings(f"ignore::{kind}")
    for kind in ("FutureWarning", "DeprecationWarning", "UserWarning")
]


@pytest.fixture(autouse=True)
def reference() -> Iterator[None]:
    """Interpreted, unless a test says otherwise."""
    before = weft.default_backend()
    weft.set_default_backend("reference")
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    weft.set_default_backend(before)


def compiled(function: Any, **more: Any) -> Any:
    return torch.compile(function, backend=weft_backend, fullgraph=True, **more)


class Net(Model):  # type: ignore[misc]
    """Convolution, batch norm, pooling, a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(4)
        self.head = torch.nn.Linear(4 * 4, 3)

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.norm(self.conv(x)))
        return self.head(torch.nn.functional.max_pool2d(x, 2).flatten(1))


def test_the_entry_point_names_the_backend() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    named = tomllib.loads(text)["project"]["entry-points"]["torch_dynamo_backends"]["weft"]
    module, _, name = named.partition(":")
    assert getattr(import_module(module), name) is weft_backend


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_training_follows_eager_torch(backend: str) -> None:
    weft.set_default_backend(backend)
    plain = Net()
    other = copy.deepcopy(plain)
    made = compiled(other)
    pairs = [(m, torch.optim.SGD(m.parameters(), 0.05, momentum=0.9)) for m in (plain, other)]
    for _ in range(2):
        x = torch.randn(2, 3, 4, 4)
        for model, optimiser in pairs:
            optimiser.zero_grad()
            (made if model is other else model)(x).square().mean().backward()
            optimiser.step()
    for (name, mine), theirs in zip(
        other.state_dict().items(), plain.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5, msg=name)


def test_inputs_that_are_written_to_change() -> None:
    def f(x: Any, y: Any) -> Any:
        x.mul_(2)
        y[1:3] = 0
        return x + y.cumsum(0)

    given = [torch.randn(4, 4) for _ in range(2)]
    other = [each.clone() for each in given]
    with torch.no_grad():
        torch.testing.assert_close(compiled(f)(*given), f(*other))
    torch.testing.assert_close(given, other)


def test_an_input_that_was_written_to_is_returned_as_it_is() -> None:
    x = torch.ones(3)
    with torch.no_grad():
        found = compiled(lambda x: x.add_(2))(x)
    found[0] = 9.0
    assert x.tolist() == [9.0, 3.0, 3.0]


def test_a_cache_is_written_in_place() -> None:
    cache, place = torch.zeros(2, 5, 3), torch.tensor([1])

    def step(cache: Any, new: Any, place: Any) -> Any:
        cache.index_copy_(1, place, new)
        return cache.sum()

    made = compiled(step)
    where = cache.data_ptr()
    for number in range(3):
        made(cache, torch.full((2, 1, 3), float(number + 1)), place + number)
    assert cache[0, :, 0].tolist() == [0.0, 1.0, 2.0, 3.0, 0.0]
    assert cache.data_ptr() == where


def test_sizes_that_change() -> None:
    made = compiled(lambda x: torch.cat([x, x * x.shape[0]]).reshape(-1, 2).sum(1))
    for count in (4, 5, 7, 1, 0, 5):
        x = torch.randn(count, 4)
        wanted = torch.cat([x, x * count]).reshape(-1, 2).sum(1)
        torch.testing.assert_close(made(x), wanted)


class Attends(Model):  # type: ignore[misc]
    """Sizes that are joined, split and multiplied on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)

    def forward(self, x: Any) -> Any:
        batch, rows, _ = x.shape
        q = self.norm(self.first(x)).view(batch, rows, 2, 4).transpose(1, 2)
        mixed = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
        return mixed.transpose(1, 2).reshape(batch, rows, 8).mean(1)


def test_open_sizes_share_one_program(capsys: Any) -> None:
    weft.set_default_backend("cpu")
    plain = Attends()
    made = compiled(plain, dynamic=True, options={"explain": True})
    with torch.no_grad():
        for count in (3, 5, 7, 8):
            x = torch.randn(count, 5, 8)
            torch._dynamo.mark_static(x, 1)
            torch.testing.assert_close(made(x), plain(x), rtol=1e-4, atol=1e-5)
    (told,) = capsys.readouterr().err.splitlines()
    assert "sizes are open, up to those of" in told
    assert "f32[8, 5, 8]" in told


@pytest.mark.parametrize("axis", [0, 1])
def test_open_sizes_in_training(axis: int) -> None:
    plain = Attends()
    made = compiled(plain, dynamic=True)
    for count in (2, 3, 5):
        x = torch.randn(*((count, 4, 8) if axis == 0 else (2, count, 8)))
        slopes = []
        for model in (made, plain):
            model(x).square().mean().backward()
            slopes.append([each.grad for each in plain.parameters()])
            plain.zero_grad(set_to_none=True)
        torch.testing.assert_close(*slopes, rtol=1e-4, atol=1e-5)


def test_replaced_and_changed_parameters_are_seen() -> None:
    layer = torch.nn.Linear(3, 2)
    made = compiled(layer)
    x = torch.randn(4, 3)
    with torch.no_grad():
        made(x)
        layer.weight.data = torch.ones(2, 3)
        torch.testing.assert_close(made(x), layer(x))
        layer.weight.mul_(3)
        torch.testing.assert_close(made(x), layer(x))
        layer.weight = torch.nn.Parameter(torch.zeros(2, 3))
        torch.testing.assert_close(made(x), layer(x))


def test_parameters_are_wrapped_once(monkeypatch: Any) -> None:
    weft.set_default_backend("cpu")
    wrapped: list[Any] = []

    def wrap(tensor: Any) -> Any:
        wrapped.append(tuple(tensor.shape))
        return array_of(tensor)

    monkeypatch.setattr(memory, "array_of", wrap)
    layer = torch.nn.Linear(3, 2)
    made = compiled(layer)
    with torch.no_grad():
        for _ in range(3):
            wrapped.clear()
            x = torch.randn(4, 3)
            torch.testing.assert_close(made(x), layer(x))
    assert wrapped == [(4, 3)]


def test_inputs_need_not_lie_in_order_and_results_lie_as_torchs() -> None:
    def f(x: Any) -> Any:
        return (x + 1).transpose(0, 1), x.mT.contiguous() * 2

    x = torch.randn(6, 4).T[::2]
    for mine, theirs in zip(compiled(f)(x), f(x), strict=True):
        torch.testing.assert_close(mine, theirs, check_stride=True)


@pytest.mark.parametrize(
    ("mode", "padding", "corners", "rank"),
    [
        ("bilinear", "zeros", False, 2),
        ("bilinear", "reflection", False, 3),
        ("nearest", "border", True, 2),
        ("bicubic", "border", False, 2),
        ("bicubic", "reflection", True, 2),
    ],
)
def test_images_are_sampled_at_computed_places(
    mode: str, padding: str, corners: bool, rank: int
) -> None:
    def f(x: Any, angle: Any) -> Any:
        places = torch.nn.functional.affine_grid(angle, x.shape, align_corners=corners)
        return torch.nn.functional.grid_sample(x, places, mode, padding, align_corners=corners)

    x = torch.randn(2, 3, *(5, 4, 6)[:rank], requires_grad=True)
    angle = (torch.randn(2, rank, rank + 1) * 0.8).requires_grad_()
    back = torch.randn_like(f(x, angle))
    mine, theirs = (
        (made := function(x, angle), *torch.autograd.grad(made, (x, angle), back))
        for function in (compiled(f), f)
    )
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def test_norms_of_layers_in_narrow_floats_train() -> None:
    """Torch keeps their statistics as narrow as the layer on a CPU, wide on a GPU."""
    layer = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.LayerNorm(16)).bfloat16()
    x = torch.randn(8, 16).bfloat16()
    grads = []
    for function in (layer, compiled(layer)):
        layer.zero_grad()
        function(x).float().square().mean().backward()
        grads.append([p.grad.clone() for p in layer.parameters()])
    for mine, theirs in zip(grads[1], grads[0], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=5e-2, atol=5e-2)


def test_random_numbers_follow_torchs_seed() -> None:
    made = compiled(torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Identity()))
    x = torch.ones(1000)
    torch.manual_seed(3)
    first, second = made(x), made(x)
    torch.manual_seed(3)
    assert torch.equal(made(x), first)
    assert not torch.equal(first, second)
    assert 0.4 < (first == 0).float().mean() < 0.6
    assert set(first.tolist()) == {0.0, 2.0}


def drawn_in_place(x: Any) -> list[Any]:
    attempts, logs, wide = (torch.empty_like(x) for _ in range(3))
    return [attempts.geometric_(0.25), logs.log_normal_(1.0, 0.5), wide.cauchy_(3.0, 0.5)]


def test_numbers_of_other_kinds_are_drawn() -> None:
    torch.manual_seed(0)
    attempts, logs, wide = compiled(drawn_in_place)(torch.empty(4000))
    assert attempts.min() == 1
    assert torch.equal(attempts, attempts.round())
    assert 3.7 < attempts.mean() < 4.3
    assert 0.9 < logs.log().mean() < 1.1
    assert 2.9 < wide.median() < 3.1


def test_slopes_that_are_drawn() -> None:
    torch.manual_seed(0)
    made = compiled(lambda x: torch.nn.functional.rrelu(x, 0.1, 0.3, training=True))
    x = torch.cat([torch.ones(10), -torch.ones(500)]).requires_grad_()
    found = made(x)
    found.sum().backward()
    assert torch.equal(found[:10], x[:10])
    assert -0.3 <= found[10:].min() < -0.28 < -0.12 < found[10:].max() <= -0.1
    torch.testing.assert_close(x.grad[10:], -found[10:].detach())


def test_dropout_is_the_same_on_the_way_back() -> None:
    made = compiled(lambda x: torch.nn.functional.dropout(x, 0.5))
    x = torch.ones(100, requires_grad=True)
    y = made(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad, y.detach())


def test_attention_stays_one_op() -> None:
    attention: Any = torch.nn.functional.scaled_dot_product_attention
    seen: list[str] = []

    def look(module: Any, inputs: Any, **options: Any) -> Any:
        made = weft_backend(module, inputs, **options)
        seen.extend(str(node.target) for node in module.graph.nodes)
        return made

    given = [torch.randn(2, 4, 5, 8, requires_grad=True) for _ in range(3)]
    other = [each.detach().clone().requires_grad_() for each in given]
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    mask[2] = False
    made = torch.compile(lambda *a: attention(*a, attn_mask=mask), backend=look, fullgraph=True)
    found, wanted = made(*given), attention(*other, attn_mask=mask)
    assert "weft.attention.default" in seen
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    found.square().sum().backward()
    wanted.square().sum().backward()
    for mine, theirs in zip(given, other, strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("masked", ["", "keys", "rows"])
def test_an_encoder_layer_that_torch_runs_as_one_op(norm_first: bool, masked: str) -> None:
    layer = torch.nn.TransformerEncoderLayer(
        8, 2, 12, batch_first=True, norm_first=norm_first, activation="gelu" if masked else "relu"
    ).eval()
    hidden = torch.zeros(3, 5, dtype=torch.bool)
    hidden[1, 3:] = True
    rows = torch.ones(5, 5, dtype=torch.bool).triu(1)
    more = {"": {}, "keys": {"src_key_padding_mask": hidden}, "rows": {"src_mask": rows}}[masked]
    x = torch.randn(3, 5, 8)
    with torch.no_grad():
        found, wanted = compiled(layer)(x, **more), layer(x, **more)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_a_matrix_without_an_inverse_is_told_as_torch_tells_it() -> None:
    def f(x: Any) -> Any:
        return torch.linalg.inv(x) + 0

    found = compiled(f)(torch.tensor([[2.0, 0.0], [1.0, 1.0]]))
    torch.testing.assert_close(found, torch.tensor([[0.5, 0.0], [-0.5, 1.0]]))
    told_as_torch_tells_it(f, torch.zeros(2, 2), "singular")


def test_a_matrix_without_factors_is_told_as_torch_tells_it() -> None:
    def f(x: Any) -> Any:
        return torch.linalg.cholesky(x) + 0

    found = compiled(f)(torch.eye(2) * 4)
    torch.testing.assert_close(found, torch.eye(2) * 2)
    told_as_torch_tells_it(f, -torch.eye(2), "positive-definite")


def told_as_torch_tells_it(function: Any, bad: Any, words: str) -> None:
    """With torch's error, where torch's own compiler does not leave the check out."""
    try:
        torch.compile(function, backend="aot_eager")(bad)
    except RuntimeError:
        with pytest.raises(RuntimeError, match=words):
            compiled(function)(bad)


def test_results_of_rank_0_and_of_every_dtype() -> None:
    def f(x: Any) -> Any:
        kinds = (torch.int32, torch.bool, torch.bfloat16, torch.float64, torch.int64)
        return [torch.full((), 1, dtype=kind) for kind in kinds] + [x.sum().to(k) for k in kinds]

    x = torch.ones(1)
    for mine, theirs in zip(compiled(f)(x), f(x), strict=True):
        torch.testing.assert_close(mine, theirs)


def airy(x: Any) -> Any:
    return torch.special.airy_ai(x * 2).sin() + 1


def test_an_op_without_a_rule_runs_in_torch_and_is_named() -> None:
    x = torch.randn(5)
    with pytest.warns(weft.WeftWarning, match="aten.special_airy_ai.default .*test_compile.py"):
        found = torch.compile(airy, backend=weft_backend)(x)
    torch.testing.assert_close(found, airy(x))


def test_with_fullgraph_it_is_an_error() -> None:
    with pytest.raises(BackendCompilerFailed, match=r"aten\.special_airy_ai"):
        compiled(airy)(torch.randn(5))


def test_options_are_checked() -> None:
    wrong = (
        ({"level": 2}, "no option 'level'"),
        ({"opt_level": 9}, "level"),
        ({"dump": 3}, "an int"),
    )
    for options, said in wrong:
        place = r"at test_compile\.py:\d+: \[torch.compile\] .*"
        with pytest.raises(BackendCompilerFailed, match=place + said):
            compiled(lambda x: x + 1, options=options)(torch.ones(2))


def test_what_was_compiled_is_told_and_written(tmp_path: Path, capsys: Any) -> None:
    weft.set_default_backend("cpu")
    options = {"explain": True, "dump": str(tmp_path), "opt_level": 2}
    compiled(lambda x: x.exp() + 1, options=options)(torch.ones(3))
    assert "compiled a graph of" in capsys.readouterr().err
    assert any(path.name.startswith("ptir") for path in tmp_path.rglob("*"))


def test_a_position_out_of_range_is_told_with_the_models_line() -> None:
    with pytest.raises(weft.WeftError, match=r"test_compile.py.* outside"):
        compiled(lambda x, at: x[at] * 2)(torch.ones(3), torch.tensor([5]))


def test_tensors_are_taken_as_they_lie_and_views_of_them_are_not_computed() -> None:
    def f(x: Any, w: Any) -> Any:
        return x @ w.T, w.T, w.unsqueeze(0).transpose(1, 2)

    x, w = torch.randn(5, 3), torch.randn(7, 3)
    graph = make_fx(f, tracing_mode="fake")(x.T.contiguous().T, w)
    made = CompiledGraph(graph, Settings())
    assert made.lying == [(1, 0), None]
    assert made.memory.taken(x.T.contiguous().T, (1, 0))[1]
    assert len(made.wanted) == 1
    product, *views = made([x.T.contiguous().T, w])
    torch.testing.assert_close(product, x @ w.T)
    for mine, theirs in zip(views, f(x, w)[1:], strict=True):
        assert mine.data_ptr() == w.data_ptr()
        torch.testing.assert_close(mine, theirs, check_stride=True)


def test_what_a_graph_writes_to_is_not_shown_as_it_was() -> None:
    def f(x: Any) -> Any:
        before = x.T.clone()
        shown = x.T
        x.add_(1)
        return before, shown * 1

    x = torch.randn(2, 3)
    y = x.clone()
    for mine, theirs in zip(compiled(f)(x), f(y), strict=True):
        torch.testing.assert_close(mine, theirs)
