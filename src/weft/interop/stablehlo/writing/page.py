"""The MLIR block being written: operations by name, each typed where it is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from weft.foundation.dtypes import I1, SI32, SI64, DType
from weft.foundation.errors import Unimplemented
from weft.interop.stablehlo.dense import tensor_text, write_dense
from weft.ptir.literal import TensorLiteral, literal
from weft.ptir.types import Dim, Shape, Symbol, TensorType


@dataclass(frozen=True)
class Ssa:
    """A value of the text: its name and its type."""

    name: str
    type: TensorType

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def shape(self) -> Shape:
        return self.type.shape

    @property
    def rank(self) -> int:
        return self.type.rank


Written: TypeAlias = "Ssa | tuple[Written, ...]"
"""What a PTIR value is in the text: a tuple is the values of its elements."""
Inside: TypeAlias = "Callable[[Page, list[Ssa]], Sequence[Ssa]]"
"""Writes the operations of a region; answers what it returns."""


def flattened(value: Written) -> list[Ssa]:
    """The tensors of a value, in order."""
    if isinstance(value, Ssa):
        return [value]
    return [leaf for element in value for leaf in flattened(element)]


def array_text(numbers: Sequence[Any]) -> str:
    """A list of numbers or truth values as an attribute."""
    kind = "i1" if numbers and isinstance(numbers[0], bool) else "i64"
    shown = [str(n).lower() if kind == "i1" else str(int(n)) for n in numbers]
    return f"array<{kind}: {', '.join(shown)}>" if shown else "array<i64>"


def quoted(text: str) -> str:
    """A text as MLIR writes one: what is not plain ASCII as bytes in hex."""
    plain = "".join(
        chr(byte) if 32 <= byte < 127 and byte not in (34, 92) else f"\\{byte:02X}"
        for byte in text.encode("utf-8", "surrogatepass")
    )
    return f'"{plain}"'


class Page:
    """Operations in the order they are written."""

    def __init__(
        self,
        names: list[int],
        depth: int = 1,
        sizes: Mapping[Symbol, tuple[Ssa, int]] | None = None,
    ) -> None:
        self.lines: list[str] = []
        self._names = names
        self._depth = depth
        self._sizes = dict(sizes or {})
        """For each size that is known only at run time, an axis that has it."""

    def fresh(self) -> str:
        self._names[0] += 1
        return f"%v{self._names[0]}"

    def fresh_size(self) -> Symbol:
        """A name for a size that no program has."""
        self._names[0] += 1
        return Symbol(f"{self._names[0]} of the text")

    def line(self, text: str) -> None:
        self.lines.append("  " * self._depth + text)

    def ops(
        self,
        name: str,
        operands: Sequence[Ssa],
        types: Sequence[TensorType],
        attrs: Mapping[str, str] | None = None,
        regions: Sequence[tuple[Sequence[TensorType], Inside]] = (),
    ) -> list[Ssa]:
        """Write an operation; its results."""
        made = self.fresh()
        count = f":{len(types)}" if len(types) > 1 else ""
        result = f"{made}{count} = " if types else ""
        head = f'{result}"{name}"({", ".join(operand.name for operand in operands)})'
        given = ", ".join(f"{key} = {value}" for key, value in (attrs or {}).items())
        inputs = ", ".join(tensor_text(operand.type) for operand in operands)
        outputs = ", ".join(tensor_text(kind) for kind in types)
        tail = f"{f' {{{given}}}' if given else ''} : ({inputs}) -> ({outputs})"
        if regions:
            self.line(f"{head} ({{")
            for index, (kinds, inside) in enumerate(regions):
                if index:
                    self.line("}, {")
                self._region(kinds, inside)
            self.line(f"}}){tail}")
        else:
            self.line(head + tail)
        if len(types) == 1:
            return [self.noted(Ssa(made, types[0]))]
        return [self.noted(Ssa(f"{made}#{index}", kind)) for index, kind in enumerate(types)]

    def noted(self, value: Ssa) -> Ssa:
        """The value, whose sizes can be asked for from now on."""
        for axis, dim in enumerate(value.shape):
            if isinstance(dim, Symbol):
                self._sizes.setdefault(dim, (value, axis))
        return value

    def _region(self, kinds: Sequence[TensorType], inside: Inside) -> None:
        inner = Page(self._names, self._depth + 1, self._sizes)
        args = [inner.noted(Ssa(inner.fresh(), kind)) for kind in kinds]
        if args:
            listed = ", ".join(f"{arg.name}: {tensor_text(arg.type)}" for arg in args)
            self.line(f"^bb0({listed}):")
        returned = inside(inner, args)
        inner.ops("stablehlo.return", returned, ())
        self.lines += inner.lines

    def op(self, name: str, *operands: Ssa, like: TensorType | None = None, **attrs: str) -> Ssa:
        """Write an operation of StableHLO with one result, typed like the first operand."""
        full = name if "." in name else f"stablehlo.{name}"
        return self.ops(full, operands, [like or operands[0].type], attrs)[0]

    # -- constants and shapes --------------------------------------------------------------------

    def constant(self, data: TensorLiteral) -> Ssa:
        return self.ops("stablehlo.constant", (), [data.type], {"value": write_dense(data)})[0]

    def scalar(self, number: Any, dtype: DType) -> Ssa:
        """A number as a tensor of rank 0."""
        array = np.asarray(number)
        if dtype.is_float or dtype.is_complex or dtype is I1:
            array = array.astype(dtype.numpy)
        return self.constant(literal(array, dtype))

    def full(self, number: Any, kind: TensorType) -> Ssa:
        """A tensor with one number everywhere."""
        return self.spread(self.scalar(number, kind.dtype), kind.shape)

    def sizes(self, shape: Sequence[Dim]) -> Ssa:
        """A shape as a vector, for operations that take one as an operand."""
        return self._vector([self.size(dim) for dim in shape])

    def _vector(self, numbers: Sequence[Ssa]) -> Ssa:
        parts = [self.reshape(number, (1,)) for number in numbers]
        return parts[0] if len(parts) == 1 else self.concat(parts, 0, len(parts))

    def size(self, dim: Dim) -> Ssa:
        """A size as a number, asked of a value that has it where it is known only at run time."""
        if isinstance(dim, int):
            return self.scalar(dim, SI64)
        if dim not in self._sizes:
            raise Unimplemented(f"the size {dim}", "StableHLO cannot compute it before its use")
        value, axis = self._sizes[dim]
        attrs = {"dimension": f"{axis} : i64"}
        kind = TensorType(SI32, ())
        found = self.ops("stablehlo.get_dimension_size", [value], [kind], attrs)[0]
        return self.convert(found, SI64)

    def spread(self, x: Ssa, shape: Sequence[Dim]) -> Ssa:
        """PTIR's broadcast: axes line up at the right."""
        if x.shape == tuple(shape):
            return x
        dims = array_text(range(len(shape) - x.rank, len(shape)))
        kind = x.type.with_shape(shape)
        if kind.is_static:
            return self.op("broadcast_in_dim", x, like=kind, broadcast_dimensions=dims)
        sizes = self.sizes(shape)
        return self.op("dynamic_broadcast_in_dim", x, sizes, like=kind, broadcast_dimensions=dims)

    def reshape(self, x: Ssa, shape: Sequence[Dim]) -> Ssa:
        if x.shape == tuple(shape):
            return x
        kind = x.type.with_shape(shape)
        if kind.is_static:
            return self.op("reshape", x, like=kind)
        sizes = self._vector([self._new_size(dim, x.shape, shape) for dim in shape])
        return self.op("dynamic_reshape", x, sizes, like=kind)

    def _new_size(self, dim: Dim, old: Sequence[Dim], new: Sequence[Dim]) -> Ssa:
        """A size of a reshape: where nothing has it yet, what the others leave."""
        if isinstance(dim, int) or dim in self._sizes:
            return self.size(dim)
        left, right = Counter(old) - Counter(new), Counter(new) - Counter(old)
        del right[dim]
        total, others = (self._product(part.elements()) for part in (left, right))
        at_least_one = self.op("maximum", others, self.scalar(1, SI64))
        return self.op("divide", total, at_least_one)

    def _product(self, dims: Iterable[Dim]) -> Ssa:
        found = self.scalar(1, SI64)
        for dim in dims:
            found = self.op("multiply", found, self.size(dim))
        return found

    def transpose(self, x: Ssa, perm: Sequence[int]) -> Ssa:
        if list(perm) == list(range(x.rank)):
            return x
        kind = x.type.with_shape(x.shape[axis] for axis in perm)
        return self.op("transpose", x, like=kind, permutation=array_text(perm))

    def convert(self, x: Ssa, dtype: DType) -> Ssa:
        """StableHLO's conversion, which leaves open what happens to values that do not fit."""
        return x if x.dtype is dtype else self.op("convert", x, like=x.type.with_dtype(dtype))

    def slice(
        self,
        x: Ssa,
        starts: Sequence[int],
        limits: Sequence[int],
        steps: Sequence[int] | None = None,
    ) -> Ssa:
        by = steps or [1] * x.rank
        sizes = [-(-(b - a) // s) for a, b, s in zip(starts, limits, by, strict=True)]
        return self.op(
            "slice", x, like=x.type.with_shape(sizes), start_indices=array_text(starts),
            limit_indices=array_text(limits), strides=array_text(by),
        )  # fmt: skip

    def concat(self, values: Sequence[Ssa], axis: int, size: Dim) -> Ssa:
        shape = [*values[0].shape[:axis], size, *values[0].shape[axis + 1 :]]
        kind = values[0].type.with_shape(shape)
        return self.op("concatenate", *values, like=kind, dimension=f"{axis} : i64")

    def iota(self, kind: TensorType, axis: int) -> Ssa:
        made = {"iota_dimension": f"{axis} : i64"}
        if kind.is_static:
            return self.ops("stablehlo.iota", (), [kind], made)[0]
        return self.ops("stablehlo.dynamic_iota", [self.sizes(kind.shape)], [kind], made)[0]

    def compare(self, x: Ssa, y: Ssa, direction: str, ordering: str = "") -> Ssa:
        attrs = {"comparison_direction": f"#stablehlo<comparison_direction {direction}>"}
        if ordering:
            attrs["compare_type"] = f"#stablehlo<comparison_type {ordering}>"
        return self.op("compare", x, y, like=x.type.with_dtype(I1), **attrs)
