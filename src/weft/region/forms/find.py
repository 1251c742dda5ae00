"""Finding the form of a finished kernel, with the rows along which it reduces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.foundation.errors import InternalError
from weft.foundation.records import replace
from weft.region.form import Attention, Convolution, Form, Map, Product, Row, Rows, Stream, Whole
from weft.region.forms.attention import find_attention
from weft.region.forms.columns import summed_columns
from weft.region.forms.crossing import find_crossing
from weft.region.forms.epilogue import find_epilogue
from weft.region.forms.problem import find_problem
from weft.region.forms.staged import find_staged
from weft.region.forms.stream import find_stream
from weft.region.forms.winograd import find_windows
from weft.region.ir import Fold, Kernel, Module, Pattern, Reduce, Tensor, row_major
from weft.region.row_reads import piece_sums, walked_axis
from weft.region.structure import buffers


def with_forms(module: Module) -> Module:
    """The module with every kernel knowing what it is."""
    kernels = (replace(found, form=find_form(found, module.tensors)) for found in module.kernels)
    return replace(module, kernels=tuple(kernels))


def find_form(kernel: Kernel, tensors: Mapping[str, Tensor]) -> Form:
    """What a kernel is that is right in all else."""
    if kernel.opaque is not None:
        return Whole(type(kernel.opaque.op).__name__)
    if kernel.pattern is Pattern.STAGED:
        staged = find_staged(kernel)
        if isinstance(staged, str):
            raise InternalError(f"the stages of kernel {kernel.name} do not slide: {staged}")
        return staged
    strides = {name: row_major(tensors[name].shape) for name in buffers(kernel)}
    rows = find_rows(kernel, strides)
    if kernel.roles is not None:
        found = Product(rows, find_problem(kernel, tensors), find_epilogue(kernel))
        if kernel.pattern is not Pattern.CONV:
            return found
        return Convolution(rows, found.problem, found.epilogue, find_windows(kernel))
    if kernel.pattern is Pattern.ATTENTION:
        parts = find_attention(kernel)
        if parts is None:
            raise InternalError(f"kernel {kernel.name} is called attention, but its body is none")
        return Attention(rows, parts)
    if kernel.pattern is Pattern.STREAM:
        streamed = find_stream(kernel)
        if streamed is None:
            raise InternalError(f"kernel {kernel.name} is called stream, but its body is none")
        return Stream(rows, streamed)
    return Map(find_crossing(kernel, strides)) if kernel.pattern is Pattern.MAP else Row(rows)


def find_rows(kernel: Kernel, strides: Mapping[str, Sequence[int]]) -> Rows:
    """The rows of a kernel whose tensors lie so."""
    pieces = piece_sums(kernel)
    sums = [let for let in kernel.body if let.name not in pieces]
    every = [set(let.expr.axes) for let in sums if isinstance(let.expr, Reduce | Fold)]
    removed = set[str]().union(*every)
    reduced = tuple(axis.name for axis in kernel.axes if axis.name in removed)
    whole = [output for output in kernel.outputs if output.value not in pieces]
    stored = [removed & set(kernel.let(output.value).axes) for output in whole]
    alike = all(axes == removed for axes in every)
    regular = alike and all(axes in (set(), removed) for axes in stored)
    return Rows(reduced, regular, summed_columns(kernel, strides), walked_axis(kernel))
