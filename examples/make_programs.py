"""Write the small example programs of this folder as PTIR text.

    python examples/make_programs.py

Each is a shape of computation that the compiler knows well: a multilayer perceptron, a row softmax
with a layer norm, and one attention block that appends to a key-value cache.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import weft.ptir
from weft.ptir import Builder, Program, Value


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
    k_cache, v_cache = (b.param(dtype, whole) for _ in range(2))
    position = b.param("si32", [])

    start = b.concat(
        [b.full([2], 0, "si32"), b.reshape(position, [1]), b.full([1], 0, "si32")], axis=0
    )
    keys = b.dynamic_update_slice(k_cache, k, start, sizes=new)
    values = b.dynamic_update_slice(v_cache, v, start, sizes=new)
    mask = _position_mask(b, position, sequence, cache)
    mixed = b.attention(q, keys, values, mask=mask)
    return b.build(mixed, keys, values)


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


def main() -> None:
    folder = Path(__file__).parent
    for name, make in PROGRAMS.items():
        path = folder / f"{name}.ptir.txt"
        path.write_text(text_of(make()), encoding="utf-8")
        print(f"wrote {path}")


def text_of(program: Program) -> str:
    return str(weft.ptir.dumps(program, "text"))


if __name__ == "__main__":
    main()
