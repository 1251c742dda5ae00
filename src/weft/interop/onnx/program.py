"""`weft.onnx.to_program`: a model as one PTIR program, with its weights in it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from weft.foundation.dims import Dim, Symbol
from weft.foundation.errors import (
    SizeWanted,
    SpecViolation,
    Unimplemented,
    UserError,
    a_type,
    brief,
)
from weft.interop.onnx.graph import Input
from weft.interop.onnx.interpret import Interpreter
from weft.interop.onnx.model import Model, load
from weft.interop.onnx.tensors import dtype_numbered
from weft.interop.onnx.values import value_as_tensor, whole_programs
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
    example = dict.fromkeys(open_axes(model), 4)
    return _program_of_model(model, sizes or {}, f"to_program(model, {example})")


def load_program(path: str | os.PathLike[str], sizes: Mapping[str, int] | None = None) -> Program:
    """The model in a file as a program, for the command line."""
    model = load(path)
    example = ",".join(f"{_program_word(name)}=4" for name in open_axes(model))
    return _program_of_model(
        model, sizes or {}, f"--sizes {example} of weft compile and weft convert"
    )


def open_axes(model: Model) -> list[str]:
    """The names of the axes that the inputs of a model leave open."""
    found = []
    for each in model.wanted:
        dims = each.type.tensor_type.shape.dim
        found += [
            _axis_name(each, n) for n, dim in enumerate(dims) if not dim.HasField("dim_value")
        ]
    return list(dict.fromkeys(found))


def _axis_name(each: Input, index: int) -> str:
    """What an open axis of an input is called."""
    return each.type.tensor_type.shape.dim[index].dim_param or f"{each.name}_{index}"


def _program_of_model(model: Model, sizes: Mapping[str, int], example: str) -> Program:
    """The model with these sizes; `example` says how sizes are given."""
    axes = open_axes(model)
    _check_sizes(sizes, axes)
    kinds = [input_type(each, sizes) for each in model.wanted]
    names = model.inputs

    def call(given: list[Tensor]) -> Any:
        held = {name: value_as_tensor(array) for name, array in model.held().items()}
        inputs = dict(zip(names, given, strict=True))
        made = Interpreter(model.network.functions).run(
            model.network.graph, {**model.network.known, **held, **inputs}
        )
        return [value_as_tensor(each) for each in made]

    call.__name__ = _program_word(model.network.graph.name)
    try:
        with whole_programs():
            found = trace(call, kinds, lambda tensors: tensors, call)
    except SizeWanted as error:
        left = [name for name in axes if _find_size(name, sizes) is None]
        hint = f"the model leaves open {_list_axes(left)}: give the sizes, as in {example}"
        raise SpecViolation(error.code, error.why, hint, error.where) from None
    verify(found.program)
    return replace(found.program, input_names=names, result_names=model.outputs)


def _check_sizes(sizes: Mapping[str, int], axes: Sequence[str]) -> None:
    """Raise unless these are sizes of open axes."""
    if not isinstance(sizes, Mapping):
        raise UserError(f"sizes are a dict of axes and their sizes, not {a_type(sizes)}")
    known = {*axes, *map(_program_word, axes)}
    for name, size in sizes.items():
        if name not in known:
            raise UserError(
                f"the model has no open axis {brief(name)}: it leaves open {_list_axes(axes)}"
            )
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 0:
            raise UserError(
                f"the size of the axis {brief(name)} is {brief(size)}; it must be a whole number "
                "from 0 on"
            )


def _find_size(name: str, sizes: Mapping[str, int]) -> int | None:
    """The size of an axis, by its name or by what programs call it."""
    found = sizes.get(name, sizes.get(_program_word(name)))
    return None if found is None else int(found)


def _list_axes(axes: Sequence[str]) -> str:
    shown = ", ".join(map(brief, axes[:20])) + (", ..." if len(axes) > 20 else "")
    return f"the {'axis' if len(axes) == 1 else 'axes'} {shown}" if axes else "no axis"


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
        name = _axis_name(each, index)
        size = _find_size(name, sizes)
        dims.append(Symbol(_program_word(name)) if size is None else size)
    return TensorType(dtype_named(dtype_numbered(declared.elem_type)), tuple(dims))


def _program_word(name: str) -> str:
    """A name of an axis as programs may have it."""
    kept = "".join(each if each.isascii() and each.isalnum() else "_" for each in name)[:60]
    return kept if kept[:1].isalpha() else f"d{kept}"
