"""What a padding rule is, and the table of them.

A padded axis is longer than the real one: its first elements are the real ones, what follows is
without meaning. Every rule keeps that so: for operands whose first elements are real, the first
elements of its result are the real ones, bit for bit where nothing is rounded. Where an op looks
along a padded axis, the rule masks what is without meaning by something that changes nothing, or
refuses; likewise where an op rejects some elements when it runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Final, NoReturn

from weft.foundation.dtypes import SI64, DType
from weft.foundation.errors import InternalError
from weft.ptir.op import Op
from weft.ptir.op_rules import OpRules
from weft.ptir.ops.control import Cond, Scan, While
from weft.ptir.tape import Tape
from weft.ptir.term import Term
from weft.ptir.types import Dim, Symbol, TensorType, ValueType, leaves


class NoPadding(Exception):
    """An op for which padding would change the real elements; `names` are the symbols to blame."""

    def __init__(self, names: frozenset[str], why: str) -> None:
        super().__init__(why)
        self.names = names
        self.why = why


@dataclass
class RealSizes:
    """The padded symbols, and their real sizes as inputs of the program under construction."""

    tape: Tape
    roots: dict[Symbol, frozenset[str]]
    """Every padded symbol, with the symbols of the parameters that it follows from."""
    inputs: dict[Symbol, Term] = field(default_factory=dict)

    def of(self, symbol: Symbol) -> Term:
        """The real size as a scalar; a further parameter of the program."""
        if symbol not in self.inputs:
            self.inputs[symbol] = self.tape.parameter(TensorType(SI64, ()))
        return self.inputs[symbol]


@dataclass(frozen=True)
class Padding:
    """One instruction of which an operand or the result has a padded axis."""

    tape: Tape
    sizes: RealSizes
    op: Op
    operands: tuple[Term, ...]
    output: ValueType

    def is_padded(self, dim: Dim) -> bool:
        return isinstance(dim, Symbol) and dim in self.sizes.roots

    def axes(self, index: int) -> list[int]:
        """The padded axes of an operand."""
        return self.padded_axes(self.operands[index].shape)

    def padded_axes(self, shape: Iterable[Dim]) -> list[int]:
        return [axis for axis, dim in enumerate(shape) if self.is_padded(dim)]

    @property
    def result(self) -> TensorType:
        """The type of the only result."""
        if not isinstance(self.output, TensorType):
            raise InternalError(f"{self.op.mnemonic} has several results")
        return self.output

    def replay(self, *operands: Term) -> Term:
        """The op as it is, on these operands or its own."""
        return self.tape.append(self.op, operands or self.operands, self.output)

    def masked(self, index: int, value: Any, axes: Iterable[int] | None = None) -> Term:
        """An operand with a number in the place of what is without meaning along these axes; along
        all that are padded, where none are given."""
        term = self.operands[index]
        padded = self.axes(index)
        for axis in padded if axes is None else [axis for axis in axes if axis in padded]:
            dim = term.shape[axis]
            assert isinstance(dim, Symbol)
            limit = self.sizes.of(dim).broadcast_to(term.shape)
            real = term.counting(term.shape, axis).compare(limit, "less")
            term = term.where(real, term.like(value))
        return term

    def require_same(self, *dims: Dim) -> None:
        """Dims that the op takes for one are one: two symbols would be padded each by itself."""
        if len(set(dims)) > 1 and any(map(self.is_padded, dims)):
            self.refuse(f"needs {' and '.join(map(str, dims))} to be equal", *dims)

    def require_whole(self, index: int, axes: Iterable[int], what: str) -> None:
        """Some axes of an operand are not padded."""
        shape = self.operands[index].shape
        dims = [shape[axis] for axis in axes if self.is_padded(shape[axis])]
        if dims:
            self.refuse(f"{what} {', '.join(map(str, dims))}", *dims)

    def refuse(self, why: str, *dims: Dim) -> NoReturn:
        """Padding these dims (any dim, where none are given) is not exact."""
        roots = [self.sizes.roots[d] for d in dims if isinstance(d, Symbol) and self.is_padded(d)]
        blamed = roots or self.sizes.roots.values()
        raise NoPadding(frozenset().union(*blamed), f"{self.op.mnemonic} {why}")


pads: Final = OpRules[Padding, Term](Cond, Scan, While)


def neutral(dtype: DType) -> float:
    """What may be added any number of times: for floats -0.0, which keeps the sign of zeros."""
    return -0.0 if dtype.is_float else 0


def unknown(p: Padding) -> Term:
    kinds = [*(term.type for term in p.operands), p.output]
    dims = [dim for kind in kinds for leaf in leaves(kind) for dim in leaf.shape]
    p.refuse("has no rule for padded axes", *dims)


@pads.elementwise
def elementwise(p: Padding) -> Term:
    """One result element per index. Elements without meaning are computed too."""
    aligned(p)
    return p.replay()


def aligned(p: Padding) -> None:
    """All operands have one shape."""
    for dims in zip_longest(*(term.shape for term in p.operands), fillvalue=1):
        p.require_same(*dims)
