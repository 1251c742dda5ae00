"""Rules by the classes of ops: what batching, splitting and padding know of each family."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from weft.foundation.errors import InternalError
from weft.ptir.op import Op


class OfOp(Protocol):
    """What a rule is asked about: an instruction, and what is known of its operands."""

    @property
    def op(self) -> Op: ...


SomeOp = TypeVar("SomeOp", bound=Op)
Asked = TypeVar("Asked", bound=OfOp)
Answer = TypeVar("Answer")


class OpRules(Generic[Asked, Answer]):
    """The table of one kind of rules, the decorator that declares them, and the classes of ops that
    need not be taken apart: those with a rule, and those that are dealt with elsewhere."""

    def __init__(self, *elsewhere: type[Op]) -> None:
        self._elsewhere = elsewhere
        self._rules: dict[type[Op], Callable[[Asked], Answer]] = {}
        self._elementwise: Callable[[Asked], Answer] | None = None

    def __call__(
        self, *classes: type[Op]
    ) -> Callable[[Callable[[Asked], Answer]], Callable[[Asked], Answer]]:
        """Declare the rule of these ops."""

        def decorate(rule: Callable[[Asked], Answer]) -> Callable[[Asked], Answer]:
            self._rules.update(dict.fromkeys(classes, rule))
            return rule

        return decorate

    def elementwise(self, rule: Callable[[Asked], Answer]) -> Callable[[Asked], Answer]:
        """Declare the rule of all elementwise ops that have none of their own."""
        self._elementwise = rule
        return rule

    def of(self, op: Op) -> Callable[[Asked], Answer] | None:
        """The rule for an op; None where there is none."""
        return self._rules.get(type(op), self._elementwise if op.elementwise else None)

    def __contains__(self, cls: object) -> bool:
        if not isinstance(cls, type) or not issubclass(cls, Op):
            return False
        return cls.elementwise or cls in self._rules or cls in self._elsewhere


def op_as(asked: OfOp, kind: type[SomeOp]) -> SomeOp:
    """The op as what its rule takes it for."""
    if not isinstance(asked.op, kind):
        raise InternalError(f"{asked.op.mnemonic} has the rule of {kind.__name__}")
    return asked.op
