"""Movement, indexing, contraction, reductions, order, windows, norms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.derivatives.case import between, case, complex_normal, distinct, normal, whole

# -- movement ------------------------------------------------------------------------------------

case("reshape", lambda b, x: b.reshape(x, [4, 3]), normal(2, 6), torch=lambda t, x: x.reshape(4, 3))
case("reshape", lambda b, x: b.reshape(x, []), normal(1, 1), label="scalar")
case("reshape", lambda b, x: b.reshape(x, [12]), normal(2, 1, 3, 2), label="flat",
     torch=lambda t, x: x.reshape(12))  # fmt: skip
for order in ([0], [1, 0], [2, 0, 1], [3, 1, 0, 2], [0, 2, 3, 1]):
    case("transpose", lambda b, x, o=order: b.transpose(x, o), normal(*(2, 3, 1, 4)[: len(order)]),
         label="".join(map(str, order)), torch=lambda t, x, o=order: x.permute(o))  # fmt: skip
for name, source, target in [
    ("rows", (3,), (2, 3)),
    ("columns", (2, 1), (2, 3)),
    ("scalar", (), (2, 3)),
    ("both", (1, 3, 1), (4, 2, 3, 5)),
    ("same", (2, 3), (2, 3)),
    ("none", (1, 3), (0, 3)),
]:
    case("broadcast_to", lambda b, x, d=target: b.broadcast_to(x, d), normal(*source), label=name,
         torch=lambda t, x, d=target: t.broadcast_to(x, d))  # fmt: skip
case("slice", lambda b, x: b.slice(x, [1, 0], [2, 3]), normal(4, 3),
     torch=lambda t, x: x[1:3])  # fmt: skip
case("slice", lambda b, x: b.slice(x, [1, 1], [0, 1]), normal(4, 3), label="nothing")
case("slice", lambda b, x: b.slice(x, [2], [3]), normal(5), label="line",
     torch=lambda t, x: x[2:5])  # fmt: skip
case("slice", lambda b, x: b.slice(x, [0, 0, 1, 2], [2, 1, 2, 1]), normal(2, 1, 4, 3),
     label="several-axes", torch=lambda t, x: x[:, :, 1:3, 2:])  # fmt: skip
case("concat", lambda b, x, y: b.concat([x, y, x], axis=1), normal(2, 1), normal(2, 3),
     torch=lambda t, x, y: t.cat([x, y, x], 1))  # fmt: skip
case("concat", lambda b, x, y: b.concat([x, y], axis=-2), normal(2, 1), normal(0, 1), label="empty")
case("concat", lambda b, x, y: b.concat([x, y], axis=0), normal(3), normal(1), label="line",
     torch=lambda t, x, y: t.cat([x, y]))  # fmt: skip
case("concat", lambda b, x, y: b.concat([x, y], axis=2), normal(2, 1, 3, 2), normal(2, 1, 1, 2),
     label="images", torch=lambda t, x, y: t.cat([x, y], 2))  # fmt: skip
case("pad", lambda b, x: b.emit("pad", x, low=[1, 0], high=[0, 2], interior=[0, 0], pad_value=1.5),
     normal(2, 3), label="around",
     torch=lambda t, x: t.nn.functional.pad(x, (0, 2, 1, 0), value=1.5))  # fmt: skip
case("pad", lambda b, x: b.emit("pad", x, low=[1, 2], high=[2, 0], interior=[2, 1], pad_value=0.0),
     normal(2, 3), label="between")  # fmt: skip
case("pad", lambda b, x: b.emit("pad", x, low=[1], high=[1], interior=[3], pad_value=0.0),
     normal(0), label="empty")  # fmt: skip
case("pad", lambda b, x: b.emit("pad", x, low=[0], high=[0], interior=[3], pad_value=0.0),
     complex_normal(3), label="complex")  # fmt: skip
case("tile", lambda b, x: b.emit("tile", x, repeats=[2, 1, 3]), normal(2, 3, 1),
     torch=lambda t, x: x.tile(2, 1, 3))  # fmt: skip
case("tile", lambda b, x: b.emit("tile", x, repeats=[0]), normal(2), label="none")
case("tile", lambda b, x: b.emit("tile", x, repeats=[1, 3, 2, 1]), normal(2, 1, 2, 3),
     label="images", torch=lambda t, x: x.tile(1, 3, 2, 1))  # fmt: skip

# -- indexing ------------------------------------------------------------------------------------

case("take", lambda b, x, i: b.take(x, i), normal(4, 3), whole(4, 2, 3),
     torch=lambda t, x, i: x[i])  # fmt: skip
case("take", lambda b, x, i: b.take(x, i), normal(4), whole(4), label="scalar")
for start in (0, 1):
    case("take", lambda b, x, s=start: b.take(x, b.iota("si64", [2], 0) + s), normal(4, 3),
         label=f"window at {start}", torch=lambda t, x, s=start: x[s : s + 2])  # fmt: skip
for start in (2, 3):
    case("take", lambda b, x, s=start: b.take(x, s - b.iota("si64", [3], 0)), normal(4, 3),
         label=f"backwards from {start}",
         torch=lambda t, x, s=start: x[s - 2 : s + 1].flip(0))  # fmt: skip
case("take", lambda b, x, i: b.take(x, i), normal(3, 1, 2, 2), whole(3, 4), label="images",
     torch=lambda t, x, i: x[i])  # fmt: skip
for axis, size, source in [(0, 6, (4,)), (1, 5, (2, 4)), (1, 3, (2, 1, 3)), (2, 2, (2, 1, 4, 3))]:
    target = (*source[:axis], size, *source[axis + 1 :])
    case("gather", lambda b, x, i, a=axis: b.gather(x, i, axis=a), normal(*source),
         whole(source[axis], *target), label=f"rank{len(source)}",
         torch=lambda t, x, i, a=axis: t.gather(x, a, i))  # fmt: skip


def _scatter(**attrs: Any) -> Any:
    def build(b: Any, x: Any, i: Any, u: Any) -> Any:
        return b.emit("scatter_add", x, i, u, **attrs)

    return build


case("scatter_add", _scatter(update_window_dims=[1], inserted_window_dims=[0],
     scatter_dims_to_operand_dims=[0]), normal(4, 3), whole(4, 5), normal(5, 3),
     label="rows", torch=lambda t, x, i, u: x.index_add(0, i, u))  # fmt: skip
case("scatter_add", _scatter(update_window_dims=[], inserted_window_dims=[0, 1],
     scatter_dims_to_operand_dims=[0, 1], index_vector_dim=1), normal(4, 3), whole(3, 5, 2),
     normal(5), label="points")  # fmt: skip
case("scatter_add", _scatter(update_window_dims=[0, 2], inserted_window_dims=[],
     scatter_dims_to_operand_dims=[1]), normal(4, 6), whole(4, 3), normal(2, 3, 2),
     label="windows")  # fmt: skip
case("scatter_add", _scatter(update_window_dims=[0], inserted_window_dims=[1],
     scatter_dims_to_operand_dims=[2, 1], index_vector_dim=0), normal(3, 4, 4), whole(4, 2, 2),
     normal(2, 2), label="swapped")  # fmt: skip
_IN_TORCH: dict[str, Any] = {
    "add": lambda t, x, i, u: t.scatter_reduce(x, 1, i, u, "sum"),
    "max": lambda t, x, i, u: t.scatter_reduce(x, 1, i, u, "amax"),
    "min": lambda t, x, i, u: t.scatter_reduce(x, 1, i, u, "amin"),
}
for fn in ("add", "max", "min", "replace"):
    case("scatter_reduce",
         lambda b, x, i, u, fn=fn: b.emit("scatter_reduce", x, i, u, axis=1, reduce=fn),
         distinct(2, 4), whole(4, 2, 6), distinct(2, 6, seed=1) + 0.13, label=fn,
         torch=_IN_TORCH.get(fn))  # fmt: skip


def _block(x: Any, starts: Any, sizes: Sequence[int]) -> tuple[slice, ...]:
    """The elements of a dynamic slice, which begins where it fits."""
    wanted = zip(x.shape, starts.tolist(), sizes, strict=True)
    firsts = (min(max(start, 0), extent - size) for extent, start, size in wanted)
    return tuple(slice(first, first + size) for first, size in zip(firsts, sizes, strict=True))


def _updated(x: Any, u: Any, starts: Any) -> Any:
    result = x.clone()
    result[_block(x, starts, u.shape)] = u
    return result


BLOCKS: list[tuple[str, Sequence[int], Sequence[int], Sequence[int]]] = [
    ("inside", (4, 5), (1, 2), (2, 3)),
    ("clamped", (4, 5), (9, -3), (2, 3)),
    ("line", (6,), (2,), (3,)),
    ("point", (3,), (1,), (1,)),
    ("images", (2, 1, 4, 3), (0, 0, 3, 1), (2, 1, 2, 1)),
]
for label, dims, begin, sizes in BLOCKS:
    case("dynamic_slice", lambda b, x, i, s=sizes: b.dynamic_slice(x, i, sizes=s), normal(*dims),
         np.array(begin), label=label,
         torch=lambda t, x, i, s=sizes: x[_block(x, i, s)])  # fmt: skip
    case("dynamic_update_slice",
         lambda b, x, u, i, s=sizes: b.dynamic_update_slice(x, u, i, sizes=s),
         normal(*dims), normal(*sizes, seed=1), np.array(begin), label=label,
         torch=lambda t, x, u, i: _updated(x, u, i))  # fmt: skip

# -- contraction ---------------------------------------------------------------------------------


def _dot(batch: Any, contract: Any, **attrs: Any) -> Any:
    def build(b: Any, x: Any, y: Any) -> Any:
        return b.dot_general(x, y, batch=batch, contract=contract, **attrs)

    return build


DOTS: list[tuple[str, tuple[Sequence[int], Sequence[int]], Any, Any, Any]] = [
    ("matrix", ((), ()), ([1], [0]), (2, 3), (3, 4)),
    ("transposed", ((), ()), ([0], [1]), (3, 2), (4, 3)),
    ("batched", ([0], [0]), ([2], [1]), (2, 3, 4), (2, 4, 5)),
    ("crossed", ([1, 3], [2, 0]), ([0, 2], [3, 1]), (2, 3, 4, 5), (5, 4, 3, 2)),
    ("outer", ((), ()), ([], []), (2, 3), (4,)),
    ("inner", ((), ()), ([0, 1], [1, 0]), (2, 3), (3, 2)),
    ("only-batch", ([0, 1], [1, 0]), ([], []), (2, 3), (3, 2)),
    ("vectors", ((), ()), ([0], [0]), (3,), (3,)),
    ("empty", ((), ()), ([1], [0]), (2, 0), (0, 3)),
]
for label, batch, contract, left, right in DOTS:
    case("dot_general", _dot(batch, contract), normal(*left), normal(*right, seed=1), label=label)
case("dot_general", _dot(((), ()), ([1], [0])), complex_normal(2, 3), complex_normal(3, 2),
     label="complex", torch=lambda t, x, y: x @ y)  # fmt: skip
case("dot_general", _dot(((), ()), ([1], [0]), out_dtype="cf64"), normal(2, 3), normal(3, 2),
     label="real-to-complex")  # fmt: skip
case("dot_general", _dot(((), ()), ([1], [0]), out_dtype="f64"), complex_normal(2, 3),
     complex_normal(3, 2), label="complex-to-real")  # fmt: skip
case("dot_general", lambda b, x: b.dot_general(x, x, contract=([1], [1])), normal(3, 2),
     label="square")  # fmt: skip

# -- reductions ----------------------------------------------------------------------------------

for axes, keep in [([0], False), ([0, 2], True), ([], False), ([1, 2, 0], False)]:
    name = f"{axes}{'-kept' if keep else ''}".replace(" ", "")
    for kind in ("sum", "max", "min", "prod"):
        case(f"reduce_{kind}",
             lambda b, x, a=axes, k=keep, n=kind: b.emit(f"reduce_{n}", x, axes=a, keepdims=k),
             distinct(2, 3, 2), label=name)  # fmt: skip
case("reduce_sum", lambda b, x: b.reduce_sum(x, [0]), complex_normal(3, 2), label="complex",
     torch=lambda t, x: x.sum(0))  # fmt: skip
case("reduce_max", lambda b, x: b.reduce_max(x, [1]), distinct(3, 4), label="columns",
     torch=lambda t, x: t.amax(x, 1))  # fmt: skip
case("reduce_min", lambda b, x: b.reduce_min(x, [1]), distinct(3, 4), label="columns",
     torch=lambda t, x: t.amin(x, 1))  # fmt: skip
case("reduce_prod", lambda b, x: b.emit("reduce_prod", x, axes=[0]), complex_normal(3, 2),
     label="complex")  # fmt: skip
case("reduce_prod", lambda b, x: b.emit("reduce_prod", x, axes=[0, 1]),
     np.array([[1.5, 0.0], [2.0, -1.0]]), label="a-zero",
     torch=lambda t, x: x.reshape(-1).prod())  # fmt: skip
case("reduce_prod", lambda b, x: b.emit("reduce_prod", x, axes=[0]),
     np.array([1.5, 0.0, 2.0, 0.0]), label="two-zeros")  # fmt: skip
case("reduce_prod", lambda b, x: b.emit("reduce_prod", x, axes=[0]), normal(0, 2), label="empty")
for reverse in (False, True):
    for kind in ("sum", "prod", "max", "min"):
        case(f"cumulative_{kind}",
             lambda b, x, n=kind, r=reverse: b.emit(f"cumulative_{n}", x, axis=-2, reverse=r),
             distinct(3, 5, 2) * 0.2, label="reverse" if reverse else "")  # fmt: skip
case("cumulative_prod", lambda b, x: b.emit("cumulative_prod", x, axis=0),
     np.array([1.5, 0.0, 2.0, 0.0, 3.0, -1.0]), label="zeros",
     torch=lambda t, x: t.cumprod(x, 0))  # fmt: skip
case("cumulative_max", lambda b, x: b.emit("cumulative_max", x, axis=1), distinct(3, 4),
     label="columns", torch=lambda t, x: t.cummax(x, 1).values)  # fmt: skip
case("cumulative_min", lambda b, x: b.emit("cumulative_min", x, axis=1), distinct(3, 4),
     label="columns", torch=lambda t, x: t.cummin(x, 1).values)  # fmt: skip
case("cumulative_prod", lambda b, x: b.emit("cumulative_prod", x, axis=0), complex_normal(5),
     label="complex")  # fmt: skip
case("cumulative_sum", lambda b, x: b.emit("cumulative_sum", x, axis=0), complex_normal(4),
     label="complex", torch=lambda t, x: t.cumsum(x, 0))  # fmt: skip
SEGMENTS = {"num_segments": 4, "indices_are_sorted": False, "unique": False}
for kind, reduced in (("sum", "sum"), ("max", "amax")):
    for data in ((6,), (6, 2), (6, 1, 3), (6, 2, 1, 2)):
        case(f"segment_{kind}",
             lambda b, x, i, n=kind: b.emit(f"segment_{n}", x, i, **SEGMENTS),
             distinct(*data), np.array([0, 2, 2, 0, 3, 2]), label=f"rank{len(data)}")  # fmt: skip
    case(f"segment_{kind}",
         lambda b, x, i, n=kind: b.emit(f"segment_{n}", x, i, **SEGMENTS),
         distinct(7, 2), np.array([0, 3, 1, 2, 0, 3, 3]), label="all",
         torch=lambda t, x, i, r=reduced: t.zeros(4, 2, dtype=x.dtype).scatter_reduce(
             0, i[:, None].expand(7, 2), x, r, include_self=False))  # fmt: skip

# -- order ---------------------------------------------------------------------------------------

for down in (False, True):
    case("sort", lambda b, x, d=down: b.emit("sort", x, axis=0, descending=d), distinct(5, 2),
         label="down" if down else "up",
         torch=lambda t, x, d=down: t.sort(x, 0, descending=d).values)  # fmt: skip
    case("top_k",
         lambda b, x, d=down: b.emit("top_k", x, k=2, axis=-1, largest=d, indices_dtype="si64")[0],
         distinct(3, 4), label="largest" if down else "smallest",
         torch=lambda t, x, d=down: t.topk(x, 2, largest=d).values)  # fmt: skip
for ordered, along in (((5,), 0), ((2, 1, 4, 3), 2), ((3, 1), 1)):
    case("sort", lambda b, x, a=along: b.emit("sort", x, axis=a, descending=False),
         distinct(*ordered), label=f"rank{len(ordered)}",
         torch=lambda t, x, a=along: t.sort(x, a).values)  # fmt: skip
    case("top_k",
         lambda b, x, a=along: b.emit("top_k", x, k=1, axis=a, largest=True,
                                      indices_dtype="si64")[0],
         distinct(*ordered), label=f"rank{len(ordered)}",
         torch=lambda t, x, a=along: t.topk(x, 1, a).values)  # fmt: skip

# -- windows -------------------------------------------------------------------------------------


def _patches(window: Any, strides: Any, dilation: Any, padding: Any) -> Any:
    def build(b: Any, x: Any) -> Any:
        return b.emit("extract_patches", x, window=window, strides=strides, dilation=dilation,
                      padding=padding, pad_value=0.0)  # fmt: skip

    return build


def _unfolded(window: Any, strides: Any, dilation: Any, padding: Any) -> Any:
    """By torch, whose windows have the channels outside and come in one row."""
    (top, bottom), (left, right) = padding

    def build(t: Any, x: Any) -> Any:
        around = t.nn.functional.pad(x, (0, 0, left, right, top, bottom))
        images, height, width, depth = around.shape
        found = t.nn.functional.unfold(
            around.permute(0, 3, 1, 2), window, dilation=dilation, stride=strides
        )
        places = [
            (size - (n - 1) * d - 1) // step + 1
            for size, n, d, step in zip((height, width), window, dilation, strides, strict=True)
        ]
        apart = found.reshape(images, depth, -1, *places)
        return apart.permute(0, 3, 4, 2, 1).reshape(images, *places, -1)

    return build


case("extract_patches", _patches([3], [1], [1], [(1, 1)]), normal(2, 5, 3), label="one-axis")
TWO_AXES: tuple[Any, ...] = ([2, 3], [2, 1], [1, 2], [(1, 0), (0, 2)])
case("extract_patches", _patches(*TWO_AXES), normal(2, 5, 6, 2), label="two-axes",
     torch=_unfolded(*TWO_AXES))  # fmt: skip
APART: tuple[Any, ...] = ([2, 2], [2, 2], [1, 1], [(0, 0), (0, 0)])
case("extract_patches", _patches(*APART), normal(1, 4, 5, 1), label="apart",
     torch=_unfolded(*APART))  # fmt: skip
case("extract_patches", _patches([], [], [], []), normal(2, 3), label="no-axes")


def _windows(kind: str, window: Any, strides: Any, padding: Any, base: Any, dilation: Any) -> Any:
    def build(b: Any, x: Any) -> Any:
        return b.emit("reduce_window", x, window_dims=window, strides=strides, padding=padding,
                      base_dilation=base, window_dilation=dilation, reduce=kind)  # fmt: skip

    return build


WINDOWS: list[tuple[str, Any]] = [
    ("pool", ([2, 2], [2, 2], [(0, 0), (0, 0)], [1, 1], [1, 1])),
    ("slide", ([3, 2], [1, 1], [(1, 1), (0, 1)], [1, 1], [1, 1])),
    ("dilated", ([2, 3], [2, 1], [(0, 1), (2, 0)], [1, 2], [2, 1])),
    ("rest", ([2, 1], [3, 2], [(0, 0), (0, 0)], [2, 1], [1, 1])),
    ("far", ([2, 1], [1, 1], [(3, 4), (0, 0)], [1, 1], [1, 1])),
]
for label, attrs in WINDOWS:
    for kind in ("sum", "max", "min"):
        case("reduce_window", _windows(kind, *attrs), distinct(5, 4), label=f"{kind}-{label}")
case("reduce_window", _windows("sum", *WINDOWS[2][1]), complex_normal(5, 4), label="sum-complex")

case("reduce_window", _windows("max", [1, 1, 2, 2], [1, 1, 2, 2], [(0, 0)] * 4, [1] * 4, [1] * 4),
     distinct(1, 2, 4, 6), label="max-images",
     torch=lambda t, x: t.nn.functional.max_pool2d(x, 2))  # fmt: skip
case("reduce_window", _windows("sum", [1, 1, 2, 3], [1, 1, 1, 2], [(0, 0)] * 4, [1] * 4, [1] * 4),
     distinct(1, 2, 4, 7), label="sum-images",
     torch=lambda t, x: t.nn.functional.avg_pool2d(x, (2, 3), (1, 2)) * 6)  # fmt: skip

# -- norms ---------------------------------------------------------------------------------------

for axis in (-1, 0):
    case("layer_norm",
         lambda b, x, g, s, a=axis: b.layer_norm(x, g, s, epsilon=1e-3, feature_axis=a),
         normal(3, 3, 3), between(0.5, 2, 3), normal(3), label=f"axis{axis}",
         torch=(lambda t, x, g, s: t.nn.functional.layer_norm(x, (3,), g, s, 1e-3))
         if axis == -1 else None)  # fmt: skip
for features in ((4,), (2, 1, 3, 5)):
    count = features[-1]
    case("layer_norm", lambda b, x, g, s: b.layer_norm(x, g, s, epsilon=1e-3, feature_axis=-1),
         normal(*features), between(0.5, 2, count), normal(count), label=f"rank{len(features)}",
         torch=lambda t, x, g, s: t.nn.functional.layer_norm(x, g.shape, g, s, 1e-3))  # fmt: skip
