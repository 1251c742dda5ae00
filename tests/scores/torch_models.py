"""Models of PyTorch on Weft: do they import, and give torch's results and gradients?

`python -m tests.scores.torch_models` exports 28 models with random weights and cut sizes, imports
them with `weft.torch.from_exported`, and compares results, and the gradients of all parameters,
with eager torch in f32. `--compile` goes through `torch.compile(backend="weft")` instead. Models of
transformers and timm are left out where those are not installed. The run fails where a model
is wrong.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

import weft
import weft.torch
from tests.scores import torch_model_zoo
from weft.interop.torch.backend import weft_backend

BOUND = 2e-4
"""How far a result or gradient may be from torch's, of the largest element."""


def main(argv: list[str]) -> int:
    """Compare, print the table; 1 where a model is wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="", help="models whose name contains this")
    parser.add_argument("--compile", action="store_true", help="through torch.compile")
    parser.add_argument("--forward", action="store_true", help="without gradients")
    given = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    print(f"{'model':22} {'outcome':10} {'results':>9} {'gradients':>9} {'seconds':>8}  what")
    outcomes = []
    for name, build in torch_model_zoo.MODELS.items():
        if given.only in name:
            outcomes.append(row(name, build, given.compile, not given.forward))
    counts = {kind: outcomes.count(kind) for kind in dict.fromkeys(outcomes)}
    print(", ".join(f"{count} {kind}" for kind, count in counts.items()))
    return 1 if "wrong" in counts else 0


def row(name: str, build: Callable[[], Any], compiled: bool, gradients: bool) -> str:
    """Compare one model and print its line."""
    started, far, slope, what = time.perf_counter(), float("nan"), float("nan"), ""
    try:
        torch.manual_seed(0)
        module, args, kwargs = build()
        module = module.eval()
        measure = through_compile if compiled else through_export
        far, slope, what = measure(module, args, kwargs, gradients)
        close = far < BOUND and (not gradients or slope < 10 * BOUND)
        outcome = ("in part" if what else "right") if close else "wrong"
    except ModuleNotFoundError as error:
        outcome, what = "absent", f"{error.name} is not installed"
    except Exception as error:
        outcome, what = "failed", f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    seconds = time.perf_counter() - started
    print(f"{name:22} {outcome:10} {far:9.1e} {slope:9.1e} {seconds:8.1f}  {what}", flush=True)
    return outcome


def through_export(
    module: nn.Module, args: Any, kwargs: Any, gradients: bool
) -> tuple[float, float, str]:
    program = torch.export.export(module, args, kwargs, strict=False)
    ours = weft.torch.from_exported(program)
    given = tuple(map(taken, args)), {name: taken(value) for name, value in kwargs.items()}
    found = weft.jit(lambda m, a, k: floats(m(*a, **k)))(ours, *given)
    wanted = floats(module(*args, **kwargs))
    far = max(apart(mine, theirs) for mine, theirs in zip(found, wanted, strict=True))
    if not gradients:
        return far, float("nan"), ""

    def loss(m: Any, a: Any, k: Any) -> Any:
        return sum(weft.mean(each * each) for each in floats(m(*a, **k)))

    slopes = weft.jit(weft.grad(loss))(ours, *given).state_dict()
    backward(module, wanted)
    named = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
    return far, max(apart(slopes[name], g) for name, g in named.items() if name in slopes), ""


def through_compile(
    module: nn.Module, args: Any, kwargs: Any, gradients: bool
) -> tuple[float, float, str]:
    torch._dynamo.reset()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        made = torch.compile(module, backend=weft_backend)
        with torch.set_grad_enabled(gradients):
            found, wanted = (floats(f(*args, **kwargs)) for f in (made, module))
        far = max(apart(mine, theirs) for mine, theirs in zip(found, wanted, strict=True))
        slope = float("nan")
        if gradients:
            backward(module, found)
            mine = {n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None}
            module.zero_grad()
            backward(module, wanted)
            theirs = {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
            slope = max(apart(mine[name], each) for name, each in theirs.items())
    lines = [str(w.message) for w in told if issubclass(w.category, weft.WeftWarning)]
    return far, slope, "; ".join(lines)[:300]


def backward(module: nn.Module, results: list[Any]) -> None:
    sum((each * each).mean() for each in results if each.requires_grad).backward()


def floats(value: Any) -> list[Any]:
    """The tensors of floats in a result."""
    if isinstance(value, weft.Tensor | torch.Tensor):
        is_float = (
            value.dtype.is_float if isinstance(value, weft.Tensor) else value.is_floating_point()
        )
        return [value] if is_float else []
    parts = value.values() if isinstance(value, dict) else value
    if isinstance(parts, str | int | float | type(None)) or not hasattr(parts, "__iter__"):
        return []
    return [leaf for each in parts for leaf in floats(each)]


def apart(mine: Any, theirs: Any) -> float:
    """The largest difference, of the largest element."""
    wanted = theirs.detach().numpy()
    found = mine.detach().numpy() if isinstance(mine, torch.Tensor) else np.asarray(mine)
    assert found.shape == wanted.shape, f"shape {found.shape}, torch has {wanted.shape}"
    if not wanted.size:
        return 0.0
    bad = np.isnan(found) != np.isnan(wanted)
    if bad.any():
        return float("inf")
    far = np.nanmax(np.abs(found - wanted), initial=0.0)
    return float(far / max(float(np.nanmax(np.abs(wanted), initial=0.0)), 1e-3))


def taken(value: Any) -> Any:
    return weft.torch.from_tensor(value.detach()) if isinstance(value, torch.Tensor) else value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
