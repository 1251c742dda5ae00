"""Lines of the GPU benchmark for products that are more than one: `products` of `gpu2.json`.

Several results of one product, products that share an operand, experts with unequal numbers of
rows, and weights of few bits. Peers are torch eager, torch.compile, and what a person would prepare
by hand: weights joined beforehand, torch's product of groups, weights packed for its own kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from benchmarks.gpu_line import Line, Tensor
from weft.ptir import Builder, Value

FAMILY: Final = "products"
Shape = tuple[int, int, int]
"""Rows, columns and summed axis."""
GELU: Final = ((4096, 4096, 4096), (16384, 3072, 768))
MASKED, GATED, HEADS = (8192, 8192, 2048), (4096, 14336, 4096), (16384, 768, 768)
FOUR_BITS: Final = ((1, 4096, 4096), (16, 14336, 4096), (1, 28672, 8192), (16, 28672, 8192))
EIGHT_BITS: Final = ((1, 4096, 4096), (64, 14336, 4096), (1, 14336, 4096), (16, 14336, 4096))
GROUP: Final = 128
"""Neighbours that share a scale of 4-bit weights."""
EXPERTS, EXPERT_ROWS = 64, 8192
"""Experts, and rows of all: on average one has 128."""
EXPERT: Final = (1408, 2048)
_PREPARED: Final[dict[Any, Any]] = {}


def prepared(made: Callable[..., Any], *tensors: Any) -> Any:
    """What a person computes of weights once, before they are used."""
    key = (made, *(x.data_ptr() for x in tensors))
    if key not in _PREPARED:
        _PREPARED.clear()
        _PREPARED[key] = made(*tensors)
    return _PREPARED[key]


def _times(b: Builder, x: Value, w: Value) -> Value:
    """`x @ w`, rounded as torch's is."""
    return b.dot_general(x, w, contract=([1], [0]), accum_dtype="f32", out_dtype=x.dtype)


def _line(
    name: str,
    shape: Shape,
    weft: Callable[..., Any],
    torch: Callable[..., Any],
    library: dict[str, Callable[..., Any]] | None = None,
    weights: int = 1,
) -> Line:
    rows, columns, depth = shape
    w = Tensor((depth, columns), "bf16", scale=depth**-0.5)
    inputs = (Tensor((rows, depth), "bf16"), *[w] * weights)
    flops = 2.0 * rows * columns * depth * weights
    case = f"{name} {'x'.join(map(str, shape))}"
    return Line(FAMILY, case, "bf16", inputs, weft, torch, library or {}, flops)


# -- several results, several products -----------------------------------------------------------


def _gelu(b: Builder, x: Value, w: Value) -> tuple[Value, Value]:
    y = _times(b, x, w)
    return b.gelu(y), y


def _torch_gelu(torch: Any, x: Any, w: Any) -> Any:
    y = x @ w
    # Both are results, so that a compiler cannot leave one out.
    return torch.nn.functional.gelu(y), y


def _relu(b: Builder, x: Value, w: Value) -> tuple[Value, Value]:
    y = _times(b, x, w)
    kept = b.compare(y, 0.0, "greater")
    return b.select(kept, y, 0.0), kept


def _torch_relu(torch: Any, x: Any, w: Any) -> Any:
    y = x @ w
    return torch.relu(y), y > 0


def _swiglu(b: Builder, x: Value, gate: Value, up: Value) -> Value:
    left, right = (b.cast(_times(b, x, w), "f32") for w in (gate, up))
    return b.cast(b.silu(left) * right, x.dtype)


def _torch_swiglu(torch: Any, x: Any, gate: Any, up: Any) -> Any:
    return torch.nn.functional.silu(x @ gate) * (x @ up)


def _joined(torch: Any, *weights: Any) -> Any:
    return prepared(partial(_beside, torch), *weights)


def _beside(torch: Any, *weights: Any) -> Any:
    return torch.cat(weights, 1)


def _joined_swiglu(torch: Any, x: Any, gate: Any, up: Any) -> Any:
    left, right = (x @ _joined(torch, gate, up)).chunk(2, 1)
    return torch.nn.functional.silu(left) * right


def _sums(b: Builder, x: Value, w: Value) -> tuple[Value, Value]:
    y = _times(b, x, w)
    return y, b.cast(b.reduce_sum(b.cast(y, "f32"), [0]), x.dtype)


def _torch_sums(torch: Any, x: Any, w: Any) -> Any:
    y = x @ w
    return y, y.sum(0)


def _several_lines() -> Iterator[Line]:
    for shape in GELU:
        yield _line("y, gelu(y)", shape, _gelu, _torch_gelu)
    yield _line("y, relu mask", MASKED, _relu, _torch_relu)
    library = {"joined": _joined_swiglu}
    yield _line("swiglu gate and up", GATED, _swiglu, _torch_swiglu, library, 2)
    yield _line(
        "q, k, v", HEADS,
        lambda b, x, *weights: tuple(_times(b, x, w) for w in weights),
        lambda t, x, *weights: tuple(x @ w for w in weights),
        {"joined": lambda t, x, *weights: x @ _joined(t, *weights)}, 3,
    )  # fmt: skip
    yield _line("y and column sums", GELU[1], _sums, _torch_sums)


# -- experts -------------------------------------------------------------------------------------


def _experts(b: Builder, x: Value, w: Value, ends: Value) -> Value:
    """Rows lie by expert."""
    made = b.emit("weft.grouped_matmul", x, w, ends)
    assert isinstance(made, Value)
    return made


def _torch_experts(torch: Any, x: Any, w: Any, ends: Any) -> Any:
    if x.dtype is torch.float32:
        counts = torch.diff(ends, prepend=ends.new_zeros(1)).tolist()
        return torch.cat([rows @ each for rows, each in zip(x.split(counts), w, strict=True)])
    return torch._grouped_mm(x, w, offs=ends)


def _experts_line() -> Line:
    columns, depth = EXPERT
    inputs = (
        Tensor((EXPERT_ROWS, depth), "bf16"),
        Tensor((EXPERTS, depth, columns), "bf16", scale=depth**-0.5),
        Tensor((EXPERTS,), "si32", below=EXPERT_ROWS, ends=True),
    )
    return Line(
        FAMILY, f"experts: {EXPERTS} groups, {EXPERT_ROWS} rows in all, {columns}x{depth}", "bf16",
        inputs, _experts, _torch_experts, {}, 2.0 * EXPERT_ROWS * columns * depth,
    )  # fmt: skip


# -- weights of few bits -------------------------------------------------------------------------


def _weights_of_4_bits(b: Builder, codes: Value, scales: Value, shape: Shape) -> Value:
    """Of a group, the first half lies in the low halves of its bytes, as `nn.Packed` has it."""
    _, columns, depth = shape
    groups = columns * depth // GROUP
    halves = [b.emit("bitwise_and", codes, 15), b.emit("shift_right", codes, 4)]
    steps = b.cast(b.concat(halves, axis=1), "si8") - 8
    found = b.emit("dequantize", steps, b.reshape(scales, [groups]), axis=0)
    assert isinstance(found, Value)
    return b.reshape(found, [columns, depth])


def _torch_weights_of_4_bits(torch: Any, codes: Any, scales: Any, shape: Shape) -> Any:
    _, columns, depth = shape
    steps = torch.cat([codes & 15, codes >> 4], 1).to(scales.dtype) - 8
    return (steps * scales.reshape(-1, 1)).reshape(columns, depth)


def _w4_line(shape: Shape) -> Line:
    rows, columns, depth = shape
    groups = depth // GROUP

    def weft(b: Builder, x: Value, codes: Value, scales: Value) -> Value:
        return _dense(b, x, _weights_of_4_bits(b, codes, scales, shape))

    def torch_side(torch: Any, x: Any, codes: Any, scales: Any) -> Any:
        return x @ _torch_weights_of_4_bits(torch, codes, scales, shape).t()

    def packed(torch: Any, x: Any, codes: Any, scales: Any) -> Any:
        weights, both = prepared(partial(_tiny, torch, shape), codes, scales)
        return torch.ops.aten._weight_int4pack_mm(x, weights, GROUP, both)

    inputs = (
        Tensor((rows, depth), "bf16"), Tensor((columns * groups, GROUP // 2), "ui8", below=256),
        Tensor((columns, groups), "bf16", scale=0.1 * depth**-0.5),
    )  # fmt: skip
    return _few_bits(f"w4a16 {rows}x{columns}x{depth}", shape, inputs, weft, torch_side,
                     {"int4pack": packed})  # fmt: skip


def _tiny(torch: Any, shape: Shape, codes: Any, scales: Any) -> Any:
    """Weights in the form of torch's own 4-bit product."""
    _, columns, depth = shape
    whole = torch.cat([codes & 15, codes >> 4], 1).reshape(columns, depth)
    bytes_ = (whole[:, ::2] << 4) | whole[:, 1::2]
    weights = torch.ops.aten._convert_weight_to_int4pack(bytes_.to(torch.uint8), 8)
    both = torch.stack([scales, torch.zeros_like(scales)], 2).transpose(0, 1).contiguous()
    return weights, both


def _w8_line(shape: Shape) -> Line:
    rows, columns, depth = shape

    def weft(b: Builder, x: Value, codes: Value, scales: Value) -> Value:
        found = b.emit("dequantize", codes, scales, axis=0)
        assert isinstance(found, Value)
        return _dense(b, x, found)

    def torch_side(torch: Any, x: Any, codes: Any, scales: Any) -> Any:
        return x @ (codes.to(x.dtype) * scales[:, None]).t()

    library = {
        "int8pack": lambda t, x, c, s: t.ops.aten._weight_int8pack_mm(x, c, s),
        "scaled after": lambda t, x, c, s: (x @ c.to(x.dtype).t()) * s,
    }
    inputs = (
        Tensor((rows, depth), "bf16"), Tensor((columns, depth), "si8", below=127),
        Tensor((columns,), "bf16", scale=0.01 * depth**-0.5),
    )  # fmt: skip
    name = f"w8a16 {rows}x{columns}x{depth}"
    return _few_bits(name, shape, inputs, weft, torch_side, library)


def _dense(b: Builder, x: Value, w: Value) -> Value:
    return b.dot_general(x, w, contract=([1], [1]), accum_dtype="f32", out_dtype=x.dtype)


def _few_bits(
    name: str,
    shape: Shape,
    inputs: tuple[Tensor, ...],
    weft: Callable[..., Any],
    torch: Callable[..., Any],
    library: dict[str, Callable[..., Any]],
) -> Line:
    rows, columns, depth = shape
    return Line(FAMILY, name, "bf16", inputs, weft, torch, library, 2.0 * rows * columns * depth)


def _bf16_line(shape: Shape) -> Line:
    """What weights of few bits are compared with: the product of whole ones."""
    rows, columns, depth = shape
    inputs = (Tensor((rows, depth), "bf16"), Tensor((columns, depth), "bf16", scale=depth**-0.5))
    name = f"bf16 weights {rows}x{columns}x{depth}"
    return _few_bits(name, shape, inputs, _dense, lambda t, x, w: x @ w.t(), {})


def products_lines() -> Iterator[Line]:
    yield from _several_lines()
    yield _experts_line()
    yield from map(_w4_line, FOUR_BITS)
    yield from map(_w8_line, EIGHT_BITS)
    yield from map(_bf16_line, dict.fromkeys((*FOUR_BITS, *EIGHT_BITS)))
