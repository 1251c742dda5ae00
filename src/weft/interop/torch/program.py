"""Exported programs of torch, and files of them, as PTIR programs with their weights in them."""

from __future__ import annotations

import os
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind

from weft.foundation.dims import Dim, Symbol
from weft.foundation.errors import Unimplemented, UserError, clipped
from weft.interop.torch.dtypes import OURS
from weft.interop.torch.exported import Source, from_exported
from weft.interop.torch.interpret import NodeFailed, carry_out
from weft.ops.graph.context import current
from weft.ops.tensor import Tensor
from weft.ops.tracing import trace
from weft.ptir.ir import Program
from weft.ptir.literal import TensorLiteral
from weft.ptir.types import TensorType
from weft.ptir.verify import verify


def load_program(path: str | os.PathLike[str]) -> Program:
    """The exported program in a file, `.pt2`, as a program."""
    told = f"{path} is not a program that torch.export.save of torch {torch.__version__} writes"
    if not zipfile.is_zipfile(path):
        raise UserError(f"{told}: it is not an archive, or is cut off", "NotExported")
    try:
        with warnings.catch_warnings(action="ignore"):
            found = torch.export.load(path)
    except Exception as error:
        why = clipped(str(error).partition("\n")[0], 200)
        raise UserError(f"{told}: {why}", "NotExported") from None
    return to_program(found)


def to_program(exported: ExportedProgram) -> Program:
    """A program that takes the tensors among the arguments in order, and gives those among the
    results; weights are constants of it. An open axis is called by the first argument that has it
    and by its number: `x_0`."""
    with warnings.catch_warnings(action="ignore"):  # Of torch, to itself.
        module = from_exported(exported)
    source: Source = module.source
    kinds = _kinds(source)
    state, constants = dict(module.state_dict()), dict(source.constants)

    def call(given: list[Tensor]) -> list[Any]:
        source.constants = _write_constants(constants)
        inputs = source.inputs(_write_constants(state), _leaves(source, given))
        try:
            return list(_user_results(source, carry_out(source.module, inputs)))
        except NodeFailed as failed:
            raise failed.error from None

    call.__name__ = "main"
    found = trace(call, kinds, lambda tensors: tensors, call)
    if found.captured:
        raise Unimplemented("a tensor of the exported program", "it is made outside of its graph")
    verify(found.program)
    return replace(
        found.program,
        input_names=module.input_names,
        result_names=module.result_names,
    )


def _kinds(source: Source) -> list[TensorType]:
    """The types of the tensors among the arguments."""
    names: dict[Any, str] = {}
    kinds = []
    for name, fake in source.tensors.items():
        dims = [_dim_of_axis(name, axis, fake, names) for axis in range(fake.ndim)]
        kinds.append(TensorType(OURS[fake.dtype], tuple(dims)))
    return kinds


def _dim_of_axis(name: str, axis: int, fake: torch.Tensor, names: dict[Any, str]) -> Dim:
    size: Any = fake.shape[axis]
    if isinstance(size, int):
        return size
    expression = size.node.expr
    if not expression.is_Symbol:
        raise Unimplemented(
            f"axis {axis} of {name}", f"its size is {expression}, which follows from others"
        )
    return Symbol(names.setdefault(expression, f"{name}_{axis}"))


def _leaves(source: Source, given: list[Tensor]) -> list[Any]:
    """The arguments as they are flattened: tensors, and numbers that are part of the program."""
    supply = iter(given)
    own = [s.arg for s in source.signature.input_specs if s.kind is InputKind.USER_INPUT]
    return [arg.value if isinstance(arg, ConstantArgument) else next(supply) for arg in own]


def _user_results(source: Source, results: Any) -> Iterator[Any]:
    for spec, value in zip(source.signature.output_specs, results, strict=True):
        if spec.kind is not OutputKind.USER_OUTPUT:
            raise Unimplemented(
                f"{spec.target} as a result",
                "the exported program writes to it, and a program has results alone; from Python, "
                "weft.torch.from_exported makes a module, which has state",
            )
        if isinstance(value, Tensor):
            yield value


def _write_constants(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors as constants of the program that is traced."""
    return {name: _constant(tensor) for name, tensor in tensors.items()}


def _constant(tensor: Tensor) -> Tensor:
    array = np.asarray(tensor.numpy())
    kind = TensorType(tensor.dtype, array.shape)
    return Tensor(current().constant(TensorLiteral(kind, array.tobytes())))
