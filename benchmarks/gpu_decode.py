"""Lines of the GPU benchmark for decoding: `attention_decode` of `gpu2.json`, few queries over a
long cache, which lies in one piece or in pages.

Peers are torch's scaled_dot_product_attention as it chooses by itself (eager), with cuDNN, and for
pages compiled flex_attention, which reads them where they lie; the others gather them first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.gpu_attention import Shape, flex_module
from benchmarks.gpu_line import Line, Tensor
from weft.ptir import Builder, Value

FAMILY: Final = "attention_decode"
PAGE: Final = 64
_QUERY_BLOCK: Final = 128


@dataclass(frozen=True)
class Paged:
    """An attention over a cache in pages: (heads, pages, tokens of a page, elements), and a table
    of each sequence's pages."""

    shape: Shape

    @property
    def pages(self) -> int:
        """Of one sequence."""
        return self.shape.keys // PAGE

    @property
    def line(self) -> Line:
        shape, all_pages = self.shape, self.shape.batch * self.pages
        cache = Tensor((shape.keys_heads, all_pages, PAGE, shape.depth), shape.dtype)
        table = Tensor((shape.batch, self.pages), "si32", below=all_pages)
        library = {"cudnn": self.in_cudnn, "flex": self.in_flex}
        return Line(
            FAMILY, f"{shape.name} paged by {PAGE}", shape.dtype,
            (shape.inputs[0], cache, cache, table), self.in_weft, self.in_torch, library,
            shape.flops,
        )  # fmt: skip

    def in_weft(self, b: Builder, q: Value, k: Value, v: Value, table: Value) -> Value:
        return self.shape.in_weft(b, q, *(self.gathered(b, x, table) for x in (k, v)))

    def gathered(self, b: Builder, cache: Value, table: Value) -> Value:
        found = b.transpose(b.take(b.transpose(cache, [1, 0, 2, 3]), table), [0, 2, 1, 3, 4])
        shape = self.shape
        return b.reshape(found, [shape.batch, shape.keys_heads, shape.keys, shape.depth])

    def in_torch(self, torch: Any, q: Any, k: Any, v: Any, table: Any) -> Any:
        return self.shape.in_torch(torch, q, *(self.picked(x, table) for x in (k, v)))

    def in_cudnn(self, torch: Any, q: Any, k: Any, v: Any, table: Any) -> Any:
        return self.shape.in_cudnn(torch, q, *(self.picked(x, table) for x in (k, v)))

    def picked(self, cache: Any, table: Any) -> Any:
        return cache[:, table].transpose(0, 1).flatten(2, 3)

    def in_flex(self, torch: Any, q: Any, k: Any, v: Any, table: Any) -> Any:
        made = _FLEX.get(self)
        if made is None:
            call = torch.compile(flex_module().flex_attention, dynamic=False)
            made = (call, self.blocks(torch, table))
            _FLEX[self] = made
        call, blocks = made
        whole = (x.flatten(1, 2)[None] for x in (k, v))
        return call(q, *whole, block_mask=blocks, enable_gqa=True)

    def blocks(self, torch: Any, table: Any) -> Any:
        """Which blocks of all pages each sequence sees: those of its table, whole."""
        batch, pages = table.shape
        # As wide as there are pages, of which the first are meant.
        order = torch.zeros((batch, 1, 1, batch * pages), dtype=torch.int32, device=table.device)
        order[..., :pages] = table[:, None, None]
        counts = torch.full((batch, 1, 1), pages, dtype=torch.int32, device=table.device)
        return flex_module().BlockMask.from_kv_blocks(
            torch.zeros_like(counts), torch.zeros_like(order), counts, order,
            BLOCK_SIZE=(_QUERY_BLOCK, PAGE), seq_lengths=(self.shape.queries, batch * pages * PAGE),
        )  # fmt: skip


_FLEX: Final[dict[Paged, Any]] = {}

SHAPES: Final = (
    Shape(1, 32, 8, 1, 8192, 128),
    Shape(16, 32, 8, 1, 4096, 128),
    Shape(64, 32, 8, 1, 2048, 128),
    Shape(8, 32, 32, 1, 8192, 128),
    Shape(1, 12, 12, 1, 1024, 64),
    Shape(4, 32, 8, 8, 4096, 128),
)
PAGED: Final = Shape(16, 32, 8, 1, 4096, 128)


def decode_lines() -> Iterator[Line]:
    yield from (shape.line(FAMILY) for shape in SHAPES)
    yield Paged(PAGED).line
