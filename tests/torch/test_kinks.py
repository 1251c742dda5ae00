"""The table of kinks against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

from tests.derivatives.kinks import KINKS, Kink
from tests.support.torch_kinks import clamp_keeps_its_bounds

torch = pytest.importorskip("torch", reason="torch is not installed")


@pytest.mark.parametrize("kink", KINKS, ids=lambda kink: f"{kink.name}-{kink.at}")
def test_the_derivative_is_that_of_torch_or_the_table_says_why_not(kink: Kink) -> None:
    tensors = [torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in kink.at]
    result = kink.theirs(torch, *tensors).sum()
    found = torch.autograd.grad(result, tensors, materialize_grads=True)
    if kink.name.startswith("clip") and not clamp_keeps_its_bounds():
        pytest.skip("at a bound this torch has another derivative of clamp than 2.13")
    wanted = kink.wanted if kink.torch is None else kink.torch
    for theirs, table in zip(found, wanted, strict=True):
        np.testing.assert_allclose(theirs.numpy(), np.array(table), rtol=1e-8, atol=0)
    assert (kink.torch is None) == (not kink.why)
