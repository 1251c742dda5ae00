"""`torch.compile(backend="weft")` with tensors of a GPU: results and gradients of torch, in torch's
order, at the addresses where they are."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from weft.runtime.cuda.driver import compute_capability

torch = pytest.importorskip("torch")
if compute_capability() is None or not torch.cuda.is_available():
    pytest.skip("there is no GPU that torch can use", allow_module_level=True)

from weft.interop.torch.backend import weft_backend  # noqa: E402
from weft.runtime.cuda.gpu import open_gpu  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings(f"ignore::{kind}")
    for kind in ("FutureWarning", "DeprecationWarning", "UserWarning")
]
Model: Any = torch.nn.Module


@pytest.fixture(autouse=True)
def _exact() -> None:
    """Products of torch in f32, not in TF32."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


def compiled(function: Any) -> Any:
    return torch.compile(function, backend=weft_backend, fullgraph=True)


class Net(Model):  # type: ignore[misc]
    """Convolution, batch norm, pooling, attention, a norm of layers, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.BatchNorm2d(16)
        self.mixed, self.rows = torch.nn.Linear(16, 48), torch.nn.LayerNorm(16)
        self.head = torch.nn.Linear(16, 3)

    def forward(self, x: Any) -> Any:
        x = torch.nn.functional.max_pool2d(torch.relu(self.norm(self.conv(x))), 2)
        x = x.flatten(2).transpose(1, 2)
        q, k, v = self.mixed(x).unflatten(-1, (2, 24)).transpose(1, 2).chunk(3, -1)
        found = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(self.rows(x + found.transpose(1, 2).flatten(2)).mean(1))


def test_training_follows_eager_torch() -> None:
    plain = Net().cuda()
    other = copy.deepcopy(plain)
    made = compiled(other)
    pairs = [(m, torch.optim.SGD(m.parameters(), 0.05, momentum=0.9)) for m in (plain, other)]
    for _ in range(3):
        x = torch.randn(2, 3, 8, 8, device="cuda")
        for model, optimiser in pairs:
            optimiser.zero_grad()
            (made if model is other else model)(x).square().mean().backward()
            optimiser.step()
    for (name, mine), theirs in zip(
        other.state_dict().items(), plain.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_many_calls_without_waiting_keep_torchs_order(dtype: str) -> None:
    """Every call reads what torch has just written, and torch writes over it at once."""
    layer = torch.nn.Linear(256, 256).to("cuda", getattr(torch, dtype))
    made = compiled(torch.nn.Sequential(layer, torch.nn.Tanh()))
    with torch.no_grad():
        x = torch.randn(512, 256, device="cuda", dtype=layer.weight.dtype)
        wanted = x.clone()
        for step in range(50):
            # Less than 1: what rounding leaves apart gets no larger.
            layer.weight.copy_(torch.eye(256, device="cuda") * (0.3 + 0.3 * (step % 3)))
            x = made(x)
            x.mul_(0.9)
            wanted = torch.tanh(layer(wanted)).mul_(0.9)
    torch.testing.assert_close(x, wanted, rtol=2e-2, atol=2e-2)


def test_results_are_in_the_memory_of_the_device_and_inputs_too() -> None:
    made = compiled(lambda x, y: (x * y, x.sum()))
    x = torch.randn(64, 64, device="cuda")
    found, total = made(x, torch.tensor(2.0))
    assert found.is_cuda
    assert total.is_cuda
    torch.testing.assert_close(found, x * 2)
    view = torch.randn(65, 64, device="cuda").T[3:]
    torch.testing.assert_close(made(view, torch.tensor(2.0))[0], view * 2)


def test_a_side_stream_is_followed() -> None:
    made = compiled(lambda x: torch.softmax(x @ x.T, -1))
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        x = torch.randn(512, 512, device="cuda")
        for _ in range(5):
            x = made(x) + 1
    stream.synchronize()
    wanted = x.new_tensor(0.0)
    assert torch.isfinite(x).all()
    torch.testing.assert_close((x - 1).sum(-1), wanted + torch.ones(512, device="cuda"))


def test_memory_that_torch_drops_serves_again() -> None:
    made = compiled(lambda x: x + 1)
    x = torch.randn(1 << 20, device="cuda")
    with torch.no_grad():
        made(x)
        idle = open_gpu().pool.idle_bytes
        held = {made(x).data_ptr() for _ in range(20)}
        assert len(held) <= 2
    # Other programs of the process have left idle memory of their own.
    assert open_gpu().pool.idle_bytes < idle + (64 << 20)
