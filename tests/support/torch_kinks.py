"""What torch does at kinks, which is not the same in all its versions."""

from __future__ import annotations

from importlib import import_module


def clamp_keeps_its_bounds() -> bool:
    """Whether the derivative of clamp at a bound is 1, as in torch up to 2.13."""
    torch = import_module("torch")
    x = torch.ones((), requires_grad=True)
    return bool(torch.autograd.grad(x.clamp(max=1.0), x)[0] == 1)
