"""Lines of the GPU benchmark for optimisers over the tensors of GPT-2 124M, of `rows_backward` in
`gpu2.json`: a step of AdamW with weights and gradients of bf16 and moments of f32, and clipping
gradients by their common norm. Peers are torch's ops over lists of tensors and torch.compile."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

from benchmarks.gpu_line import Line, Tensor
from weft.ptir import Builder, Value

WIDTH: Final = 768
LAYERS: Final = 12
TOKENS: Final = (50257, 1024)
"""Words, and places of a sequence."""
RATE, DECAY, EPSILON = 1e-3, 0.01, 1e-8
BETAS: Final = (0.9, 0.999)
STEP: Final = 10
"""How many steps were taken before."""
LARGEST: Final = 1.0
"""The norm that gradients are clipped to."""


def shapes() -> list[tuple[int, ...]]:
    """Of the model's parameters."""
    block: list[tuple[int, ...]] = [
        (WIDTH,), (WIDTH,), (WIDTH, 3 * WIDTH), (3 * WIDTH,), (WIDTH, WIDTH), (WIDTH,),
        (WIDTH,), (WIDTH,), (WIDTH, 4 * WIDTH), (4 * WIDTH,), (4 * WIDTH, WIDTH), (WIDTH,),
    ]  # fmt: skip
    return [*((rows, WIDTH) for rows in TOKENS), *block * LAYERS, (WIDTH,), (WIDTH,)]


def _corrections() -> tuple[float, float]:
    return 1 - BETAS[0] ** (STEP + 1), 1 - BETAS[1] ** (STEP + 1)


def _lists(given: Sequence[Any]) -> list[list[Any]]:
    """Weights, gradients, first and second moments."""
    count = len(shapes())
    return [list(given[start : start + count]) for start in range(0, len(given), count)]


def _adamw(b: Builder, *given: Value) -> tuple[Value, ...]:
    first, second = _corrections()
    rows = [_step(b, each, first, second) for each in zip(*_lists(given), strict=True)]
    return tuple(value for part in zip(*rows, strict=True) for value in part)


def _step(
    b: Builder, given: Sequence[Value], first: float, second: float
) -> tuple[Value, Value, Value]:
    weight, slope, m, v = given
    grad, old = b.cast(slope, "f32"), b.cast(weight, "f32")
    m = m * BETAS[0] + grad * (1 - BETAS[0])
    v = v * BETAS[1] + grad * grad * (1 - BETAS[1])
    size = b.sqrt(b.abs(v)) * (1 / math.sqrt(second)) + EPSILON
    new = old * (1 - RATE * DECAY) - m * (RATE / first) / size
    return b.cast(new, weight.dtype), m, v


def _torch_adamw(torch: Any, *given: Any) -> Any:
    weights, slopes, m, v = _lists(given)
    first, second = _corrections()
    grads = [x.float() for x in slopes]
    m = torch._foreach_add(torch._foreach_mul(m, BETAS[0]), grads, alpha=1 - BETAS[0])
    squares = torch._foreach_mul(grads, grads)
    v = torch._foreach_add(torch._foreach_mul(v, BETAS[1]), squares, alpha=1 - BETAS[1])
    size = torch._foreach_sqrt(torch._foreach_abs(v))
    size = torch._foreach_add(torch._foreach_mul(size, 1 / math.sqrt(second)), EPSILON)
    moves = torch._foreach_div(torch._foreach_mul(m, RATE / first), size)
    old = torch._foreach_mul([x.float() for x in weights], 1 - RATE * DECAY)
    new = torch._foreach_sub(old, moves)
    return (*(x.to(w.dtype) for x, w in zip(new, weights, strict=True)), *m, *v)


def _clip(b: Builder, *slopes: Value) -> tuple[Value, ...]:
    grads = [b.cast(x, "f32") for x in slopes]
    squares = [b.reduce_sum(x * x, list(range(len(x.shape)))) for x in grads]
    total = squares[0]
    for part in squares[1:]:
        total = total + part
    norm = b.sqrt(total)
    factor = b.emit("minimum", LARGEST / (norm + 1e-6), 1.0)
    assert isinstance(factor, Value)
    scaled = (x * b.broadcast_to(factor, x.shape) for x in grads)
    return (norm, *(b.cast(x, slopes[0].dtype) for x in scaled))


def _torch_clip(torch: Any, *slopes: Any) -> Any:
    norms = torch._foreach_norm([x.float() for x in slopes])
    norm = torch.linalg.vector_norm(torch.stack(norms))
    factor = torch.clamp(LARGEST / (norm + 1e-6), max=1.0)
    return (norm, *torch._foreach_mul(list(slopes), factor.to(slopes[0].dtype)))


def optimiser_lines() -> Iterator[Line]:
    narrow = tuple(Tensor(shape, "bf16", scale=0.02) for shape in shapes())
    moments = tuple(Tensor(shape, "f32", scale=0.02) for shape in shapes())
    yield Line(
        "rows_backward", "AdamW over GPT-2 124M", "bf16", (*narrow, *narrow, *moments, *moments),
        _adamw, _torch_adamw,
    )  # fmt: skip
    yield Line(
        "rows_backward", "global norm clip over GPT-2 124M", "bf16", narrow, _clip, _torch_clip
    )
