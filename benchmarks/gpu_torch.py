"""Tensors of torch on a GPU through `torch.compile(backend="weft")`, beside eager torch.

    python -m benchmarks.gpu_torch [--inductor] [--calls 50]

For each module: whether results and gradients are those of eager torch (the largest difference, of
the largest element), the milliseconds of a call forward and of one forward and back, and the
seconds of the first call. Times are those of the host's clock around many calls, with the device
waited for at the end: that is what a training loop sees.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from weft.interop.torch.backend import weft_backend

BOUND = 2e-2
"""How far results in bf16 may be apart."""


class Block(nn.Module):  # type: ignore[misc]
    """A layer of a transformer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mixed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        parts = self.mixed(self.first(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.narrow(nn.functional.gelu(self.wide(self.second(x))))


def modules() -> dict[str, tuple[nn.Module, torch.Tensor]]:
    """What is measured, with an input each."""
    layers = [nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)]
    images = [nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()]
    return {
        "perceptron bf16": _on_gpu(nn.Sequential(*layers), torch.randn(4096, 1024), "bfloat16"),
        "transformer layer bf16": _on_gpu(Block(768, 12), torch.randn(8, 512, 768), "bfloat16"),
        "convolution, norm, relu f32": _on_gpu(
            nn.Sequential(*images), torch.randn(16, 64, 28, 28), "float32"
        ),
    }


def _on_gpu(module: nn.Module, x: torch.Tensor, dtype: str) -> tuple[nn.Module, torch.Tensor]:
    kind = getattr(torch, dtype)
    return module.to("cuda", kind), x.to("cuda", kind)


def called(function: Callable[..., Any], x: torch.Tensor) -> Any:
    with torch.no_grad():
        return function(x)


def trained(function: Callable[..., Any], x: torch.Tensor) -> Any:
    function(x).float().square().mean().backward()


def milliseconds(call: Callable[[], Any], calls: int) -> float:
    for _ in range(5):
        call()
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(calls):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - started) / calls * 1e3


def far(mine: torch.Tensor, theirs: torch.Tensor) -> float:
    size = float(theirs.float().abs().max()) or 1.0
    return float((mine.float() - theirs.float()).abs().max()) / size


def difference(function: Callable[..., Any], module: nn.Module, x: torch.Tensor) -> float:
    """How far results and gradients are from eager torch's."""
    found = far(called(function, x), called(module, x))
    grads = []
    for each in (function, module):
        module.zero_grad()
        trained(each, x)
        grads.append([p.grad.clone() for p in module.parameters() if p.grad is not None])
    module.zero_grad()
    # Beside the largest of all: that of a bias before a norm is nothing but rounding.
    size = max(float(grad.float().abs().max()) for grad in grads[1]) or 1.0
    apart = (float((a.float() - b.float()).abs().max()) for a, b in zip(*grads, strict=True))
    return max(found, max(apart) / size)


def main(argv: list[str]) -> int:
    """Measure, print the table; 1 where something is wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--inductor", action="store_true", help="measure inductor, too")
    parser.add_argument("--calls", type=int, default=50)
    given = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("there is no GPU that torch can use")
        return 1
    warnings.simplefilter("always")
    wrong = False
    backends = {"weft": weft_backend} | ({"inductor": "inductor"} if given.inductor else {})
    for name, (module, x) in modules().items():
        sides: dict[str, Any] = {"eager": module}
        for side, backend in backends.items():
            sides[side] = torch.compile(module, backend=backend, fullgraph=True)
        for side, function in sides.items():
            started = time.perf_counter()
            called(function, x)
            torch.cuda.synchronize()
            first = time.perf_counter() - started
            apart = 0.0 if side == "eager" else difference(function, module, x)
            wrong |= apart > BOUND
            forward = milliseconds(partial(called, function, x), given.calls)
            both = milliseconds(partial(trained, function, x), given.calls)
            print(
                f"{name:28} {side:9} first call {first:7.2f} s   forward {forward:8.3f} ms   "
                f"and back {both:8.3f} ms   apart {apart:.1e}",
                flush=True,
            )
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
