"""The common part of these templates: operands by number, one point per thread, dtypes of
accumulation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from weft.codegen.gpu import ir
from weft.codegen.gpu.body.statements import Code
from weft.codegen.gpu.ir import values
from weft.codegen.gpu.ir.element_ops import Number
from weft.codegen.gpu.ir.formats import NARROW
from weft.codegen.gpu.ir.scalar import BLOCK, THREAD, Lit, Scalar, wide
from weft.foundation.dtypes import F32, DType
from weft.foundation.errors import InternalError
from weft.foundation.functions import identity
from weft.region.ir import Kernel, Tensor
from weft.target.target import Target

THREADS: Final = 256
"""Of a block whose threads have a point each."""
Work = tuple[int, int, Code]
"""How many blocks of how many threads do what."""


class WholeKernel:
    """A kernel in the making that carries out one op."""

    def __init__(self, kernel: Kernel, tensors: Mapping[str, Tensor], target: Target) -> None:
        if kernel.opaque is None:
            raise InternalError(f"kernel {kernel.name} carries no op")
        self.tensors, self.target = tensors, target
        self.inputs = list(kernel.opaque.inputs)
        self.results = [output.tensor for output in kernel.outputs]
        self.result = self.results[0]
        base = kernel.outputs[0].base
        # What the result is based on lies in it already; as an update it is read all the same.
        read = self.inputs[1:] if self.inputs[0] == base else self.inputs
        self.names = tuple(dict.fromkeys((*read, *self.results)))
        self.numbers = {name: number for number, name in enumerate(self.names)}
        self.dtype = tensors[self.inputs[0]].dtype
        self.tiles: list[ir.SharedTile] = []
        self.workspace: ir.Workspace | None = None
        self.resident = 1

    def kernel_called(self, name: str, work: Work) -> ir.Kernel:
        grid, threads, code = work
        tiles = tuple(self.tiles)
        return ir.Kernel(
            name, grid, threads, self.names, (), tiles, (), (), tuple(code.body),
            resident=self.resident, workspace=self.workspace,
        )  # fmt: skip

    def points(self, count: int) -> tuple[Code, Code, Scalar, Scalar]:
        """The statements of a thread, those for its point, which one that is, and whether it is
        there."""
        outside = Code()
        point = outside.let("point", BLOCK * THREADS + THREAD)
        there: Scalar = Lit(1) if count % THREADS == 0 else point < count
        return outside, outside.inside(), point, there

    @property
    def wide_dtype(self) -> DType:
        return combined(self.dtype)

    def neutral(self, fn: str) -> Number:
        """What combining with changes nothing, by a reduction."""
        # -0 leaves zeros as they are, whatever their sign.
        if fn == "sum" and self.dtype.is_float:
            return -0.0
        found = identity(fn, self.dtype)
        return float(found) if self.dtype.is_float else int(found)

    def write(self, code: Code, offset: Scalar, guard: Scalar, value: str) -> None:
        """A value as it was combined, rounded."""
        if self.wide_dtype is not self.dtype:
            value = code.compute(self.dtype, "cast", value)
        number = self.numbers[self.result]
        code.body.append(values.StoreElement(number, self.dtype, wide(offset), guard, value))


def blocks_of(count: int) -> int:
    """Blocks for so many points."""
    return -(-count // THREADS)


def combined(dtype: DType) -> DType:
    """The dtype in which numbers are combined."""
    return F32 if dtype in NARROW else dtype
