"""Lines of the GPU benchmark say the same to Weft and to torch: both sides at small sizes, in f32,
on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

import weft
from benchmarks import gpu_backward, gpu_decode, gpu_losses, gpu_optimisers, gpu_products
from benchmarks.gpu_attention import Shape
from benchmarks.gpu_line import Line, Tensor

torch = pytest.importorskip("torch")

SMALL = (
    (gpu_backward, "LAYER_NORMS", ((6, 64),)),
    (gpu_backward, "RMS_NORMS", ((6, 64),)),
    (gpu_backward, "SOFTMAX", (6, 64)),
    (gpu_backward, "GROUP_NORMS", ((2, 64, 3, 3),)),
    (gpu_backward, "IMAGES", (2, 3, 3, 8)),
    (gpu_backward, "TABLE", (16, 8)),
    (gpu_backward, "TOKENS", 24),
    (gpu_losses, "SHAPES", ((6, 40),)),
    (gpu_losses, "PRODUCT", (6, 16, 40)),
    (gpu_optimisers, "WIDTH", 4),
    (gpu_optimisers, "LAYERS", 1),
    (gpu_optimisers, "TOKENS", (9, 5)),
    (gpu_decode, "PAGE", 4),
    (gpu_decode, "SHAPES", (Shape(2, 4, 2, 3, 12, 16),)),
    (gpu_decode, "PAGED", Shape(2, 4, 2, 1, 12, 16)),
    (gpu_products, "EXPERTS", 4),
    (gpu_products, "EXPERT_ROWS", 24),
    (gpu_products, "EXPERT", (6, 8)),
    (gpu_products, "GROUP", 4),
    (gpu_products, "GELU", ((5, 6, 8), (5, 6, 8))),
    (gpu_products, "MASKED", (5, 6, 8)),
    (gpu_products, "GATED", (5, 6, 8)),
    (gpu_products, "HEADS", (5, 8, 8)),
    (gpu_products, "FOUR_BITS", ((3, 6, 8),)),
    (gpu_products, "EIGHT_BITS", ((3, 6, 8),)),
)


def lines() -> Iterator[Line]:
    yield from gpu_backward.rows_backward_lines()
    yield from gpu_decode.decode_lines()
    yield from gpu_products.products_lines()


def in_f32(line: Line) -> Line:
    inputs = (replace(x, dtype="f32") if x.dtype == "bf16" else x for x in line.inputs)
    return replace(line, inputs=tuple(inputs))


def data(found: Tensor, seed: int) -> np.ndarray:
    drawn = np.random.default_rng(seed)
    kinds = {"f32": np.float32, "si8": np.int8, "ui8": np.uint8, "si32": np.int32, "si64": np.int64}
    if found.ends:
        dealt = drawn.integers(0, found.shape[0], found.below)
        counts = np.bincount(dealt, minlength=found.shape[0])
        return np.cumsum(counts).astype(kinds[found.dtype])
    if found.below:
        low = -found.below if found.dtype == "si8" else 0
        return drawn.integers(low, found.below, found.shape).astype(kinds[found.dtype])
    return (drawn.standard_normal(found.shape) * found.scale).astype(kinds[found.dtype])


def test_both_sides_of_a_line_compute_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in SMALL:
        monkeypatch.setattr(module, name, value)
    for line in map(in_f32, lines()):
        inputs = [data(found, seed) for seed, found in enumerate(line.inputs)]
        mine = weft.compile(line.program(), "cpu")(*inputs)
        theirs = line.torch(torch, *map(torch.from_numpy, inputs))
        several = theirs if isinstance(theirs, tuple) else (theirs,)
        for one, other in zip(mine, several, strict=True):
            np.testing.assert_allclose(
                np.asarray(one), other.numpy(), rtol=1e-3, atol=1e-4, err_msg=line.key
            )


def test_flex_attention_is_told_the_pages_of_the_table() -> None:
    paged = gpu_decode.Paged(Shape(2, 4, 2, 1, 3 * gpu_decode.PAGE, 16))
    table = torch.tensor([[4, 0, 5], [1, 3, 2]])
    seen = paged.blocks(torch, table).to_dense()[:, 0, 0]
    assert seen.tolist() == [[1, 0, 0, 0, 1, 1], [0, 1, 1, 1, 0, 0]]


def test_weights_that_are_joined_give_the_same_gates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_products, "GATED", (5, 6, 8))
    line = next(in_f32(x) for x in gpu_products.products_lines() if "swiglu" in x.name)
    inputs = [torch.from_numpy(data(x, n)) for n, x in enumerate(line.inputs)]
    torch.testing.assert_close(line.library["joined"](torch, *inputs), line.torch(torch, *inputs))
