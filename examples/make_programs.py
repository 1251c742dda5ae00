"""Write the small example programs of this folder as PTIR text.

    python examples/make_programs.py

Each is a shape of computation that the compiler knows well: a multilayer perceptron, a row softmax
with a layer norm, and one attention block that appends to a key-value cache. Twelve such blocks on
top of each other are what compile times are measured with.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import weft.ptir
from weft.ptir import Builder, Program, Value
from weft.ptir.types import static


def mlp(
    batch: int | str = 32, width: int = 64, hidden: int = 128, out: int = 32, dtype: str = "f32"
) -> Program:
    """Two dense layers with biases and a gelu between them."""
    b = Builder("mlp")
    x = b.param(dtype, [batch, width])
    first, first_bias = b.param(dtype, [width, hidden]), b.param(dtype, [hidden])
    second, second_bias = b.param(dtype, [hidden, out]), b.param(dtype, [out])
    middle = b.gelu(_dense(b, x, first, first_bias))
    return b.build(_dense(b, middle, second, second_bias))


def mlp_bf16() -> Program:
    """The same in bf16, in sizes that suit matrix instructions: on a GPU its plans have tiles."""
    return mlp(batch=256, width=256, hidden=512, out=256, dtype="bf16")


def _dense(b: Builder, x: Value, weight: Value, bias: Value) -> Value:
    y = b.matmul(x, weight)
    return y + b.broadcast_to(bias, y.shape)


def softmax_layernorm(rows: int = 24, columns: int = 48, dtype: str = "f32") -> Program:
    """A softmax of each row, and a layer norm of each row of it."""
    b = Builder("softmax_layernorm")
    x = b.param(dtype, [rows, columns])
    gamma, beta = b.param(dtype, [columns]), b.param(dtype, [columns])
    weights = b.softmax(x)
    normal = b.layer_norm(weights, gamma, beta, epsilon=1e-5, feature_axis=-1)
    return b.build(weights, normal)


def attention(
    heads: int = 2, sequence: int = 16, depth: int = 8, cache: int = 32, dtype: str = "f32"
) -> Program:
    """Causal attention of a piece of a sequence over everything so far.

    Inputs: q, k and v of the new piece, both caches, and the position at which the piece begins.
    Results: the attended values and the two caches with the piece written into them.
    """
    b = Builder("attention")
    new, whole = [1, heads, sequence, depth], [1, heads, cache, depth]
    q, k, v = (b.param(dtype, new) for _ in range(3))
    caches = b.param(dtype, whole), b.param(dtype, whole)
    position = b.param("si32", [])
    return b.build(*_cached_attention(b, (q, k, v), caches, position))


def attention_stack(
    blocks: int = 12, heads: int = 2, sequence: int = 16, depth: int = 8, cache: int = 32
) -> Program:
    """Attention blocks on top of each other, each with a cache: what a decoder does with a piece.

    Inputs: the piece, its position, and then of every block both caches, the weight that makes q, k
    and v of its input, and the weight that its result is multiplied with before it is added.
    Results: the last block's, and all caches with the piece written into them.
    """
    b = Builder("attention_stack")
    width = heads * depth
    x = b.param("f32", [sequence, width])
    position = b.param("si32", [])
    shapes = [[1, heads, cache, depth]] * 2 + [[width, 3 * width], [width, width]]
    layers = [[b.param("f32", shape) for shape in shapes] for _ in range(blocks)]
    updated: list[Value] = []
    for k_cache, v_cache, attend, project in layers:
        parts = b.reshape(b.matmul(x, attend), [1, sequence, 3, heads, depth])
        piece = _unstack(b, b.transpose(parts, [2, 0, 3, 1, 4]))
        mixed, *pair = _cached_attention(b, piece, (k_cache, v_cache), position)
        rows = b.reshape(b.transpose(mixed, [0, 2, 1, 3]), [sequence, width])
        x = x + b.matmul(rows, project)
        updated += pair
    return b.build(x, *updated)


def _unstack(b: Builder, parts: Value) -> tuple[Value, ...]:
    """The parts along the first axis."""
    count, *shape = map(static, parts.shape)
    starts = ([number, *(0 for _ in shape)] for number in range(count))
    return tuple(b.reshape(b.slice(parts, start, [1, *shape]), shape) for start in starts)


def _cached_attention(
    b: Builder, piece: tuple[Value, ...], caches: tuple[Value, ...], position: Value
) -> tuple[Value, Value, Value]:
    """A piece's attended values, and the caches with its keys and values written into them."""
    q, k, v = piece
    rows, columns = static(k.shape[2]), static(caches[0].shape[2])
    start = b.concat(
        [b.full([2], 0, "si32"), b.reshape(position, [1]), b.full([1], 0, "si32")], axis=0
    )
    keys = b.dynamic_update_slice(caches[0], k, start, sizes=k.shape)
    values = b.dynamic_update_slice(caches[1], v, start, sizes=v.shape)
    mask = _position_mask(b, position, rows, columns)
    return b.attention(q, keys, values, mask=mask), keys, values


def _position_mask(b: Builder, position: Value, rows: int, columns: int) -> Value:
    """0 where row i, which stands at `position + i`, may see the column; -Inf elsewhere."""
    shape = [rows, columns]
    row = b.iota("si32", shape, 0) + b.broadcast_to(position, shape)
    seen = b.compare(b.iota("si32", shape, 1), row, "less_equal")
    zero, hidden = b.full(shape, 0.0, "f32"), b.full(shape, float("-inf"), "f32")
    return b.select(seen, zero, hidden)


PROGRAMS: dict[str, Callable[[], Program]] = {
    "mlp": mlp,
    "softmax_layernorm": softmax_layernorm,
    "attention": attention,
}
STACKS: dict[str, Callable[[], Program]] = {"attention_12_blocks": attention_stack}
"""Programs of equal parts, for what should not take longer the more parts there are."""
LARGER: dict[str, Callable[[], Program]] = {"mlp_bf16": mlp_bf16}
"""Programs in sizes that a GPU needs to show what it can."""
WRITTEN = PROGRAMS | STACKS | LARGER


def main() -> None:
    folder = Path(__file__).parent
    for name, make in WRITTEN.items():
        path = folder / f"{name}.ptir.txt"
        path.write_text(text_of(make()), encoding="utf-8")
        print(f"wrote {path}")


def text_of(program: Program) -> str:
    return str(weft.ptir.dumps(program, "text"))


if __name__ == "__main__":
    main()
