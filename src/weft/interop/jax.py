"""Functions of JAX in Weft and programs of Weft in JAX, by way of StableHLO text.

JAX's side needs the package jax; nothing of Weft imports it elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import jax
import numpy as np
from jax import export
from jaxlib.mlir.dialects import stablehlo as dialect

from weft.coarse.raising import raise_program
from weft.foundation.errors import UserError
from weft.foundation.lines import user_line
from weft.interop import stablehlo
from weft.interop.stablehlo.bindings import parse_module
from weft.ops.array.creation import asarray
from weft.ops.calls import check_function, public
from weft.ops.graph.context import current
from weft.ops.graph.inline import inline
from weft.ops.tensor import Tensor
from weft.ptir import vjp
from weft.ptir.ir import Program
from weft.ptir.types import TensorType, leaves
from weft.ptir.verify import check_program


@public
def from_function(function: Callable[..., Any], *examples: Any) -> Callable[..., Any]:
    """JAX's function as one of Weft, for arguments of the shapes and dtypes of the examples:
    arrays, tensors of Weft or `jax.ShapeDtypeStruct`s, in whatever JAX takes. It can be called on
    tensors, compiled by `weft.jit` and differentiated like any other."""
    check_function("from_function", function)
    kinds = jax.tree.map(_describe_example, examples)
    exported = export.export(jax.jit(function))(*kinds)
    program = raise_program(stablehlo.loads(str(exported.mlir_module())))
    wanted, structure = jax.tree_util.tree_flatten_with_path(kinds)
    kept = exported.module_kept_var_idx

    def call(*args: Any) -> Any:
        given, found = jax.tree.flatten(args)
        if found != structure:
            raise UserError(f"the arguments are nested as {found}, not as {structure}")
        tensors = [_fit_tensor(asarray(x), *like) for x, like in zip(given, wanted, strict=True)]
        nodes = [tensors[number]._node for number in kept]
        results = [Tensor(node) for node in inline(program, nodes, current(), user_line())]
        return jax.tree.unflatten(exported.out_tree, results)

    call.__name__ = getattr(function, "__name__", "call")
    return public(call)


def _describe_example(example: Any) -> Any:
    if isinstance(example, jax.ShapeDtypeStruct):
        return example
    array = example if hasattr(example, "shape") else np.asarray(example)
    kind = example.type if isinstance(example, Tensor) else array
    dtype = jax.dtypes.canonicalize_dtype(getattr(kind.dtype, "numpy", kind.dtype))
    return jax.ShapeDtypeStruct(tuple(kind.shape), dtype)


def _fit_tensor(tensor: Tensor, path: Any, kind: Any) -> Tensor:
    wanted = np.dtype(kind.dtype)
    if tuple(tensor.shape) != tuple(kind.shape) or tensor.type.dtype.numpy != wanted:
        raise UserError(
            f"the argument at {jax.tree_util.keystr(path)} is {tensor.type}; the function was "
            f"imported for {wanted.name}{list(kind.shape)}"
        )
    return tensor


def to_function(program: Program) -> Callable[..., Any]:
    """A program of Weft, such as `weft.jit(f).program(x)`, as a function of JAX: it takes and gives
    arrays, runs inside `jax.jit`, and has the gradients that Weft gives it."""
    check_program("to_function", program)
    smooth = [
        k for k, kind in enumerate(_inputs(program)) if kind.dtype.is_float or kind.dtype.is_complex
    ]

    def call(*args: Any) -> Any:
        return _single(_export_program(program).call(*args))

    def forward(*args: Any) -> Any:
        return call(*args), args

    def backward(args: Any, cotangents: Any) -> Any:
        given = [cotangents] if len(program.main.results) == 1 else list(cotangents)
        kinds = [leaf for result in program.main.results for leaf in leaves(result)]
        wanted = [
            c
            for c, kind in zip(given, kinds, strict=True)
            if kind.dtype.is_float or kind.dtype.is_complex
        ]
        results = _export_program(_backward(program, tuple(smooth))).call(*args, *wanted)
        found = dict(zip(smooth, list(results)[len(given) :], strict=True))
        return tuple(
            found.get(k, np.zeros(np.shape(x), jax.dtypes.float0)) for k, x in enumerate(args)
        )

    differentiable: Any = jax.custom_vjp(call)
    differentiable.defvjp(forward, backward)
    return differentiable  # type: ignore[no-any-return]


def _inputs(program: Program) -> list[TensorType]:
    found = [kind for kind in program.main.parameters if isinstance(kind, TensorType)]
    if len(found) != len(program.main.parameters) or not all(kind.is_static for kind in found):
        raise UserError(
            "a function of JAX takes tensors of known sizes; trace the program for them"
        )
    return found


def _single(results: Sequence[Any]) -> Any:
    return results[0] if len(results) == 1 else tuple(results)


@cache
def _backward(program: Program, smooth: tuple[int, ...]) -> Program:
    return vjp(program, smooth)


@cache
def _export_program(program: Program) -> Any:
    """The program as JAX's exporter would have it: an export of a function with the same types,
    whose module is the program's."""
    inputs = [_structure(kind) for kind in _inputs(program)]
    outputs = [_structure(leaf) for kind in program.main.results for leaf in leaves(kind)]

    def typed(*args: Any) -> list[Any]:
        return [jax.numpy.zeros(kind.shape, kind.dtype) for kind in outputs]

    model = export.export(jax.jit(typed, keep_unused=True))(*inputs)
    module = parse_module(stablehlo.dumps(_as_main(program)))
    code = dialect.serialize_portable_artifact(module, dialect.get_current_version())
    return replace(model, mlir_module_serialized=code)


def _as_main(program: Program) -> Program:
    """The program with its entry under the name that JAX looks for."""
    functions = tuple(
        replace(f, name="main") if f.name == program.entry else f for f in program.functions
    )
    return replace(program, entry="main", functions=functions, locations={}, call_fields={})


def _structure(kind: Any) -> Any:
    return jax.ShapeDtypeStruct(kind.shape, kind.dtype.numpy)
