"""Lines of the GPU benchmark for attention: `attention_forward` of the frozen list in `gpu2.json`,
and the shapes of `attention_backward` there as a training step has them, forward and back.

Peers are torch's scaled_dot_product_attention as it chooses by itself (eager), with cuDNN, and, for
windows and packed sequences, compiled flex_attention.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any, Final

from benchmarks.gpu_line import Line, Tensor
from weft.ptir import Builder, Program, Value
from weft.ptir.gradient import vjp

LIST: Final = json.loads((Path(__file__).parent / "gpu2.json").read_text())
TOKENS: Final = 16384
"""b * s of the square lines."""
WIDTH: Final = 2048
"""h * d of the square lines."""


def flex_module() -> Any:
    """Where torch has flex_attention: it is not loaded with torch."""
    return import_module("torch.nn.attention.flex_attention")


@dataclass(frozen=True)
class TrainingLine(Line):
    """Results and the gradients of queries, keys and values; the last input is the cotangent."""

    def program(self) -> Program:
        builder = Builder("line")
        params = [builder.param(t.dtype, list(t.shape)) for t in self.inputs[:-1]]
        return vjp(builder.build(self.weft(builder, *params)), (0, 1, 2))


@dataclass(frozen=True)
class Shape:
    """An attention: batch, heads of queries and of keys, lengths, elements of a row."""

    batch: int
    heads: int
    keys_heads: int
    queries: int
    keys: int
    depth: int
    causal: bool = False
    window: int = 0
    mask: str = ""
    """float: a mask that is added; bool: one that says what is seen, of some rows nothing."""
    dtype: str = "bf16"

    @property
    def name(self) -> str:
        parts = [f"b{self.batch} h{self.heads}"]
        parts += [f"kv{self.keys_heads}"] if self.keys_heads != self.heads else []
        same = self.queries == self.keys
        parts += [f"s{self.keys}" if same else f"sq{self.queries} sk{self.keys}", f"d{self.depth}"]
        parts += ["causal"] if self.causal else []
        parts += [f"window {self.window}"] if self.window else []
        parts += [f"{self.mask} mask"] if self.mask else []
        return " ".join(parts)

    @property
    def pairs(self) -> float:
        """Pairs of a query and a key that it sees."""
        offset = self.keys - self.queries
        if self.window:
            return sum(min(q + offset + 1, self.window) for q in range(self.queries))
        if self.causal:
            return sum(q + offset + 1 for q in range(self.queries))
        return float(self.queries * self.keys)

    @property
    def flops(self) -> float:
        return 4.0 * self.batch * self.heads * self.pairs * self.depth

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        q = Tensor((self.batch, self.heads, self.queries, self.depth), self.dtype)
        kv = Tensor((self.batch, self.keys_heads, self.keys, self.depth), self.dtype)
        size = (self.batch, 1, self.queries, self.keys)
        masks = {
            "": (),
            "float": (Tensor(size, self.dtype),),
            "bool": (Tensor(size, "i1", below=2),),
        }
        return (q, kv, kv, *masks[self.mask])

    def line(self, family: str) -> Line:
        library: dict[str, Callable[..., Any]] = {"cudnn": self.in_cudnn}
        if self.window:
            library["flex"] = self.in_flex
        return Line(
            family, self.name, self.dtype, self.inputs, self.in_weft, self.in_torch, library,
            self.flops,
        )  # fmt: skip

    def training_line(self, family: str) -> Line:
        """Forward and backward: the way back has five products where the way there has two."""
        back = Tensor((self.batch, self.heads, self.queries, self.depth), self.dtype)
        cudnn = partial(self.trained, self.in_cudnn)
        return TrainingLine(
            family, self.name, self.dtype, (*self.inputs, back), self.in_weft,
            partial(self.trained, self.in_torch), {"cudnn": cudnn}, 3.5 * self.flops,
        )  # fmt: skip

    # The same in each of them

    def trained(self, forward: Callable[..., Any], torch: Any, *given: Any) -> Any:
        """What torch's derivatives make of a way forward."""
        *inputs, back = given
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_() for x in inputs[:3]]
            result = forward(torch, *leaves, *inputs[3:])
            gradients = torch.autograd.grad(result, leaves, back)
        return (result.detach(), *gradients)

    def in_weft(self, b: Builder, q: Value, k: Value, v: Value, *masks: Value) -> Value:
        given = list(masks)
        if self.mask == "bool":
            given = [self.hiding(b, masks[0])]
        if self.window:
            shape = [self.batch, 1, self.queries, self.keys]
            ahead = b.iota("si32", shape, 3) - b.iota("si32", shape, 2)
            given = [self.hiding(b, ahead > -self.window)]
        causal = self.causal or self.window > 0
        emitted = b.emit("weft.attention", q, k, v, *given, causal=causal)
        result = emitted[0]
        assert isinstance(result, Value)
        return result

    def hiding(self, b: Builder, seen: Value) -> Value:
        """A mask that is added."""
        shape = [self.batch, 1, self.queries, self.keys]
        numbers = (b.full(shape, number, "f32") for number in (0.0, -math.inf))
        made = b.emit("select", seen, *numbers)
        assert isinstance(made, Value)
        return made

    def in_torch(self, torch: Any, q: Any, k: Any, v: Any, *masks: Any) -> Any:
        grouped = self.keys_heads != self.heads
        mask = masks[0] if masks else self.band(torch, q)
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=self.causal, enable_gqa=grouped
        )

    def band(self, torch: Any, q: Any) -> Any:
        if not self.window:
            return None
        ones = torch.ones(self.queries, self.keys, dtype=torch.bool, device=q.device)
        return ones.tril() & ~ones.tril(-self.window)

    def in_cudnn(self, torch: Any, *given: Any) -> Any:
        attention = torch.nn.attention
        with attention.sdpa_kernel(attention.SDPBackend.CUDNN_ATTENTION):
            return self.in_torch(torch, *given)

    def in_flex(self, torch: Any, q: Any, k: Any, v: Any) -> Any:
        flex = flex_module()
        made = _FLEX.get(self)
        if made is None:
            window = self.window

            def seen(_b: Any, _h: Any, row: Any, column: Any) -> Any:
                return (row >= column) & (row - column < window)

            mask = flex.create_block_mask(seen, None, None, self.queries, self.keys)
            made = (torch.compile(flex.flex_attention, dynamic=False), mask)
            _FLEX[self] = made
        call, mask = made
        grouped = self.keys_heads != self.heads
        return call(q, k, v, block_mask=mask, enable_gqa=grouped)


_FLEX: Final[dict[Shape, Any]] = {}


FURTHER: Final = {
    "b2 h32 kv8 s4096 d128 causal": Shape(2, 32, 8, 4096, 4096, 128, causal=True),
    "b2 h32 kv8 s8192 d128 window 1024": Shape(2, 32, 8, 8192, 8192, 128, window=1024),
    "b8 h16 s1024 d64 additive mask [b,1,s,s]": Shape(8, 16, 16, 1024, 1024, 64, mask="float"),
    "b8 h16 s1024 d64 boolean mask, rows that see nothing": Shape(
        8, 16, 16, 1024, 1024, 64, mask="bool"
    ),
    "b4 h8 s3000 d96 causal": Shape(4, 8, 8, 3000, 3000, 96, causal=True),
    "b2 h8 s2048 d256 causal": Shape(2, 8, 8, 2048, 2048, 256, causal=True),
    "b4 h16 sq 300 sk 4096 d128": Shape(4, 16, 16, 300, 4096, 128),
    "f16 b4 h16 s4096 d128 causal": Shape(4, 16, 16, 4096, 4096, 128, causal=True, dtype="f16"),
}
"""Lines of the list by their text there."""


def attention_lines() -> Iterator[Line]:
    """The square lines, then the others that there is a program for."""
    chosen = LIST["attention_forward"]
    for depth, length, causal in product(chosen["d"], chosen["s"], chosen["causal"]):
        heads = WIDTH // depth
        shape = Shape(TOKENS // length, heads, heads, length, length, depth, causal=causal)
        yield shape.line("attention")
    for text in chosen["further"]:
        if text in FURTHER:
            yield FURTHER[text].line("attention")


def attention_training_lines() -> Iterator[Line]:
    """The shapes of the way back, with the way there before it."""
    chosen = LIST["attention_backward"]
    for depth, length, causal in product(chosen["d"], chosen["s"], chosen["causal"]):
        heads = WIDTH // depth
        shape = Shape(TOKENS // length, heads, heads, length, length, depth, causal=causal)
        yield shape.training_line("attention_training")
    for text in chosen["further"]:
        if text in FURTHER:
            yield FURTHER[text].training_line("attention_training")
