"""StableHLO's own reference interpreter, as jaxlib has it: an oracle that shares nothing with Weft
but the text of constants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.interop.stablehlo.bindings import bindings, parse_module
from weft.interop.stablehlo.dense import DTYPES, read_dense, write_dense
from weft.ptir.literal import from_array
from weft.ptir.types import TensorType


def interpret(text: str, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """What the module's `main` gives for these inputs."""
    mlir = bindings()
    module = parse_module(text)
    with mlir.context:
        given = [mlir.ir.Attribute.parse(write_dense(from_array(np.asarray(a)))) for a in inputs]
    return [_array(str(found)) for found in mlir.stablehlo.eval_module(module, given)]


def _array(text: str) -> NDArray[Any]:
    body, _, kind = text.rpartition(" : ")
    *dims, element = kind.removeprefix("tensor<").removesuffix(">").split("x", text.count("x"))
    if element.startswith("<") or "complex<" in kind:
        inside = kind.removeprefix("tensor<").removesuffix(">")
        head, _, tail = inside.rpartition("complex<")
        dims, element = [d for d in head.split("x") if d], f"complex<{tail}"
    shape = tuple(int(dim) for dim in dims)
    return read_dense(body, TensorType(DTYPES[element], shape)).array
