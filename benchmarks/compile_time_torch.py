"""The torch side of `compile_time.py`: how long torch.compile takes with one model, as JSON.

    python benchmarks/compile_time_torch.py MODEL

The first call of a compiled module traces, compiles and runs it; what later calls take is
subtracted. Needs torch and a C++ compiler, and nothing of Weft.
"""

from __future__ import annotations

import json
import sys
import time

import torch
from torch import Tensor, nn
from torch.nn import functional as F

STEADY_RUNS = 3


class Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))
        self.beta = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self.gamma, self.beta, 1e-5)


class Dense(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((inputs, outputs), 1e-2))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


class GptBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = Norm(width), Norm(width)
        self.attention, self.project = Dense(width, 3 * width), Dense(width, width)
        self.expand, self.contract = Dense(width, 4 * width), Dense(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        sequence, width = x.shape
        joined = self.attention(self.norm_1(x)).reshape(1, sequence, 3, self.heads, -1)
        q, k, v = joined.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(sequence, width))
        return x + self.contract(F.gelu(self.expand(self.norm_2(x))))


class Gpt(nn.Module):
    """The model of `examples/gpt.py`."""

    def __init__(self, layers: int, width: int, heads: int, sequence: int, words: int) -> None:
        super().__init__()
        self.tokens = nn.Parameter(torch.full((words, width), 1e-2))
        self.positions = nn.Parameter(torch.zeros(sequence, width))
        self.blocks = nn.ModuleList([GptBlock(width, heads) for _ in range(layers)])
        self.norm = Norm(width)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens[ids] + self.positions
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.tokens.T


class CachedAttention(nn.Module):
    """One block of `examples/make_programs.py`'s `attention_stack`."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention = nn.Parameter(torch.full((width, 3 * width), 1e-2))
        self.project = nn.Parameter(torch.full((width, width), 1e-2))

    def forward(
        self, x: Tensor, keys: Tensor, values: Tensor, places: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        sequence, width = x.shape
        q, k, v = (
            (x @ self.attention).reshape(1, sequence, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        )
        keys, values = keys.index_copy(2, places, k), values.index_copy(2, places, v)
        mixed = F.scaled_dot_product_attention(q, keys, values, mask)
        return x + mixed.transpose(1, 2).reshape(sequence, width) @ self.project, keys, values


class AttentionStack(nn.Module):
    def __init__(self, blocks: int, width: int, heads: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([CachedAttention(width, heads) for _ in range(blocks)])

    def forward(self, x: Tensor, position: Tensor, *caches: Tensor) -> list[Tensor]:
        places = position + torch.arange(x.shape[0])
        seen = torch.arange(caches[0].shape[2])[None, :] <= places[:, None]
        mask = torch.where(seen, 0.0, float("-inf"))
        updated: list[Tensor] = []
        for number, block in enumerate(self.blocks):
            x, *pair = block(x, *caches[2 * number : 2 * number + 2], places, mask)
            updated += pair
        return [x, *updated]


def gpt2() -> tuple[nn.Module, list[Tensor]]:
    return Gpt(12, 768, 12, 128, 50257), [torch.arange(128)]


def attention_stack() -> tuple[nn.Module, list[Tensor]]:
    blocks, heads, sequence, depth, cache = 12, 2, 16, 8, 32
    caches = [torch.zeros(1, heads, cache, depth) for _ in range(2 * blocks)]
    x = torch.full((sequence, heads * depth), 1e-2)
    return AttentionStack(blocks, heads * depth, heads), [x, torch.tensor(5), *caches]


MODELS = {"attention_12_blocks": attention_stack, "gpt2": gpt2}


def measure(name: str) -> dict[str, object]:
    model, inputs = MODELS[name]()
    compiled = torch.compile(model.eval())
    with torch.inference_mode():
        first, *later = (_seconds(compiled, inputs) for _ in range(1 + STEADY_RUNS))
    return {
        "compile": first - min(later),
        "run": min(later),
        "version": f"torch {torch.__version__}, {torch.get_num_threads()} threads",
    }


def _seconds(function: nn.Module, inputs: list[Tensor]) -> float:
    started = time.perf_counter()
    function(*inputs)
    return time.perf_counter() - started


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1])))
