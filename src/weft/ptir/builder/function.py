"""A program of one function under construction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from weft.foundation.calls import told_methods
from weft.foundation.dtypes import DType
from weft.foundation.errors import SpecViolation, UserError
from weft.foundation.lines import shown, user_line
from weft.ptir.builder.body import BodyBuilder, Shared
from weft.ptir.builder.value import Value
from weft.ptir.ir import Function, HintKind, HintPolicy, HintRegion, Instruction, Program
from weft.ptir.schema import AttrMap, Choice, attr_map
from weft.ptir.types import Symbol, ValueType, tensor
from weft.ptir.verify import check_hint


@dataclass(frozen=True)
class _Wish:
    """A hint whose exports are not known before the function is finished."""

    kind: HintKind
    policy: HintPolicy
    attrs: AttrMap
    body: tuple[Instruction, ...]

    def hint(self, number: int, uses: Counter[int]) -> HintRegion:
        """The hint, given how often each value of the function is used."""
        own = _count_uses(self.body)
        inside = [instruction.id for instruction in self.body]
        inputs = tuple(sorted(own.keys() - inside))
        exports = tuple(value for value in inside if uses[value] > own[value])
        return HintRegion(number, self.kind, self.policy, inputs, exports, self.body, self.attrs)


def _count_uses(body: Iterable[Instruction]) -> Counter[int]:
    return Counter(use for instruction in body for use in instruction.uses)


@told_methods
class Builder(BodyBuilder):
    """Builds a program of one function."""

    def __init__(self, name: str = "main", shared: Shared | None = None) -> None:
        super().__init__(f"function @{name}", shared or Shared())
        self.name = name
        self._parameters: list[Value] = []
        self._wishes: list[_Wish] = []
        self._wishing = False

    def param(self, dtype: DType | str, dims: Iterable[int | str | Symbol] = ()) -> Value:
        """A tensor parameter; dims are numbers or names such as "?B"."""
        return self.param_of(tensor(dtype, dims))

    def param_of(self, kind: ValueType) -> Value:
        """A parameter of any type. All parameters come before the first instruction."""
        if self._body:
            raise UserError("declare every parameter before the first op")
        value = self._parameter(kind)
        self._parameters.append(value)
        return value

    def hint(
        self, kind: HintKind | str, policy: HintPolicy | str = "preferred", **attrs: Any
    ) -> AbstractContextManager[None]:
        """A wish that the ops of the `with` block run as one kernel. `kind` is elementwise_dag,
        dot_epilogue or reduction_chain, `policy` optional, preferred or required."""
        if self._wishing:
            raise UserError("hints do not nest; end the one before first")
        wished: Any = Choice(HintKind).check(kind)
        strength: Any = Choice(HintPolicy).check(policy)
        return self._write_hint(wished, strength, attr_map(attrs), shown(user_line()))

    @contextmanager
    def _write_hint(
        self, kind: HintKind, policy: HintPolicy, attrs: AttrMap, where: str
    ) -> Iterator[None]:
        """The block of a hint that was written at `where`."""
        start = len(self._body)
        self._wishing = True
        try:
            yield
        finally:
            self._wishing = False
        body = tuple(self._body[start:])
        if not body:
            raise UserError("a hint needs at least one op in its block", where=where)
        self._wishes.append(_Wish(kind, policy, attrs, body))

    def _hints(self, results: tuple[int, ...]) -> tuple[HintRegion, ...]:
        uses = _count_uses(self._body)
        uses.update(results)
        return tuple(wish.hint(number, uses) for number, wish in enumerate(self._wishes))

    def build(self, *results: Value) -> Program:
        """The finished program, returning these values."""
        ids = self._results(results)
        function = Function(
            self.name,
            tuple(p.type for p in self._parameters),
            tuple(range(len(self._parameters))),
            tuple(self._types[value_id] for value_id in ids),
            tuple(self._body),
            self._hints(ids),
            ids,
        )
        for hint in function.hints:
            try:
                check_hint(hint, function)
            except SpecViolation as error:
                raise error.at(f"hint {hint.id} in {self.label}") from None
        return self._shared.as_program(self.name, (function,))
