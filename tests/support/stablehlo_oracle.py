"""StableHLO's own reference interpreter, as jaxlib has it: an oracle that shares nothing with Weft
but the text of constants. And what tests of reading have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

import weft
from tests.support.draws import generator
from weft.interop import stablehlo
from weft.interop.stablehlo.bindings import bindings, parse_module
from weft.interop.stablehlo.dense import DTYPES, read_dense, write_dense
from weft.ptir.literal import from_array
from weft.ptir.types import TensorType

RANDOM = generator()
Array: TypeAlias = NDArray[Any]


def floats(*shape: int) -> Array:
    return RANDOM.standard_normal(shape).astype(np.float32)


def interpret(text: str, inputs: Sequence[Array]) -> list[Array]:
    """What the module's `main` gives for these inputs."""
    mlir = bindings()
    module = parse_module(text)
    with mlir.context:
        given = [mlir.ir.Attribute.parse(write_dense(from_array(np.asarray(a)))) for a in inputs]
    return [_array(str(found)) for found in mlir.stablehlo.eval_module(module, given)]


def _array(text: str) -> Array:
    body, _, kind = text.rpartition(" : ")
    *dims, element = kind.removeprefix("tensor<").removesuffix(">").split("x", text.count("x"))
    if element.startswith("<") or "complex<" in kind:
        inside = kind.removeprefix("tensor<").removesuffix(">")
        head, _, tail = inside.rpartition("complex<")
        dims, element = [d for d in head.split("x") if d], f"complex<{tail}"
    shape = tuple(int(dim) for dim in dims)
    return read_dense(body, TensorType(DTYPES[element], shape)).array


def check(text: str, *inputs: Array) -> None:
    """What is read computes what the interpreter does."""
    program = stablehlo.loads(text)
    weft.ptir.verify(program)
    found = weft.run(program, list(inputs), backend="reference")
    for got, want in zip(found, interpret(text, inputs), strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        np.testing.assert_allclose(
            got.astype(np.complex128), want.astype(np.complex128), rtol=2e-5, atol=1e-6
        )


def function(signature: str, body: str, results: str) -> str:
    """A module of one function; `results` is `%0, %1 : types`."""
    types = results.partition(" : ")[2]
    return f"func.func @main({signature}) -> ({types}) {{\n{body}\nreturn {results}\n}}"
