"""Graphs of torch on a GPU made of the dialect's interpreter, whose memory is the host's: so the
tensors of torch are at addresses of that GPU, and everything but torch's own streams is as there.
`tests/device/test_torch.py` is the same with a real one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.support.gpu_machine import Machine, MachineBackend, machine

torch = pytest.importorskip("torch")

from weft.driver import execute  # noqa: E402
from weft.foundation.errors import UserError  # noqa: E402
from weft.interop.torch import compiled as graphs  # noqa: E402
from weft.interop.torch import gpu_memory  # noqa: E402
from weft.interop.torch.backend import weft_backend  # noqa: E402
from weft.interop.torch.gpu_memory import GpuMemory  # noqa: E402
from weft.ops.graph import context  # noqa: E402
from weft.ops.graph.cache import PROGRAMS  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings(f"ignore::{kind}")
    for kind in ("FutureWarning", "DeprecationWarning", "UserWarning")
]
THEIRS = 77


class _Memory(GpuMemory):
    """That of the interpreter."""

    device = "cpu"

    def given(self, storage: Any, kind: Any) -> Any:
        storage.check()
        lent = storage.lent_to(THEIRS)
        found = torch.from_numpy(storage.numpy())
        del lent
        return found


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    with machine() as found:
        backend = MachineBackend(found)
        monkeypatch.setitem(context._BACKENDS, "cuda", backend)
        monkeypatch.setattr(execute, "guarded", lambda each: each)
        monkeypatch.setattr(gpu_memory, "stream_in_use", lambda: THEIRS)
        monkeypatch.setattr(graphs, "home_of", lambda fakes: (backend, _Memory(backend)))
        PROGRAMS.clear()
        torch._dynamo.reset()
        torch.manual_seed(0)
        yield found
        PROGRAMS.clear()
        torch._dynamo.reset()


def compiled(function: Any) -> Any:
    return torch.compile(function, backend=weft_backend, fullgraph=True)


def test_training_follows_eager_torch(gpu: Machine) -> None:
    layer = torch.nn.Linear(8, 4)
    made, x = compiled(layer), torch.randn(4, 8)
    for function in (made, layer):
        layer.zero_grad()
        function(x).square().mean().backward()
        if function is made:
            found = [parameter.grad.clone() for parameter in layer.parameters()]
    for mine, parameter in zip(found, layer.parameters(), strict=True):
        torch.testing.assert_close(mine, parameter.grad, rtol=1e-4, atol=1e-5)


def test_weights_stay_where_they_are_and_streams_wait_for_each_other(gpu: Machine) -> None:
    layer = torch.nn.Linear(8, 4)
    made = compiled(layer)
    with torch.no_grad():
        made(torch.randn(4, 8))
        layer.weight.mul_(2)
        gpu.uploads, gpu.orders = 0, []
        x = torch.randn(4, 8)
        torch.testing.assert_close(made(x), layer(x), rtol=1e-4, atol=1e-5)
    assert gpu.uploads == 0
    assert [pair.index(THEIRS) for pair in gpu.orders] == [0, 1]


def test_views_scalars_of_the_host_and_what_is_written(gpu: Machine) -> None:
    def f(x: Any, y: Any) -> Any:
        x.mul_(2)
        return (x + y).transpose(0, 1)

    whole, y = torch.randn(5, 8), torch.tensor(3.0)
    other = whole.clone()
    with torch.no_grad():
        mine, theirs = compiled(f)(whole[1:], y), f(other[1:], y)
    torch.testing.assert_close(mine, theirs, check_stride=True)
    torch.testing.assert_close(whole, other)


def test_random_numbers_and_no_elements(gpu: Machine) -> None:
    made = compiled(torch.nn.Dropout(0.5))
    x = torch.ones(64)
    found = made(x)
    assert set(found.tolist()) <= {0.0, 2.0}
    assert not torch.equal(made(x), found)
    assert compiled(lambda x: x + 1)(torch.ones(0, 3)).shape == (0, 3)


def test_sizes_have_programs_of_their_own(gpu: Machine) -> None:
    made = torch.compile(lambda x: x * 2, backend=weft_backend, fullgraph=True, dynamic=True)
    for count in (4, 5, 7):
        x = torch.randn(count)
        np.testing.assert_array_equal(made(x), x * 2)


def test_the_devices_of_a_graph_say_where_it_runs() -> None:
    with torch._subclasses.FakeTensorMode():
        first, second = (torch.empty(2, device=f"cuda:{number}") for number in (0, 1))
        host = torch.empty(())
    backend, memory = graphs.home_of([first, host, 3])
    assert (backend.name, memory.device) == ("cuda", "cuda")
    assert graphs.home_of([host])[1].device == "cpu"
    with pytest.raises(UserError, match="there are tensors on cuda:0, cuda:1"):
        graphs.home_of([first, second])
