"""Names of other array libraries, for error messages: what they call things that Weft has under
another name.

Nothing here is an alias: where a name is not found, the message says what to write instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Final

from weft.foundation.tracebacks import ending_outside

ARGUMENTS: Final[dict[str, str]] = {
    "a": "x",
    "alpha": "decay",
    "attn_mask": "mask",
    "ddof": "correction",
    "dim": "axis",
    "dims": "axis",
    "donate_argnames": "donate",
    "donate_argnums": "donate",
    "embed_dim": "features",
    "embedding_dim": "size",
    "hidden_size": "hidden",
    "in_channels": "inputs",
    "in_features": "inputs",
    "index": "indices",
    "input": "x",
    "input_size": "inputs",
    "is_causal": "causal",
    "keepdim": "keepdims",
    "kernel_size": "window",
    "learning_rate": "rate",
    "lr": "rate",
    "max_norm": "norm",
    "maxval": "high",
    "minval": "low",
    "normalized_shape": "shape",
    "num": "count",
    "num_channels": "channels",
    "num_classes": "depth",
    "num_embeddings": "count",
    "num_features": "channels",
    "num_groups": "groups",
    "num_heads": "heads",
    "num_layers": "layers",
    "out_channels": "outputs",
    "out_features": "outputs",
    "p": "rate",
    "pad": "widths",
    "pad_width": "widths",
    "static_argnames": "static",
    "static_argnums": "static",
    "steps": "num",
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
    "realize": "x.eval(), or nothing: a tensor is computed when it is read",
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
    "BatchNorm1d": "nn.BatchNorm, for any number of axes",
    "BatchNorm2d": "nn.BatchNorm, for any number of axes",
    "BatchNorm3d": "nn.BatchNorm, for any number of axes",
    "Conv": "nn.Conv2d, or 1d and 3d",
    "CosineAnnealingLR": "optim.cosine(rate, steps) as the rate of an optimiser",
    "DataLoader": "weft.data.batches(arrays, size, key=key), and weft.data.prefetch around it",
    "Dense": "nn.Linear",
    "EMA": "optim.average(decay), last in optim.chain, and optim.averaged(state, params)",
    "Loader": "weft.data.batches(arrays, size, key=key), and weft.data.prefetch around it",
    "PRNGKey": "weft.random.key",
    "Parameter": "any tensor that is an attribute of a module",
    "StepLR": "optim.step_decay(rate, ...) as the rate of an optimiser",
    "TensorDataset": "a tuple of arrays, as weft.data.batches takes it",
    "amax": "weft.max",
    "amin": "weft.min",
    "apply_updates": "optimiser.update(gradients, state, params), which answers the new parameters",
    "autograd": "weft.grad",
    "bernoulli": "weft.random.bernoulli(key, p, shape), with key = weft.random.key(seed)",
    "block_until_ready": "weft.eval(x)",
    "bmm": "weft.matmul",
    "cat": "weft.concat",
    "cauchy": "the quotient of two draws of weft.random.normal",
    "chunk": "weft.split",
    "clamp": "weft.clip",
    "clip_grad_norm": "optim.clip(norm=1.0), in optim.chain",
    "clip_grad_norm_": "optim.clip(norm=1.0), in optim.chain",
    "cuda": 'the backend "cuda": x.to("cuda"), or weft.set_default_backend("cuda")',
    "device": 'the name of a backend, such as "cpu" or "cuda"',
    "device_put": 'x.to("cuda"), or weft.asarray(array, device="cuda")',
    "div": "weft.divide",
    "ema": "optim.average(decay), last in optim.chain, and optim.averaged(state, params)",
    "from_numpy": "weft.asarray",
    "functional": "weft.functional",
    "gammainc": "weft.special.igamma",
    "gammaincc": "weft.special.igammac",
    "groups": "optim.partition(label, optimisers)",
    "inference_mode": "nothing: gradients are computed where weft.grad asks",
    "initializers": "weft.nn.init",
    "jacfwd": "weft.jacobian",
    "jacrev": "weft.jacobian",
    "kaiming": "nn.init.kaiming_uniform, or kaiming_normal",
    "lax": "weft itself and weft.functional: weft.scan, weft.cond, weft.functional.top_k",
    "logistic": "the difference of two draws of weft.random.gumbel",
    "lr_scheduler": "a schedule as the rate, such as optim.AdamW(optim.cosine(1e-3, 1_000))",
    "manual_seed": "weft.random.seed(seed), or keys of your own with weft.random.key(seed)",
    "mm": "weft.matmul",
    "multinomial": "weft.random.categorical(key, logits), with key = weft.random.key(seed)",
    "no_grad": "weft.stop_gradient, or nothing: gradients are computed where weft.grad asks",
    "normal": "weft.random.normal(key, shape), with key = weft.random.key(seed)",
    "numpy": "weft itself: weft.sum, weft.linalg, weft.fft",
    "percentile": "weft.quantile",
    "pmap": "weft.spmd(mesh, split=...), with mesh = weft.mesh(data=-1); weft.vmap is for batches",
    "rand_like": "weft.rand(*x.shape)",
    "randint": "weft.random.randint(key, shape, low, high), with key = weft.random.key(seed)",
    "randn_like": "weft.randn(*x.shape)",
    "randperm": "weft.random.permutation(key, n), with key = weft.random.key(seed)",
    "scaled_dot_product_attention": "functional.attention",
    "set_default_device": "weft.set_default_backend",
    "topk": "functional.top_k",
    "tree_flatten": "weft.tree.flatten",
    "tree_leaves": "weft.tree.leaves",
    "tree_map": "weft.tree.map",
    "tree_map_with_path": "weft.tree.map_with_path",
    "tree_reduce": "weft.tree.reduce",
    "tree_structure": "weft.tree.structure",
    "tree_unflatten": "weft.tree.unflatten",
    "tree_util": "weft.tree",
    "uniform": "weft.random.uniform(key, shape), with key = weft.random.key(seed)",
    "unsqueeze": "weft.expand_dims",
    "view": "weft.reshape",
    "xavier": "nn.init.xavier_uniform, or xavier_normal",
}
"""The names of functions."""

MODULES: Final[dict[str, str]] = {
    "apply": "model.map(function), which answers a new module",
    "buffers": "the class attribute buffers",
    "children": "vars(model)",
    "cpu": 'model.map(lambda x: x.to("cpu"))',
    "cuda": 'model.map(lambda x: x.to("cuda"))',
    "double": "model.map(lambda x: x.astype(weft.float64))",
    "eval": "nothing: a layer is in training only inside `with nn.training(key):`",
    "forward": "model(x); a module says what it computes in a method __call__",
    "half": "model.map(lambda x: x.astype(weft.float16))",
    "load_state_dict": "model.with_state(state), which answers a new module",
    "named_parameters": "model.state_dict().items()",
    "requires_grad_": "the argument that weft.grad is asked for: nothing else gets gradients",
    "to": 'model.map(lambda x: x.to("cpu")), or of x.astype(dtype)',
    "train": "the block `with nn.training(key):` around the call",
    "zero_grad": "nothing: weft.grad answers gradients and keeps none",
}
"""The names of methods of modules."""

OPTIMISERS: Final[dict[str, str]] = {
    "load_state_dict": "the state that init and update answer; weft.load reads it from a file",
    "param_groups": "optim.partition(label, optimisers)",
    "state_dict": "the state that init and update answer; weft.save writes it to a file",
    "step": "model, state = optimiser.update(gradients, state, model)",
    "zero_grad": "nothing: weft.grad answers gradients and keeps none",
}
"""The names of methods of optimisers."""


def method_advice(name: str) -> str:
    """What to write instead of `x.name`, as the end of a message."""
    if name.endswith("_") and not name.startswith("_") and name not in METHODS:
        return f"; tensors are assigned to with operators such as +=, or `x = x.{name[:-1]}(...)`"
    return _advice(METHODS, name)


def module_advice(name: str) -> str:
    """What to write instead of `model.name`, as the end of a message."""
    return _advice(MODULES, name)


def optimiser_advice(name: str) -> str:
    """What to write instead of `optimiser.name`, as the end of a message."""
    return _advice(OPTIMISERS, name)


def function_advice(name: str, known: Sequence[str], apart: Mapping[str, str]) -> str:
    """What to write instead of `weft.name`, as the end of a message: what it is called here, or
    what is spelled most like it, in `weft` or `apart` from it. For a private name, which tools ask
    every module for, there is none."""
    if name.startswith("_"):
        return ""
    own = dict(zip(known, known, strict=True))
    return _advice(FUNCTIONS, name) or _closest(name, own) or _closest(name, apart)


def missing(module: str, name: str, known: Sequence[str]) -> AttributeError:
    """What is raised for a name that a part of `weft` does not have."""
    advice = function_advice(name, known, {})
    error = AttributeError(f"{module} has no {name!r}{advice}", name=name)
    return error if name.startswith("__") else ending_outside(error)


def _advice(table: dict[str, str], name: str) -> str:
    return f"; here it is {table[name]}" if name in table else ""


def _closest(name: str, known: Mapping[str, str]) -> str:
    """The name spelled most like this one, as it is written."""
    by_small = {each.lower(): written for each, written in known.items()}
    found = get_close_matches(name.lower(), by_small, n=1, cutoff=0.75)
    return f"; did you mean {by_small[found[0]]}?" if found else ""
