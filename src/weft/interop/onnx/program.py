"""`weft.onnx.to_program`: a model as one PTIR program, with its weights in it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from weft.foundation.dims import Dim, Symbol
from weft.foundation.errors import SizeWanted, SpecViolation, Unimplemented, UserError, brief
from weft.interop.onnx.graph import Input
from weft.interop.onnx.interpret import Interpreter
from weft.interop.onnx.model import Model, load
from weft.interop.onnx.tensors import dtype_numbered
from weft.interop.onnx.values import tensor, whole_programs
from weft.ops.array.data_types import dtype_named
from weft.ops.calls import public
from weft.ops.tensor import Tensor
from weft.ops.tracing import trace
from weft.ptir.ir import Program
from weft.ptir.types import TensorType
from weft.ptir.verify import verify


@public
def to_program(model: Model, sizes: Mapping[str, int] | None = None) -> Program:
    """The model as a verified program that takes its inputs in order and gives its outputs in
    order; weights are constants of it. Axes that the model leaves open are open in the program,
    unless `sizes` has their names; a model whose shapes follow from their sizes needs these."""
    if not isinstance(model, Model):
        raise UserError(f"a model of weft.onnx.load is wanted, not {brief(model)}")
    kinds = [input_type(each, sizes or {}) for each in model.wanted]
    names = model.inputs

    def call(given: list[Tensor]) -> Any:
        held = {name: tensor(array) for name, array in model.held().items()}
        inputs = dict(zip(names, given, strict=True))
        made = Interpreter(model.network.functions).run(
            model.network.graph, {**model.network.known, **held, **inputs}
        )
        return [tensor(each) for each in made]

    call.__name__ = _word(model.network.graph.name)
    try:
        with whole_programs():
            found = trace(call, kinds, lambda tensors: tensors, call)
    except SizeWanted as error:
        raise SpecViolation(
            error.code, error.why, "give the sizes of open axes: to_program(model, {'batch': 4})"
        ) from None
    verify(found.program)
    return replace(found.program, input_names=names, result_names=model.outputs)


def load_program(path: str | os.PathLike[str]) -> Program:
    """The model in a file as a program."""
    return to_program(load(path))


def input_type(each: Input, sizes: Mapping[str, int]) -> TensorType:
    """The type of an input, as the model declares it."""
    declared = each.type.tensor_type
    if not each.type.HasField("tensor_type") or not declared.HasField("shape"):
        raise Unimplemented(
            f"the input {each.name!r}", "a program's inputs are tensors of a known rank"
        )
    dims: list[Dim] = []
    for index, dim in enumerate(declared.shape.dim):
        if dim.HasField("dim_value"):
            dims.append(dim.dim_value)
            continue
        name = dim.dim_param or f"{each.name}_{index}"
        dims.append(sizes[name] if name in sizes else Symbol(_word(name)))
    return TensorType(dtype_named(dtype_numbered(declared.elem_type)), tuple(dims))


def _word(name: str) -> str:
    """A name of an axis as programs may have it."""
    kept = "".join(each if each.isascii() and each.isalnum() else "_" for each in name)[:60]
    return kept if kept[:1].isalpha() else f"d{kept}"
