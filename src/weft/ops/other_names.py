"""What other array libraries call things that Weft has under another name.

Nothing here is an alias: where a name is not found, the message says what to write instead.
"""

from __future__ import annotations

from typing import Final

ARGUMENTS: Final[dict[str, str]] = {
    "a": "x",
    "attn_mask": "mask",
    "ddof": "correction",
    "dim": "axis",
    "dims": "axis",
    "in_features": "inputs",
    "index": "indices",
    "input": "x",
    "is_causal": "causal",
    "keepdim": "keepdims",
    "kernel_size": "window",
    "lr": "rate",
    "maxval": "high",
    "minval": "low",
    "num": "count",
    "num_classes": "depth",
    "out_features": "outputs",
    "p": "rate",
    "pad": "widths",
    "pad_width": "widths",
    "unbiased": "correction",
}
"""The names of arguments."""

_CAST = "x.astype(weft.{})"
METHODS: Final[dict[str, str]] = {
    "at": "x[key] = value, or functional.scatter",
    "backward": "weft.grad(function), whose result computes gradients",
    "bfloat16": _CAST.format("bfloat16"),
    "bool": _CAST.format("bool"),
    "chunk": "weft.split",
    "clamp": "x.clip(low, high)",
    "clone": "x.copy()",
    "contiguous": "x itself: tensors have no strides",
    "cpu": 'x.to("cpu")',
    "cuda": 'x.to("cuda")',
    "dim": "x.ndim",
    "double": _CAST.format("float64"),
    "expand": "x.broadcast_to(shape)",
    "fill_": "x[...] = value",
    "float": _CAST.format("float32"),
    "grad": "weft.grad(function), whose result computes gradients",
    "half": _CAST.format("float16"),
    "int": _CAST.format("int32"),
    "long": _CAST.format("int64"),
    "masked_fill": "weft.where(mask, value, x)",
    "mm": "x @ y",
    "bmm": "x @ y",
    "norm": "weft.linalg.vector_norm(x)",
    "numel": "x.size",
    "permute": "x.permute_dims(axes)",
    "repeat_interleave": "x.repeat(count)",
    "requires_grad_": "x.requires_grad = True",
    "sub": "x - y",
    "mul": "x * y",
    "div": "x / y",
    "t": "x.T",
    "topk": "x.top_k(k)",
    "type_as": "x.astype(y.dtype)",
    "unsqueeze": "x.expand_dims(axis)",
    "view": "x.reshape(shape)",
}
"""The names of methods and attributes of tensors."""

FUNCTIONS: Final[dict[str, str]] = {
    "amax": "weft.max",
    "amin": "weft.min",
    "bmm": "weft.matmul",
    "cat": "weft.concat",
    "chunk": "weft.split",
    "clamp": "weft.clip",
    "from_numpy": "weft.asarray",
    "manual_seed": "weft.random.seed(seed), or keys of your own with weft.random.key(seed)",
    "mm": "weft.matmul",
    "no_grad": "weft.stop_gradient, or nothing: gradients are computed where weft.grad asks",
    "percentile": "weft.quantile",
    "randint": "weft.random.randint(key, shape, low, high), with key = weft.random.key(seed)",
    "randperm": "weft.random.permutation(key, n), with key = weft.random.key(seed)",
    "scaled_dot_product_attention": "functional.attention",
    "tree_flatten": "weft.tree.flatten",
    "tree_leaves": "weft.tree.leaves",
    "tree_map": "weft.tree.map",
    "tree_structure": "weft.tree.structure",
    "tree_unflatten": "weft.tree.unflatten",
    "topk": "functional.top_k",
    "unsqueeze": "weft.expand_dims",
    "view": "weft.reshape",
}
"""The names of functions."""


def method_advice(name: str) -> str:
    """What to write instead of `x.name`, as the end of a message."""
    if name.endswith("_") and not name.startswith("_") and name not in METHODS:
        return f"; tensors are assigned to with operators such as +=, or `x = x.{name[:-1]}(...)`"
    return _advice(METHODS, name)


def function_advice(name: str) -> str:
    """What to write instead of `weft.name`, as the end of a message."""
    return _advice(FUNCTIONS, name)


def _advice(table: dict[str, str], name: str) -> str:
    return f"; here it is {table[name]}" if name in table else ""
