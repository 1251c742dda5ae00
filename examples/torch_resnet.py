"""A ResNet of PyTorch that learns digits, compiled by Weft in both directions.

    python -m examples.torch_resnet [--steps N] [--eager]

Everything is PyTorch but one word: `torch.compile(model, backend="weft")`. Needs torch and
scikit-learn.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy


class Block(nn.Module):  # type: ignore[misc]
    """Two convolutions beside a way around them."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outside)
        self.second = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outside)
        self.around = nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, x: Any) -> Any:
        y = torch.relu(self.norm1(self.first(x)))
        return torch.relu(self.norm2(self.second(y)) + self.around(x))


def resnet(width: int = 8) -> nn.Module:
    """A ResNet for pictures of 8 by 8."""
    return nn.Sequential(
        nn.Conv2d(1, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
        Block(width, width, 1), Block(width, 2 * width, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(2 * width, 10),
    )  # fmt: skip


def train(model: Any, batches: list[tuple[Any, Any]], rate: float = 0.05) -> list[float]:
    """The loss of every step of SGD with momentum."""
    optimiser = torch.optim.SGD(model.parameters(), rate, momentum=0.9)
    losses = []
    for pictures, labels in batches:
        optimiser.zero_grad()
        loss = cross_entropy(model(pictures), labels)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


def digits(steps: int, batch: int = 64) -> list[tuple[Any, Any]]:
    """Random batches of pictures and labels."""
    found = load_digits()
    pictures = torch.tensor(found.images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(found.target)
    chosen = [torch.randint(len(labels), (batch,)) for _ in range(steps)]
    return [(pictures[at], labels[at]) for at in chosen]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--eager", action="store_true", help="without Weft")
    given = parser.parse_args()
    torch.manual_seed(0)
    model = resnet()
    made = model if given.eager else torch.compile(model, backend="weft", fullgraph=True)
    batches, started = digits(given.steps), time.perf_counter()
    losses = train(made, batches[:1])
    first = time.perf_counter() - started
    losses += train(made, batches[1:])
    later = (time.perf_counter() - started - first) / max(1, given.steps - 1)
    print(f"first step {first:.1f} s, later ones {1e3 * later:.1f} ms")
    print(f"loss {losses[0]:.3f} at first, {sum(losses[-5:]) / 5:.3f} at last")


if __name__ == "__main__":
    main()
