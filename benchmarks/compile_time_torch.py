"""The torch side of `compile_time.py`: how long torch.compile takes with one model, as JSON.

    python -m benchmarks.compile_time_torch MODEL

The first call of a compiled function traces, compiles and runs it; what later calls take is
subtracted. Needs torch and a C++ compiler, and nothing of Weft.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import cross_entropy, gelu, layer_norm, scaled_dot_product_attention

from benchmarks.cpu_clock import seconds_and_work

STEADY_RUNS = 3
Tensor = Any


def weights(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.full(shape, 1e-2) for shape in shapes]


# -- the model of examples/gpt.py ----------------------------------------------------------------

LAYERS, WIDTH, HEADS, SEQUENCE, WORDS = 12, 768, 12, 128, 50257


def norm(x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    return layer_norm(x, x.shape[-1:], gamma, beta, 1e-5)


def gpt_block(x: Tensor, w: list[Tensor]) -> Tensor:
    joined = norm(x, w[0], w[1]) @ w[2] + w[3]
    q, k, v = joined.reshape(1, SEQUENCE, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
    mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
    x = x + (mixed.transpose(1, 2).reshape(SEQUENCE, WIDTH) @ w[4] + w[5])
    hidden = gelu(norm(x, w[6], w[7]) @ w[8] + w[9])
    return x + (hidden @ w[10] + w[11])


def gpt(
    ids: Tensor, tables: list[Tensor], blocks: list[list[Tensor]], last: list[Tensor]
) -> Tensor:
    x = tables[0][ids] + tables[1]
    for block in blocks:
        x = gpt_block(x, block)
    return norm(x, *last) @ tables[0].T


def gpt2() -> tuple[Callable[..., Any], list[Any]]:
    row = (WIDTH,)
    shapes = [
        row, row, (WIDTH, 3 * WIDTH), (3 * WIDTH,), (WIDTH, WIDTH), row,
        row, row, (WIDTH, 4 * WIDTH), (4 * WIDTH,), (4 * WIDTH, WIDTH), row,
    ]  # fmt: skip
    tables = weights((WORDS, WIDTH), (SEQUENCE, WIDTH))
    blocks = [weights(*shapes) for _ in range(LAYERS)]
    return gpt, [torch.arange(SEQUENCE), tables, blocks, weights(row, row)]


def gpt_loss(
    given: tuple[list[Tensor], list[list[Tensor]], list[Tensor]], ids: Tensor, following: Tensor
) -> Tensor:
    return cross_entropy(gpt(ids, *given), following)


def gpt_step(ids: Tensor, following: Tensor, given: Any) -> Any:
    """The loss, and every weight less its gradient."""
    slopes, value = torch.func.grad_and_value(gpt_loss)(given, ids, following)
    return value, torch.utils._pytree.tree_map(lambda w, slope: w - 0.01 * slope, given, slopes)


def gpt2_training() -> tuple[Callable[..., Any], list[Any]]:
    _, (ids, *given) = gpt2()
    return gpt_step, [ids, torch.arange(SEQUENCE), tuple(given)]


# -- the `attention_stack` of examples/make_programs.py ------------------------------------------


def attention_stack(x: Tensor, position: Tensor, blocks: list[list[Tensor]]) -> list[Tensor]:
    sequence, width = x.shape
    places = position + torch.arange(sequence)
    seen = torch.arange(blocks[0][0].shape[2])[None, :] <= places[:, None]
    mask = torch.where(seen, 0.0, float("-inf"))
    updated: list[Tensor] = []
    for k_cache, v_cache, attend, project in blocks:
        q, k, v = (x @ attend).reshape(1, sequence, 3, 2, -1).permute(2, 0, 3, 1, 4)
        keys, values = k_cache.index_copy(2, places, k), v_cache.index_copy(2, places, v)
        mixed = scaled_dot_product_attention(q, keys, values, mask)
        x = x + mixed.transpose(1, 2).reshape(sequence, width) @ project
        updated += [keys, values]
    return [x, *updated]


def attention_12_blocks() -> tuple[Callable[..., Any], list[Any]]:
    heads, sequence, depth, cache = 2, 16, 8, 32
    width = heads * depth
    shapes = [(1, heads, cache, depth)] * 2 + [(width, 3 * width), (width, width)]
    blocks = [weights(*shapes) for _ in range(12)]
    return attention_stack, [*weights((sequence, width)), torch.tensor(5), blocks]


MODELS = {
    "attention_12_blocks": attention_12_blocks,
    "gpt2": gpt2,
    "gpt2_training": gpt2_training,
}


def measure(name: str) -> dict[str, object]:
    function, inputs = MODELS[name]()
    compiled = torch.compile(function)
    with torch.no_grad():
        first, work = seconds_and_work(compiled, inputs)
        later = [seconds_and_work(compiled, inputs) for _ in range(STEADY_RUNS)]
    steady = min(seconds for seconds, _ in later)
    return {
        "compile": first - steady,
        "run": steady,
        "work": work - min(work for _, work in later),
        "version": f"torch {torch.__version__}, {torch.get_num_threads()} threads",
    }


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1])))
