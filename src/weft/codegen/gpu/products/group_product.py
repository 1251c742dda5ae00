"""Grouped products (mixture of experts): how kernels are built from the op, its two operands and
the table of tiles that an earlier kernel wrote. `grouped.py` and `outer.py` are the two kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from weft.codegen.gpu import ir
from weft.codegen.gpu.products.problem import Problem
from weft.codegen.gpu.products.sm90 import Sm90Builder
from weft.codegen.gpu.products.sm90_layout import Sm90Layout, refusals
from weft.foundation.errors import Finding, InternalError, SpecViolation
from weft.foundation.records import dataclass
from weft.region.ir import Kernel, Tensor
from weft.target.target import Target

Op = TypeVar("Op")
Layout = TypeVar("Layout", bound=Sm90Layout)


@dataclass(frozen=True)
class GroupProduct(Generic[Op, Layout]):
    """What a product is (`problem`, of the op, both operands, the result and all tensors), how it
    is laid out (`layout`, of the op, the problem, the kernel's name and the target), and what makes
    its statements (`builder`, of the layout, the name of the dialect kernel and the table)."""

    problem: Callable[[Op, str, str, str, Mapping[str, Tensor]], Problem]
    layout: Callable[[Op, Problem, str, Target], Layout]
    builder: Callable[[Layout, str, str], Sm90Builder]

    def accepts(
        self, op: Op, kernel: Kernel, tensors: Mapping[str, Tensor], target: Target
    ) -> list[Finding]:
        """Why there is no kernel for a product; empty where there is."""
        layout, _ = self._lay_out(op, kernel, tensors, target)
        return [*refusals(layout, target)]

    def build(
        self, op: Op, kernel: Kernel, tensors: Mapping[str, Tensor], target: Target, name: str
    ) -> ir.Kernel:
        """The dialect kernel of a product."""
        layout, table = self._lay_out(op, kernel, tensors, target)
        findings = [*refusals(layout, target)]
        if findings:
            raise SpecViolation.of(findings)
        return self.builder(layout, name, table).kernel()

    def _lay_out(
        self, op: Op, kernel: Kernel, tensors: Mapping[str, Tensor], target: Target
    ) -> tuple[Layout, str]:
        """The layout, and the tensor that is the table."""
        if kernel.opaque is None:
            raise InternalError(f"kernel {kernel.name} carries no op")
        lhs, rhs, table = kernel.opaque.inputs
        problem = self.problem(op, lhs, rhs, kernel.outputs[0].tensor, tensors)
        return self.layout(op, problem, kernel.name, target), table
