"""The example that trains a ResNet through `torch.compile`."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

import weft

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

from examples.torch_resnet import resnet, train  # noqa: E402
from weft.interop.torch.backend import weft_backend  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings(f"ignore::{kind}") for kind in ("FutureWarning", "UserWarning")
]


@pytest.fixture(autouse=True)
def cpu() -> Iterator[None]:
    before = weft.default_backend()
    weft.set_default_backend("cpu")
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    weft.set_default_backend(before)


def test_a_resnet_learns_what_it_learns_in_eager_torch() -> None:
    plain: Any = resnet(4)
    other = copy.deepcopy(plain)
    made = torch.compile(other, backend=weft_backend, fullgraph=True)
    batches = [(torch.randn(6, 1, 8, 8), torch.randint(10, (6,))) for _ in range(3)]
    torch.testing.assert_close(train(made, batches), train(plain, batches), rtol=1e-3, atol=1e-4)
    for (name, mine), theirs in zip(
        other.state_dict().items(), plain.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4, msg=name)
