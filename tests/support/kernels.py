"""Kernels written by hand: what fusion is meant to produce, for the stages after it to be tested
on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.support.one_op import random_array
from weft.foundation.dtypes import BF16, F32, SI32, SI64, DType
from weft.foundation.index_expr import Expr, Guard, axis, constant, param
from weft.region.forms.find import with_forms
from weft.region.ir import (
    Kernel,
    KernelAxis,
    Materialize,
    Module,
    Output,
    Param,
    Pattern,
    Roles,
    Tensor,
)
from weft.region.writing.build import Body
from weft.region.writing.folds import online_softmax

Array = NDArray[Any]


class Rows(Body):
    """A body whose reads are plain: one axis of the kernel for each axis of the tensor."""

    def plain(self, tensor: str, dtype: DType, *axes: str) -> str:
        return self.read(tensor, dtype, identity(*axes))

    def gelu(self, x: str) -> str:
        return self.unary("gelu", x)


def body_over(axes: Sequence[KernelAxis]) -> Rows:
    return Rows([found.name for found in axes])


def module_of(*kernels: Kernel, tensors: Sequence[Tensor]) -> Module:
    """Kernels in order with all their tensors; inputs and outputs by role."""
    return with_forms(
        Module(
            {t.name: t for t in tensors},
            kernels,
            tuple(t.name for t in tensors if t.role in ("input", "param", "state")),
            tuple(t.name for t in tensors if t.role == "output"),
        )
    )


def arrays_for(module: Module, seed: int = 0) -> dict[str, Array]:
    """Random data for everything a module is given; integers are small positions."""
    found = {}
    for number, name in enumerate(module.inputs):
        tensor = module.tensors[name]
        if tensor.dtype.is_integer:
            found[name] = np.full(tensor.shape, 3, tensor.dtype.numpy)
        else:
            found[name] = random_array(tensor.dtype, tensor.shape, seed + number, scale=1.0)
    return found


def identity(*names: str) -> tuple[Expr, ...]:
    return tuple(axis(name) for name in names)


def linear(
    m: int = 12,
    n: int = 20,
    k: int = 16,
    *,
    dtype: DType = F32,
    activation: str = "gelu",
    batch: int = 0,
    name: str = "linear",
    tensors: tuple[str, str, str, str] = ("x", "w", "bias", "y"),
) -> Module:
    """`activation(x @ w + bias)` with f32 accumulation, as one contraction kernel."""
    lead = (KernelAxis("b", batch),) if batch else ()
    axes = (*lead, KernelAxis("m", m), KernelAxis("n", n), KernelAxis("k", k, reduce=True))
    out = (*(a.name for a in lead), "m", "n")
    body = body_over(axes)
    x_axes, w_axes = (*out[:-2], "m", "k"), (*out[:-2], "k", "n")
    lhs, rhs = body.plain(tensors[0], dtype, *x_axes), body.plain(tensors[1], dtype, *w_axes)
    wide = [lhs, rhs] if dtype is F32 else [body.cast(lhs, F32), body.cast(rhs, F32)]
    total = body.reduce("sum", body.binary("mul", *wide), ("k",), F32)
    bias = body.plain(tensors[2], F32, "n")
    result = body.binary("add", total, bias)
    match activation:
        case "gelu":
            result = body.gelu(result)
        case "none":
            pass
        case _:
            result = body.unary(activation, result)
    result = result if dtype is F32 else body.cast(result, dtype=dtype)
    lead_names = out[:-2]
    kernel = Kernel(
        name,
        Pattern.MATMUL,
        axes,
        tuple(body.lets),
        (Output(tensors[3], result, identity(*out), materialize=Materialize.DEFERRED),),
        roles=Roles(lead_names, ("m",), ("n",), ("k",), total, lhs, rhs),
    )
    sizes = {a.name: a.size for a in axes}
    return module_of(
        kernel,
        tensors=[
            Tensor(tensors[0], dtype, tuple(sizes[a] for a in x_axes), "input"),
            Tensor(tensors[1], dtype, tuple(sizes[a] for a in w_axes), "param"),
            Tensor(tensors[2], F32, (n,), "param"),
            Tensor(tensors[3], dtype, tuple(sizes[a] for a in out), "output"),
        ],
    )


def softmax(rows: int = 6, columns: int = 10, dtype: DType = F32) -> Module:
    """Softmax of each row: maximum, exponential, sum, division, in one kernel."""
    axes = (KernelAxis("i", rows), KernelAxis("j", columns))
    body = body_over(axes)
    x = body.plain("x", dtype, "i", "j")
    x = x if dtype is F32 else body.cast(x, F32)
    shifted = body.binary("sub", x, body.reduce("max", x, ("j",), F32))
    power = body.unary("exp", shifted)
    result = body.binary("div", power, body.reduce("sum", power, ("j",), F32))
    return _row_module("softmax", axes, body, result, dtype=dtype)


def softmax_fold(rows: int = 6, columns: int = 10) -> Module:
    """Softmax of each row with maximum and sum from one pass."""
    axes = (KernelAxis("i", rows), KernelAxis("j", columns))
    body = body_over(axes)
    x = body.plain("x", F32, "i", "j")
    top, total = online_softmax(body, x, ("j",))
    result = body.binary("div", body.unary("exp", body.binary("sub", x, top)), total)
    return _row_module("softmax_fold", axes, body, result, dtype=F32)


def layer_norm(rows: int = 6, columns: int = 10, dtype: DType = F32) -> Module:
    """Layer norm of each row in the two-pass form, with scale and shift."""
    axes = (KernelAxis("i", rows), KernelAxis("j", columns))
    body = body_over(axes)
    x = body.plain("x", dtype, "i", "j")
    x = x if dtype is F32 else body.cast(x, F32)
    count = body.const(1.0 / columns, F32)
    mean = body.binary("mul", body.reduce("sum", x, ("j",), F32), count)
    centred = body.binary("sub", x, mean)
    variance = body.reduce("sum", body.binary("mul", centred, centred), ("j",), F32)
    variance = body.binary("add", body.binary("mul", variance, count), body.const(1e-5, F32))
    normal = body.binary("mul", centred, body.unary("rsqrt", variance))
    scaled = body.binary("mul", normal, body.plain("gamma", F32, "j"))
    result = body.binary("add", scaled, body.plain("beta", F32, "j"))
    more = [Tensor("gamma", F32, (columns,), "param"), Tensor("beta", F32, (columns,), "param")]
    return _row_module("layer_norm", axes, body, result, dtype=dtype, more=more)


def norm_gradient(
    parts: int = 3, rows: int = 4, columns: int = 10, dtype: DType = F32, *, shift: bool = True
) -> Module:
    """The gradient of a norm's rows, and of its weights the sums of every part of the rows."""
    axes = (KernelAxis("p", parts), KernelAxis("i", rows), KernelAxis("j", columns))
    body = body_over(axes)
    place = (axis("p") * rows + axis("i"), axis("j"))
    x, grad = (body.read(name, dtype, place) for name in ("x", "g"))
    if dtype is not F32:
        x, grad = body.cast(x, F32), body.cast(grad, F32)
    x = body.binary("mul", x, body.read("scale", F32, place[:1]))
    slope = body.binary("mul", grad, body.plain("gamma", F32, "j"))
    along = body.reduce("sum", body.binary("mul", slope, x), ("j",), F32)
    result = body.binary("sub", slope, body.binary("mul", x, along))
    result = result if dtype is F32 else body.cast(result, dtype=dtype)
    outputs = [Output("y", result, place)]
    sums = [body.binary("mul", grad, x), *([grad] if shift else [])]
    more = [
        Tensor("gamma", F32, (columns,), "param"),
        Tensor("scale", F32, (parts * rows,), "input"),
    ]
    for number, value in enumerate(sums):
        total = body.reduce("sum", value, ("i",), F32)
        outputs.append(Output(f"s{number}", total, identity("p", "j")))
        more.append(Tensor(f"s{number}", F32, (parts, columns), "output"))
    kernel = Kernel("norm_gradient", Pattern.ROW, axes, tuple(body.lets), tuple(outputs))
    shape = (parts * rows, columns)
    given = [Tensor(name, dtype, shape, "input") for name in ("x", "g")]
    return module_of(kernel, tensors=[*given, *more, Tensor("y", dtype, shape, "output")])


def _row_module(
    name: str,
    axes: tuple[KernelAxis, ...],
    body: Body,
    result: str,
    *,
    dtype: DType,
    more: Sequence[Tensor] = (),
) -> Module:
    result = result if dtype is F32 else body.cast(result, dtype=dtype)
    kernel = Kernel(
        name, Pattern.ROW, axes, tuple(body.lets), (Output("y", result, identity("i", "j")),)
    )
    shape = tuple(a.size for a in axes)
    return module_of(
        kernel,
        tensors=[Tensor("x", dtype, shape, "input"), *more, Tensor("y", dtype, shape, "output")],
    )


def elementwise(rows: int = 6, columns: int = 10, dtype: DType = F32) -> Module:
    """`relu(a * b[j] + i)`, b along the columns only; and `a - 1` from the same kernel."""
    axes = (KernelAxis("i", rows), KernelAxis("j", columns))
    body = body_over(axes)
    a, b = body.plain("a", dtype, "i", "j"), body.plain("b", dtype, "j")
    number = body.index(axis("i"), dtype)
    result = body.unary("relu", body.binary("add", body.binary("mul", a, b), number))
    other = body.binary("sub", a, body.const(1.0, dtype))
    kernel = Kernel(
        "elementwise",
        Pattern.MAP,
        axes,
        tuple(body.lets),
        (Output("y", result, identity("i", "j")), Output("z", other, identity("i", "j"))),
    )
    shape = (rows, columns)
    return module_of(
        kernel,
        tensors=[
            Tensor("a", dtype, shape, "input"),
            Tensor("b", dtype, (columns,), "param"),
            Tensor("y", dtype, shape, "output"),
            Tensor("z", dtype, shape, "output"),
        ],
    )


def shifted_window(size: int = 9) -> Module:
    """A guarded read: `y[i] = x[i - 1] + x[i + 1]`, 0.5 beyond the ends; then reversed."""
    axes = (KernelAxis("i", size),)
    body = body_over(axes)
    i = axis("i")
    sides = [body.read("x", F32, (i + step,), (Guard(i + step, size),), 0.5) for step in (-1, 1)]
    result = body.binary("add", *sides)
    backwards = (constant(size - 1) - i,)
    kernel = Kernel(
        "window", Pattern.MAP, axes, tuple(body.lets), (Output("y", result, backwards),)
    )
    return module_of(
        kernel, tensors=[Tensor("x", F32, (size,), "input"), Tensor("y", F32, (size,), "output")]
    )


def cache_update(heads: int = 2, length: int = 8, new: int = 3, width: int = 4) -> Module:
    """`cache` with `new` rows replaced at a position known when it runs."""
    axes = (KernelAxis("h", heads), KernelAxis("s", new), KernelAxis("d", width))
    body = body_over(axes)
    value = body.plain("rows", F32, "h", "s", "d")
    kernel = Kernel(
        "cache_update",
        Pattern.MAP,
        axes,
        tuple(body.lets),
        (Output("new_cache", value, (axis("h"), axis("s") + param("p"), axis("d")), "cache"),),
        params=(Param("p", "position", 0, 0, length - new),),
    )
    shape = (heads, length, width)
    return module_of(
        kernel,
        tensors=[
            Tensor("cache", F32, shape, "state"),
            Tensor("rows", F32, (heads, new, width), "input"),
            Tensor("position", SI32, (), "input"),
            Tensor("new_cache", F32, shape, "output"),
        ],
    )


def causal_mask(rows: int = 7) -> Module:
    """Scores above the diagonal replaced by a low number."""
    axes = (KernelAxis("i", rows), KernelAxis("j", rows))
    body = body_over(axes)
    x = body.plain("x", BF16, "i", "j")
    row, column = (body.index(axis(name), SI64) for name in ("i", "j"))
    seen = body.binary("le", column, row)
    result = body.select(seen, x, body.const(-1e9, BF16))
    kernel = Kernel(
        "mask",
        Pattern.MAP,
        axes,
        tuple(body.lets),
        (Output("y", result, identity("i", "j")),),
    )
    shape = (rows, rows)
    return module_of(
        kernel, tensors=[Tensor("x", BF16, shape, "input"), Tensor("y", BF16, shape, "output")]
    )


def mlp(batch: int = 8, width: int = 16, hidden: int = 24) -> Module:
    """Two layers in a row: the second reads what the first wrote."""
    first = linear(batch, hidden, width, name="l1", tensors=("x", "w1", "b1", "h"))
    second = linear(
        batch, width, hidden, activation="none", name="l2", tensors=("h", "w2", "b2", "y")
    )
    tensors = {**first.tensors, **second.tensors}
    tensors["h"] = Tensor("h", F32, (batch, hidden), "internal")
    return module_of(*first.kernels, *second.kernels, tensors=list(tensors.values()))


ALL: dict[str, Callable[[], Module]] = {
    "linear": linear,
    "softmax": softmax,
    "softmax_fold": softmax_fold,
    "layer_norm": layer_norm,
    "elementwise": elementwise,
    "shifted_window": shifted_window,
    "cache_update": cache_update,
    "causal_mask": causal_mask,
    "mlp": mlp,
}
