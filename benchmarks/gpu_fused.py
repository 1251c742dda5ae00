"""Products, norms and convolutions that could be one kernel, on a GPU beside torch.

    python -m benchmarks.gpu_fused [--programs softmax,norm] [--peers eager,compile] [--seconds N]

The last eight of the twelve programs of `fusion_programs` and kinds of attention, in 16 bits and at
sizes of a GPU. `bound` is what one kernel should take, in microseconds: torch's product alone where
what follows it could be hidden, as it was measured once, or an estimate from the rates of an H200.
Every candidate is recorded as a graph, and they are launched in turn, with the cache filled with
other data before each; results are checked first. `product` is torch's product alone measured in
the same way: a bound with the cache as it is for us.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import weft
from benchmarks.gpu_device import COMPILED, Machine, measure
from benchmarks.gpu_line import Line, Tensor
from benchmarks.needed import need_gpu
from weft import functional
from weft.ptir import Builder, Program, Value

EPSILON: Final = 1e-5
HEADS: Final = ((2, 8, 1024, 64),) * 3
"""Of queries, keys and values."""
NEAR: Final = 1.15
"""Times a bound that was measured that are near it."""
SECONDS: Final = 60.0
"""Seconds after which no program begins, where nothing else is said."""


@dataclass(frozen=True)
class Bounded(Line):
    """A line of which it is known what it should take."""

    bound: float = 0.0
    """Microseconds that one kernel should take."""
    allowed: float = NEAR
    """How many times the bound is near it."""

    @property
    def is_product(self) -> bool:
        """Whether the bound is the product of the first two tensors."""
        return self.inputs[1].shape[0] == self.inputs[0].shape[-1] and self.allowed == NEAR

    def product(self, machine: Machine) -> float:
        """Microseconds of torch's product alone."""
        x, w = (machine.tensor(found, number) for number, found in enumerate(self.inputs[:2]))
        call, _ = machine.recorded(lambda: x @ w)
        calls = {"product": call}
        times = machine.interleaved(calls, machine.passes_for(calls))
        return 1e6 * statistics.median(times["product"])


@dataclass(frozen=True)
class Traced(Bounded):
    """A line whose program is a function of tensors."""

    def program(self) -> Program:
        given = [weft.zeros(found.shape, dtype=found.dtype) for found in self.inputs]
        made: Program = weft.jit(self.weft).program(*given)
        return made


def line(
    name: str,
    shapes: tuple[tuple[int, ...], ...],
    ours: Callable[..., Any],
    theirs: Callable[..., Any],
    bound: float,
    *,
    allowed: float = NEAR,
    dtype: str = "bf16",
    deep: bool = True,
    made: type[Bounded] = Traced,
) -> Bounded:
    """A line of which the second tensor is a weight, scaled so that sums are of about 1, where it
    is `deep`."""
    first, *others = shapes
    summed = others[0][0] if len(others[0]) == 2 else 9 * others[0][1]
    scales = [summed**-0.5 if deep and len(shape) > 1 else 1.0 for shape in others]
    rest = (Tensor(shape, dtype, scale=s) for shape, s in zip(others, scales, strict=True))
    inputs = (Tensor(first, dtype), *rest)
    return made("fused", name, dtype, inputs, ours, theirs, bound=bound, allowed=allowed)


# -- programs, in Weft and in torch ----------------------------------------------------------------


def norm_product(x: Any, w: Any, g: Any) -> Any:
    wide = x.astype("f32")
    scale = 1 / weft.sqrt(weft.mean(wide * wide, axis=-1, keepdims=True) + EPSILON)
    return (wide * scale * g.astype("f32")).astype(x.dtype) @ w


def torch_norm_product(torch: Any, x: Any, w: Any, g: Any) -> Any:
    wide = x.float()
    scale = torch.rsqrt((wide * wide).mean(-1, keepdim=True) + EPSILON)
    return (wide * scale * g.float()).to(x.dtype) @ w


def product_norm(x: Any, w: Any, b: Any, r: Any) -> Any:
    y = x @ w + b + r
    return functional.layer_norm(y, y.shape[-1])


def torch_product_norm(torch: Any, x: Any, w: Any, b: Any, r: Any) -> Any:
    y = x @ w + b + r
    return torch.nn.functional.layer_norm(y, (y.shape[-1],))


def conv(x: Any, w: Any) -> Any:
    return functional.conv2d(x, w, padding=1)


def torch_conv(torch: Any, x: Any, w: Any) -> Any:
    return torch.nn.functional.conv2d(x, w, padding=1)


def two_results(x: Any, w: Any) -> Any:
    y = x @ w
    return y, functional.gelu(y)


def torch_two_results(torch: Any, x: Any, w: Any) -> Any:
    y = x @ w
    return y, torch.nn.functional.gelu(y)


def attention(q: Any, k: Any, v: Any) -> Any:
    return functional.attention(q, k, v)


def torch_attention(torch: Any, q: Any, k: Any, v: Any) -> Any:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v)


def divided_after(b: Builder, q: Value, k: Value, v: Value) -> Value:
    batch, rows = ([0, 1], [0, 1]), list(HEADS[0])
    s = b.dot_general(q, k, contract=([3], [3]), batch=batch, out_dtype="f32") * rows[-1] ** -0.5
    square = [*rows[:-1], rows[-2]]
    e = b.exp(s - b.broadcast_to(b.reduce_max(s, axes=[3], keepdims=True), square))
    total = b.broadcast_to(b.reduce_sum(e, axes=[3], keepdims=True), rows)
    mixed = b.dot_general(b.cast(e, q.dtype), v, contract=([3], [2]), batch=batch, out_dtype="f32")
    return b.cast(mixed / total, q.dtype)


def torch_divided_after(torch: Any, q: Any, k: Any, v: Any) -> Any:
    s = (q @ k.transpose(-1, -2)).float() * q.shape[-1] ** -0.5
    e = torch.exp(s - s.amax(-1, keepdim=True))
    return ((e.to(q.dtype) @ v).float() / e.sum(-1, keepdim=True)).to(q.dtype)


def torch_grouped_heads(torch: Any, q: Any, k: Any, v: Any) -> Any:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)


LINES: Final = (
    line("norm, product 4096^3", ((4096, 4096), (4096, 4096), (4096,)),
         norm_product, torch_norm_product, 171.6),
    line("product, softmax 8192x1024x128", ((8192, 1024), (1024, 128)),
         lambda x, w: functional.softmax(x @ w, axis=-1),
         lambda t, x, w: t.softmax(x @ w, -1), 5.7),
    line("product, layer norm 8192x1024x1024",
         ((8192, 1024), (1024, 1024), (1024,), (8192, 1024)),
         product_norm, torch_product_norm, 25.5),
    line("convolution, pooling 8x64x112^2", ((8, 64, 112, 112), (64, 64, 3, 3)),
         lambda x, w: functional.max_pool2d(functional.relu(conv(x, w)), 2),
         lambda t, x, w: t.nn.functional.max_pool2d(t.relu(torch_conv(t, x, w)), 2),
         12.0, allowed=1.5, dtype="f16"),
    line("two convolutions 8x32x112^2", ((8, 32, 112, 112), (32, 32, 3, 3), (32, 32, 3, 3)),
         lambda x, w, v: conv(functional.relu(conv(x, w)), v),
         lambda t, x, w, v: torch_conv(t, t.relu(torch_conv(t, x, w)), v),
         29.0, allowed=1.5, dtype="f16"),
    line("product, gelu, product 65536x64x256x64", ((65536, 64), (64, 256), (256, 64)),
         lambda x, w, v: functional.gelu(x @ w) @ v,
         lambda t, x, w, v: t.nn.functional.gelu(x @ w) @ v, 23.4, allowed=1.5),
    line("product, log-sum-exp 4096x1024x50304", ((4096, 1024), (1024, 50304)),
         lambda x, w: functional.logsumexp((x @ w).astype("f32"), axis=-1),
         lambda t, x, w: t.logsumexp((x @ w).float(), -1), 570.0),
    line("product and its gelu 4096^3", ((4096, 4096), (4096, 4096)),
         two_results, torch_two_results, 189.0, allowed=1.5),
    line("attention 2x8x1024x64", HEADS, attention, torch_attention, 14.3, deep=False),
    line("attention, divided after", HEADS, divided_after, torch_divided_after, 14.3,
         deep=False, made=Bounded),
    line("attention, heads in groups of 4", (HEADS[0], (2, 2, 1024, 64), (2, 2, 1024, 64)),
         attention, torch_grouped_heads, 14.3, deep=False),
)  # fmt: skip


def row(machine: Machine, found: Bounded, peers: set[str]) -> str:
    """A line of the table."""
    record = measure(machine, found, peers)
    times, notes = dict(record["us"]), record["notes"]
    ours = times.pop("weft", None)
    if ours is None:
        return f"| {found.name} | {notes.get('weft', 'not run')} | | | | | | | |"
    best = min(times, key=times.__getitem__, default="")
    compiled = times.get(COMPILED[0])
    over = ours / found.bound
    shown = [found.name, f"{ours:.1f}", f"{found.bound:.1f}", f"{over:.2f}"]
    shown += ["yes" if over <= found.allowed else f"no, over {found.allowed}"]
    shown += [f"{compiled:.1f}" if compiled else "", f"{best} {times[best]:.1f}" if best else ""]
    shown += [f"{times[best] / ours:.2f}" if best else ""]
    shown += [f"{found.product(machine):.1f}" if found.is_product else ""]
    return f"| {' | '.join(shown)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", default="", help="those whose names contain one of these")
    parser.add_argument("--peers", default="eager,compile")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="no line begins later")
    options = parser.parse_args()
    need_gpu()
    ends = time.monotonic() + options.seconds
    machine = Machine()
    heads = ["program", "weft µs", "bound", "ours / bound", "near", "torch.compile", "best peer"]
    print(f"| {' | '.join([*heads, 'ratio', 'product'])} |")
    print("|---|---:|---:|---:|---|---:|---|---:|---:|")
    parts = options.programs.split(",")
    for found in LINES:
        if not any(part in found.name for part in parts):
            continue
        if time.monotonic() > ends:
            print(f"| {found.name} | no time | | | | | | | |", flush=True)
        else:
            print(row(machine, found, set(options.peers.split(","))), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
