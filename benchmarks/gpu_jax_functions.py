"""The lines of the GPU benchmark as JAX functions, which take the module first.

They are what a user of JAX would write; narrow floats are computed in f32 between loading and
storing, as everywhere in the benchmark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from benchmarks.gpu_gpt2 import LAYER, SHAPE
from benchmarks.gpu_line import Line
from benchmarks.gpu_lines import EPSILON

Function = Callable[..., Any]


def function_of(line: Line) -> Function | None:
    """What jax.jit is given for a line; None where its family is not written in JAX."""
    find = _FAMILIES.get(line.family)
    return find(line) if find else None


def _wide(jax: Any, x: Any) -> Any:
    return x.astype(jax.numpy.float32)


# -- matrix products -----------------------------------------------------------------------------


def _gemm(line: Line) -> Function:
    layout = line.name.rpartition(" ")[2]
    batch = tuple(range(len(line.inputs[0].shape) - 2))
    left = len(batch) + (1 if layout[0] == "N" else 0)
    right = len(batch) + (0 if layout[1] == "N" else 1)
    axes = (((left,), (right,)), (batch, batch))
    return lambda jax, x, w: jax.lax.dot_general(x, w, axes)


def _product(jax: Any, x: Any, w: Any) -> Any:
    """`x @ w.T`, its sums not yet rounded."""
    axes = (((1,), (1,)), ((), ()))
    return jax.lax.dot_general(x, w, axes, preferred_element_type=jax.numpy.float32)


_ACTIVATIONS: Final[Mapping[str, Function]] = {
    "bias": lambda jax, x: x,
    "bias+relu": lambda jax, x: jax.nn.relu(x),
    "bias+gelu_tanh": lambda jax, x: jax.nn.gelu(x, approximate=True),
    "bias+gelu_erf": lambda jax, x: jax.nn.gelu(x, approximate=False),
    "bias+silu": lambda jax, x: jax.nn.silu(x),
    "residual": lambda jax, x: x,
}
"""What follows the sum of the product and a vector or a matrix."""


def _epilogue(line: Line) -> Function:
    name = line.name.rpartition(" ")[2]
    if name == "scale+cast_f32":
        return lambda jax, x, w: _product(jax, x, w) * 0.125
    activation = _ACTIVATIONS[name]

    def dense(jax: Any, x: Any, w: Any, added: Any) -> Any:
        return activation(jax, _product(jax, x, w) + _wide(jax, added)).astype(x.dtype)

    return dense


# -- rows and maps -------------------------------------------------------------------------------


def _layer_norm(jax: Any, x: Any, gamma: Any, beta: Any) -> Any:
    z = _wide(jax, x)
    centred = z - z.mean(-1, keepdims=True)
    variance = (centred * centred).mean(-1, keepdims=True)
    scaled = centred * jax.lax.rsqrt(variance + EPSILON) * _wide(jax, gamma)
    return (scaled + _wide(jax, beta)).astype(x.dtype)


def _rms_norm(jax: Any, x: Any, gamma: Any) -> Any:
    z = _wide(jax, x)
    scaled = z * jax.lax.rsqrt((z * z).mean(-1, keepdims=True) + EPSILON)
    return (scaled * _wide(jax, gamma)).astype(x.dtype)


_ROWS: Final[Mapping[str, Function]] = {
    "softmax": lambda jax, x: jax.nn.softmax(_wide(jax, x)).astype(x.dtype),
    "log_softmax": lambda jax, x: jax.nn.log_softmax(_wide(jax, x)).astype(x.dtype),
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "sum_last": lambda jax, x: x.sum(-1),
    "max_last": lambda jax, x: x.max(-1),
    "argmax_last": lambda jax, x: x.argmax(-1),
}


def _chain(jax: Any, x: Any) -> Any:
    z = _wide(jax, x)
    return (jax.numpy.tanh(z * 0.5 + 0.1) * jax.numpy.exp(-(z * z)) + 0.3).astype(x.dtype)


def _add_and_multiply(jax: Any, x: Any, row: Any, column: Any) -> Any:
    return ((_wide(jax, x) + _wide(jax, row)) * _wide(jax, column)).astype(x.dtype)


def _cast(jax: Any, x: Any) -> Any:
    narrow, wide = jax.numpy.bfloat16, jax.numpy.float32
    return x.astype(narrow if x.dtype == wide else wide)


def _dropout(jax: Any, x: Any) -> Any:
    # The generator that is fastest on GPUs; that of JAX's defaults takes several times as long.
    key = jax.random.key(0, impl="rbg")
    kept = jax.random.uniform(key, x.shape) >= 0.1
    return jax.numpy.where(kept, _wide(jax, x) * (1 / 0.9), 0.0).astype(x.dtype)


_MAPS: Final[Mapping[str, Function]] = {
    "copy": lambda jax, x: jax.numpy.copy(x),
    "gelu": lambda jax, x: jax.nn.gelu(_wide(jax, x), approximate=False).astype(x.dtype),
    "chain": _chain,
    "add+mul": _add_and_multiply,
    "cast": _cast,
    "where+compare": lambda jax, x, y: jax.numpy.where(x > y, x, y * 2.0),
    "dropout": _dropout,
}


# -- reductions over other axes, movement --------------------------------------------------------

_REDUCE: Final[Mapping[str, Function]] = {
    "sum axis 0": lambda jax, x: x.sum(0),
    "sum axis 1": lambda jax, x: x.sum(1),
    "sum all 2^29": lambda jax, x: x.sum(),
    "mean over NHW": lambda jax, x: x.mean((0, 1, 2)),
}


def _pad_and_slice(jax: Any, x: Any) -> Any:
    return jax.numpy.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))[:, :56, :56]


def _embedding_backward(jax: Any, indices: Any, gradients: Any) -> Any:
    zeros = jax.numpy.zeros((50304, gradients.shape[1]), jax.numpy.float32)
    return zeros.at[indices].add(_wide(jax, gradients)).astype(gradients.dtype)


_MOVEMENT: Final[Mapping[str, Function]] = {
    "transpose": lambda jax, x: x.T,
    "permute": lambda jax, x: x.transpose(0, 2, 3, 1),
    "x.T": lambda jax, x, y: x.T + y,
    "concat": lambda jax, *parts: jax.numpy.concatenate(parts, 1),
    "pad+slice": _pad_and_slice,
    "gather": lambda jax, x, i: x[i],
    "embedding": _embedding_backward,
}


# -- GPT-2 ---------------------------------------------------------------------------------------


def _gpt2(jax: Any, tokens: Any, *weights: Any) -> Any:
    table, places, gamma, beta, *rest = weights
    x = table[tokens] + places
    for start in range(0, len(rest), LAYER):
        x = _block(jax, x, *rest[start : start + LAYER])
    return _layer_norm(jax, x, gamma, beta) @ table.T


def _block(jax: Any, x: Any, *w: Any) -> Any:
    joined = _dense(jax, _layer_norm(jax, x, w[0], w[1]), w[2], w[3]).astype(x.dtype)
    heads = (1, SHAPE.sequence, SHAPE.heads, SHAPE.depth)
    q, k, v = (part.reshape(heads) for part in jax.numpy.split(joined, 3, -1))
    mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape)
    x = (_wide(jax, x) + _dense(jax, mixed, w[4], w[5])).astype(x.dtype)
    hidden = _dense(jax, _layer_norm(jax, x, w[6], w[7]), w[8], w[9])
    active = jax.nn.gelu(hidden, approximate=True).astype(x.dtype)
    return (_wide(jax, x) + _dense(jax, active, w[10], w[11])).astype(x.dtype)


def _dense(jax: Any, x: Any, w: Any, bias: Any) -> Any:
    """Not yet rounded."""
    total = jax.numpy.matmul(x, w, preferred_element_type=jax.numpy.float32)
    return total + _wide(jax, bias)


_FAMILIES: Final[Mapping[str, Callable[[Line], Function]]] = {
    "gemm": _gemm,
    "gemm_odd": _gemm,
    "sm80": _gemm,
    "gemm_epilogue": _epilogue,
    "rows": lambda line: _ROWS[line.name.partition(" ")[0]],
    "maps": lambda line: _MAPS[line.name.partition(" ")[0]],
    "reduce": lambda line: _REDUCE[line.name.partition(" [")[0]],
    "movement": lambda line: _MOVEMENT[line.name.partition(" ")[0]],
    "gpt2": lambda line: _gpt2,
}
